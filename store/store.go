// Package store keeps compiled tables and machine code: in memory, one for each module, and on disk for the next run.
//
// A file's name has the module's build ID, or, if it has none, a hash of its headers and of what unwinding and naming read. The name also has a hash of the unwind information in the
// module, because anybody can make a file with libc's build ID. For modules that only root and this user can change, a symbolic link named
// after device, inode, size and times remembers the hash. A table's file is the table, as package compact lays it out, and a trailer with the
// name. Machine code is an eh_elf file, as package native writes it. A damaged file, or a damaged cache, costs only the time to build the table
// again.
//
// Behind each user's own directory are those that all users share (SharedDirs). Only root writes there (OpenMachine), and nothing is believed that
// others could have written. Files that only root can change are mapped; a user's own tables are read, because who owns a file can cut it short while
// it is mapped.
package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// An Origin says where a table came from.
type Origin uint8

const (
	None   Origin = iota // the module has no unwind information
	Memory               // this process had it
	Disk                 // found in the cache
	Built                // made of the module's unwind information
)

var originNames = [...]string{"none", "memory", "disk", "built"}

func (o Origin) String() string { return originNames[o] }

// Stats count a Store's work, for tables and machine code alike.
type Stats struct {
	Mapped   int64 // tables found on disk
	Built    int64 // tables made
	Rejected int64 // files that were damaged, of another version, or not for the module
	Unkept   int64 // tables that could not be written
}

// A Store gives out the tables and machine code of modules. It is safe for concurrent use. The zero Store neither keeps nor finds anything on disk.
type Store struct {
	// Memory bounds what making a table takes, in bytes; 0: nothing does. None is made of modules whose unwind information takes more: ErrMemory says
	// so. What is made at the same time takes Together, or is one table. Set both before the first use.
	Memory, Together int64

	dir    string
	shared []string // directories that are looked into behind dir
	role   role     // whom dir is for

	mu      sync.Mutex
	making  int64         // bytes that it takes
	ended   chan struct{} // closed when something was made; nil: nobody waits
	tables  map[string]*entry[compact.Table]
	natives map[string]*entry[native.Code]

	files []os.DirEntry             // what was in dir when Kept was called first
	gone  map[string]*compact.Table // what Kept has found, by build ID; nil before

	sharedNames map[string][]string // tables in shared, by build ID; nil before keptShared

	sweep   int          // how many entries there may be before those are forgotten that nobody has
	written atomic.Int64 // bytes that were put on disk

	mapped, built, rejected, unkept atomic.Int64
	fault                           atomic.Pointer[error]
}

// An entry is what one module was compiled to, being made or ready. It stays while somebody has it.
type entry[T any] struct {
	ready sync.Once
	done  atomic.Bool // what follows is set
	made  weak.Pointer[T]
	some  bool // there was something
	from  Origin
	err   error
}

// Dir returns the directory on disk, which is this user's alone; "" if nothing is kept.
func (s *Store) Dir() string { return s.dir }

// Close forgets all that the Store gave out, and releases machine code, which nobody may use any more. The Store may be used again.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, e := range s.natives {
		if e.done.Load() {
			if c := e.made.Value(); c != nil {
				errs = append(errs, c.Close())
			}
		}
	}
	s.tables, s.natives, s.files, s.gone, s.sharedNames = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// Stats returns the counts so far.
func (s *Store) Stats() Stats {
	return Stats{Mapped: s.mapped.Load(), Built: s.built.Load(), Rejected: s.rejected.Load(), Unkept: s.unkept.Load()}
}

// Err returns the first reason why a table could not be kept on disk; nil if there was none.
func (s *Store) Err() error {
	if p := s.fault.Load(); p != nil {
		return *p
	}
	return nil
}

// Table returns the table of an image, nil for an image without unwind information. It stays valid when the image and the Store
// are closed: it is the garbage collector that frees it, so nobody can free it while a stack is walked. An error with a table says that some of the information is damaged and not in it: a table
// from disk does not remember.
func (s *Store) Table(img *module.Image) (*compact.Table, Origin, error) {
	t, from, _, err := s.table(img)
	return t, from, err
}

// table is Table, and returns the name of the table's file, whether or not it could be kept.
func (s *Store) table(img *module.Image) (*compact.Table, Origin, string, error) {
	return obtain(s, &s.tables, img, fmt.Sprint(compact.Version), recipe[compact.Table]{
		load:  s.load,
		make:  Build,
		pack:  seal,
		again: s.maps(),
		old:   oldVersions(),
	})
}

// oldVersions are the endings of tables that nobody reads any more.
func oldVersions() (old []string) {
	for v := 1; v < compact.Version; v++ {
		old = append(old, fmt.Sprint(v))
	}
	return old
}

// Native returns an image's machine code, as Table returns its table. o needs no ID.
func (s *Store) Native(img *module.Image, o native.Options) (*native.Code, Origin, error) {
	o.ID = img.ID()
	suffix := fmt.Sprintf("%v-%v.%d.eh_elf.so", o.Layout, o.Deref, native.Version)
	c, from, _, err := obtain(s, &s.natives, img, suffix, recipe[native.Code]{
		load: func(name string) (*native.Code, error) { return s.loadNative(name, o) },
		make: func(f *format.Unwind) ([]byte, *native.Code, error) { return BuildNative(f, o) },
		pack: func(b []byte, _ string) []byte { return b },
	})
	return c, from, err
}

// A recipe says how something compiled is found on disk and made.
type recipe[T any] struct {
	load func(name string) (*T, error)
	make func(*format.Unwind) ([]byte, *T, error)
	pack func(b []byte, name string) []byte // what is written

	again bool     // what was made is loaded again, once it is on disk
	old   []string // endings that the names had in earlier versions
}

// obtain returns what an image was compiled to: by this process, on disk, or now. Unwind information is not even looked for where a link remembers
// its hash: there is no such link to information that could not be opened whole. name is that of the file.
func obtain[T any](s *Store, all *map[string]*entry[T], img *module.Image, suffix string, how recipe[T]) (_ *T, _ Origin, name string, err error) {
	open := sync.OnceValue(func() (frames *format.Unwind) {
		frames, err = format.Open(img)
		return frames
	})
	prefix, name, link := s.remembered(img, suffix)
	if name == "" {
		frames := open()
		if len(frames.Sources) == 0 {
			return nil, None, "", err
		}
		name = prefix + frames.Key() + "." + suffix
		if err != nil {
			link = ""
		}
	}
	for {
		e := entryOf(s, all, name)
		var t *T
		from := Memory
		e.ready.Do(func() {
			e.err = errors.New("it could not be compiled") // unless what follows returns
			defer func() {
				if !e.done.Swap(true) { // the file was cut short or written to while it was read: the next reader may have it whole again
					forget(s, all, name, e)
				}
			}()
			var kept bool
			t, kept = fill(s, e, img, name, open, how)
			e.some, e.made = t != nil, weak.Make(t)
			e.done.Store(!errors.Is(e.err, ErrWritten))
			if kept && e.from == Built {
				s.replace(suffix, how.old, name, link)
			}
			if kept && link != "" {
				s.remember(link, name)
			}
			from = e.from
		})
		if t == nil {
			t = e.made.Value()
		}
		if t != nil || !e.some {
			return t, from, name, errors.Join(err, e.err)
		}
		// Nobody had it any more.
		forget(s, all, name, e)
	}
}

// forget removes an entry, so that the next one who asks makes it anew.
func forget[T any](s *Store, all *map[string]*entry[T], name string, e *entry[T]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (*all)[name] == e {
		delete(*all, name)
	}
}

// minSweep is from how many entries on those are looked for that nobody has any more.
const minSweep = 64

// entryOf returns the entry of a name, which may be new.
func entryOf[T any](s *Store, all *map[string]*entry[T], name string) *entry[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := (*all)[name]
	if e != nil {
		return e
	}
	if *all == nil {
		*all = map[string]*entry[T]{}
	}
	if n := len(*all); n >= minSweep && n >= s.sweep {
		maps.DeleteFunc(*all, func(_ string, e *entry[T]) bool { return e.done.Load() && e.made.Value() == nil })
		s.sweep = 2 * len(*all)
	}
	e = &entry[T]{}
	(*all)[name] = e
	return e
}

// ErrWritten says that a table may have been made of two files. The image is no good any more.
var ErrWritten = errors.New("somebody wrote to the file while its unwind information was read")

// fill gets an entry from disk, or else makes and keeps it. It says whether it is on disk.
func fill[T any](s *Store, e *entry[T], img *module.Image, name string, open func() *format.Unwind, how recipe[T]) (*T, bool) {
	t, err := how.load(name)
	if err != nil {
		s.rejected.Add(1)
	}
	if t != nil {
		e.from, e.err = Disk, nil
		s.mapped.Add(1)
		return t, true
	}
	end, err := s.begin(open)
	if err != nil {
		e.from, e.err = None, err
		return nil, false
	}
	defer end()
	frames := open()
	b, t, err := how.make(frames)
	e.from, e.err = Built, err
	s.built.Add(1)
	if img.Changed() {
		e.from, e.err = None, ErrWritten
		return nil, false
	}
	if t == nil || s.dir == "" || frames.Indirect() { // then the name does not say all that it was made of
		return t, false
	}
	if err := s.save(name, how.pack(b, name)); err != nil {
		s.unkept.Add(1)
		s.fault.CompareAndSwap(nil, &err)
		return t, false
	}
	if how.again {
		if kept, err := how.load(name); kept != nil && err == nil {
			t = kept
		}
	}
	return t, true
}

// ErrMemory says that making a table takes more than Store.Memory.
var ErrMemory = errors.New("its unwind information is too large for the memory that may be used")

// makeCost is about how many bytes making a table takes for each byte of unwind information: of five programs with 0.4 to 5 MiB, 6 to 8. makeGoCost is
// of Go's own table, which has names and lines, too: of three programs with 18 to 177 MiB, 1 to 3.
const (
	makeCost   = 8
	makeGoCost = 2
)

// patience is how long who would make something waits for another one, who may wait for a file for ever.
const patience = 30 * time.Second

// begin waits until something may be made of what open returns. end is to be called then.
func (s *Store) begin(open func() *format.Unwind) (end func(), err error) {
	if s.Memory == 0 {
		return func() {}, nil
	}
	cost := costOf(open())
	if cost > uint64(s.Memory) {
		return nil, ErrMemory
	}
	late := time.After(patience)
	s.mu.Lock()
	defer s.mu.Unlock()
	for waits := true; waits && s.making > 0 && s.making+int64(cost) > s.Together; {
		if s.ended == nil {
			s.ended = make(chan struct{})
		}
		ended := s.ended
		s.mu.Unlock()
		select {
		case <-ended:
		case <-late:
			waits = false
		}
		s.mu.Lock()
	}
	s.making += int64(cost)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.making -= int64(cost); s.ended != nil {
			close(s.ended)
			s.ended = nil
		}
	}, nil
}

// costOf returns about how many bytes making a table takes.
func costOf(frames *format.Unwind) (cost uint64) {
	for _, src := range frames.Sources {
		switch n := min(src.Size, 1<<40); {
		case src.Spare:
		case src.Name == format.PCLNTab:
			cost += n * makeGoCost
		default:
			cost += n * makeCost
		}
	}
	return max(cost, 1)
}

// read returns all rows; an error says what is damaged.
func read(frames *format.Unwind) (*rows.Table, error) {
	ref, damage := frames.Rows()
	if len(damage) > 0 {
		return ref, fmt.Errorf("%d damaged entries; the first: %w", len(damage), damage[0])
	}
	return ref, nil
}

// Build makes a table and proves it equal to its rows. With a table, an error names the damage.
func Build(frames *format.Unwind) ([]byte, *compact.Table, error) {
	ref, lost := read(frames)
	if len(ref.Rows) == 0 {
		return nil, nil, lost
	}
	if ref.Machine.Numbered {
		return nil, nil, fmt.Errorf("made for an unknown machine: e_machine is %d", ref.Machine.ELF)
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return nil, nil, err
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("BUG: %w", err)
	}
	return b, t, lost
}

// BuildNative makes machine code, as Build makes a table.
func BuildNative(frames *format.Unwind, o native.Options) ([]byte, *native.Code, error) {
	ref, lost := read(frames)
	if len(ref.Rows) == 0 {
		return nil, nil, lost
	}
	b, err := native.Emit(ref, o)
	if err != nil {
		return nil, nil, err
	}
	c, err := native.Load(b)
	if err != nil {
		return nil, nil, err
	}
	if err := native.Verify(c, ref, 1); err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("BUG: %w", err)
	}
	return b, c, lost
}
