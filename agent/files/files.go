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
	"time"

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
type Ring struct {
	dir  string
	size int64
	age  time.Duration

	mu     sync.Mutex
	n      int       // of the last file
	pruned time.Time // last
}

// every is how often files are counted, and removed: for so long there may be a little too much.
const every = 10 * time.Second

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
	raw, err := b.Pprof()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.n++
	n := r.n
	r.mu.Unlock()
	return &export.Request{Body: raw, Query: ring.Name(b.Profile.Start, n, b.Label(export.ServiceName))}, nil
}

// Send writes a file, and removes what the ring has too much of. A disk that is full or read-only is tried again later.
func (r *Ring) Send(ctx context.Context, q *export.Request) (export.Receipt, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.pruned) >= every {
		r.pruned = now
		r.prune(int64(len(q.Body)), now)
	}
	if err := outfile.WriteFile(filepath.Join(r.dir, q.Query), q.Body, outfile.Options{Private: true}); err != nil {
		return export.Receipt{}, &export.Later{Err: err}
	}
	return export.Receipt{Bytes: len(q.Body)}, nil
}

// prune makes room for so many bytes.
func (r *Ring) prune(room int64, now time.Time) {
	list, err := os.ReadDir(r.dir)
	if err != nil {
		return // writing says why
	}
	type file struct {
		name string
		size int64
		at   time.Time
	}
	var files []file
	total := room
	for _, e := range list {
		at, _, ok := ring.Parse(e.Name())
		if !ok {
			continue
		}
		st, err := e.Info()
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		files = append(files, file{e.Name(), st.Size(), at})
		total += st.Size()
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.at.Compare(b.at), strings.Compare(a.name, b.name)) })
	for _, f := range files {
		if total <= r.size && now.Sub(f.at) <= r.age {
			break
		}
		if os.Remove(filepath.Join(r.dir, f.name)) == nil {
			total -= f.size
		}
	}
}
