// Package files keeps profiles in a directory: a ring of pprof files, of which the oldest go where there are too many bytes, or after a time.
//
// "unspool report" and "unspool serve" read the directory, and "go tool pprof" the files. Nothing else in the directory is touched.
package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/ring"
)

// What a ring keeps unless told otherwise.
const (
	DefaultSize = 1 << 30
	DefaultAge  = 7 * 24 * time.Hour
)

// A Ring is a directory of profiles. It is safe for concurrent use; two rings in one directory keep the lesser of their bounds.
//
// It knows how many bytes are there of each time, and no names. To ask the kernel for a file's size takes 1.4 KB of its memory, so a ring asks for
// those of others only.
type Ring struct {
	dir  string
	size int64
	age  time.Duration

	n atomic.Int64 // of the last file: Encode waits for no disk

	mu      sync.Mutex
	pruned  time.Time // when the bounds were checked last
	counted time.Time // when files were counted last
	spans   []span    // by time
}

// A span is what there is of a 256th of a ring's age.
type span struct {
	at    int64 // number since 1970
	files int
	bytes int64
}

// every is how often the bounds are checked: for so long there may be a little too much.
const every = 10 * time.Second

// block is what a file takes a multiple of, as most file systems have it.
const block = 4096

// taken is how many bytes of the disk a file takes.
func taken(bytes int64) int64 { return (bytes + block - 1) &^ (block - 1) }

// recount is how long files that others write may be there uncounted.
const recount = 10 * time.Minute

// New returns the ring in the directory that a URL's path names, which is made if it is not there. Its query may say size=BYTES and age=TIME.
func New(u *url.URL) (*Ring, error) {
	r := &Ring{dir: filepath.Clean(u.Path), size: DefaultSize, age: DefaultAge}
	if u.Scheme != "" || u.Host != "" || u.Path == "" || u.Fragment != "" {
		return nil, errors.New("want the path of a directory, such as files=/var/lib/unspool?size=1G&age=48h")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%q cannot be read", u.RawQuery)
	}
	for key, values := range query {
		value := values[len(values)-1]
		switch key {
		case "size":
			var n uint64
			if n, err = cli.Size("size", value); err == nil && n > 0 {
				r.size = int64(min(n, 1<<60))
			}
		case "age":
			if r.age, err = cli.Duration("age", value); r.age == 0 && err == nil {
				err = errors.New("age takes a time such as 48h")
			}
		default:
			err = fmt.Errorf("there is no %s here: size and age say what is kept", key)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return nil, err
	}
	return r, nil
}

// Encode returns a batch as a pprof file. Its Query is the file's name.
func (r *Ring) Encode(b *export.Batch) (*export.Request, error) {
	labelled := *b.Profile
	for _, l := range b.Labels {
		labelled.Labels = append(labelled.Labels, l.Name+"="+l.Value)
	}
	with := *b
	with.Profile = &labelled
	raw, err := with.Pprof()
	if err != nil {
		return nil, err
	}
	n := int(r.n.Add(1))
	return &export.Request{Body: export.Fitted(raw), Query: ring.Name(b.Profile.Start, n, b.Label(export.ServiceName))}, nil
}

// Send writes a file, and removes what the ring has too much of. On a disk that is full the oldest files make room. One that is full of others' files, or
// read-only, is tried again later.
func (r *Ring) Send(ctx context.Context, q *export.Request) (export.Receipt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes, now := taken(int64(len(q.Body))), time.Now()
	if now.Sub(r.pruned) >= every {
		r.pruned = now
		r.prune(bytes, now)
	}
	write := func() error {
		return outfile.WriteFile(filepath.Join(r.dir, q.Query), q.Body, outfile.Options{Private: true})
	}
	err := write()
	if _, have := r.sum(); have > 0 && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		r.shrink(have-max(have/64, 2*bytes), now)
		err = write()
	}
	if err != nil {
		return export.Receipt{}, &export.Later{Err: err}
	}
	if at, _, ok := ring.Parse(q.Query); ok {
		r.add(at, bytes)
	}
	return export.Receipt{Bytes: len(q.Body)}, nil
}

// spanOf returns the number of the span of a time.
func (r *Ring) spanOf(at time.Time) int64 {
	return at.UnixMilli() / max(r.age.Milliseconds()/256, 1)
}

// add counts a file.
func (r *Ring) add(at time.Time, bytes int64) {
	n := r.spanOf(at)
	i, ok := slices.BinarySearchFunc(r.spans, n, func(s span, n int64) int { return cmp.Compare(s.at, n) })
	if !ok {
		r.spans = slices.Insert(r.spans, i, span{at: n})
	}
	r.spans[i].files++
	r.spans[i].bytes += bytes
}

// sum returns how much there is.
func (r *Ring) sum() (files int, bytes int64) {
	for _, s := range r.spans {
		files += s.files
		bytes += s.bytes
	}
	return files, bytes
}

// each calls f with each name of a profile and its time. Of a directory that cannot be read there are none: writing says why.
func (r *Ring) each(f func(name string, at time.Time)) {
	dir, err := os.Open(r.dir)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		list, err := dir.Readdirnames(256)
		for _, name := range list {
			if at, _, ok := ring.Parse(name); ok {
				f(name, at)
			}
		}
		if err != nil {
			return
		}
	}
}

// fileSize returns how many bytes of the disk a regular file takes.
func (r *Ring) fileSize(name string) (bytes int64, ok bool) {
	st, err := os.Lstat(filepath.Join(r.dir, name))
	if err != nil || !st.Mode().IsRegular() {
		return 0, false
	}
	return taken(st.Size()), true
}

// count counts the files again, if there are more or fewer of them than the ring knows.
func (r *Ring) count() {
	n := 0
	r.each(func(string, time.Time) { n++ })
	if known, _ := r.sum(); n == known {
		return
	}
	r.spans = nil
	r.each(func(name string, at time.Time) {
		if bytes, ok := r.fileSize(name); ok {
			r.add(at, bytes)
		}
	})
}

// prune makes room for so many bytes: the oldest files go, and a 64th of the size more, so that the directory is not read each time.
func (r *Ring) prune(room int64, now time.Time) {
	if now.Sub(r.counted) >= recount {
		r.counted = now
		r.count()
	}
	_, left := r.sum()
	most := r.size - room
	if left > most || len(r.spans) > 0 && r.spans[0].at < r.spanOf(now.Add(-r.age)) {
		r.shrink(most-r.size/64, now)
	}
}

// shrink removes files that are too old, and the oldest, until no more than so many bytes are left. A file that is later than the clock lets it be was
// written while the clock was ahead: how old it is, nobody knows, and it goes before the oldest.
func (r *Ring) shrink(most int64, now time.Time) {
	_, left := r.sum()
	old, ahead := r.spanOf(now.Add(-r.age)), r.spanOf(now.Add(ring.MostInterval))
	var last, lastAhead int64 // the spans in which the last files go: of the others, and of those that are ahead
	drop := func(i int) int64 {
		s := r.spans[i]
		r.spans = slices.Delete(r.spans, i, i+1)
		left -= s.bytes
		return s.at
	}
	for len(r.spans) > 0 && r.spans[0].at < old {
		last = drop(0)
	}
	first, _ := slices.BinarySearchFunc(r.spans, ahead+1, func(s span, n int64) int { return cmp.Compare(s.at, n) })
	for first < len(r.spans) && left > most {
		lastAhead = drop(first)
	}
	for len(r.spans) > 0 && left > most {
		last = drop(0)
	}
	type file struct {
		name  string
		at    time.Time
		ahead bool
	}
	var files []file
	r.each(func(name string, at time.Time) {
		switch n := r.spanOf(at); {
		case n <= last:
			files = append(files, file{name, at, false})
		case n > ahead && n <= lastAhead:
			files = append(files, file{name, at, true})
		}
	})
	slices.SortFunc(files, func(a, b file) int {
		if a.ahead != b.ahead {
			if a.ahead {
				return 1
			}
			return -1
		}
		return cmp.Or(b.at.Compare(a.at), strings.Compare(b.name, a.name))
	})
	full := false
	for _, f := range files { // the newest first
		bytes, ok := r.fileSize(f.name)
		if !ok {
			continue
		}
		if full = full || left+bytes > most; !full && now.Sub(f.at) <= r.age {
			r.add(f.at, bytes)
			left += bytes
			continue
		}
		_ = os.Remove(filepath.Join(r.dir, f.name)) // one that stays counts again after recount
	}
}
