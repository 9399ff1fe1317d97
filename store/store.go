// Package store keeps compiled tables: in memory, one for each module, and on disk, where the next run finds them.
//
// A table's file is named after the module's build ID, or the hash of its contents where it has none, and the size
// of the unwind information that it was made of: a stripped file has its twin's build ID, and less to tell. The
// file is the table, as package compact lays it out, and a trailer with the name. It is mapped,
// not read. Whatever is wrong with a file, or with the whole cache, costs time only: the table is built again.
package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
)

// An Origin says where a table came from.
type Origin uint8

const (
	None   Origin = iota // the module has no unwind information
	Memory               // this process had it
	Disk                 // mapped from the cache
	Built                // made of the module's unwind information
)

var originNames = [...]string{"none", "memory", "disk", "built"}

func (o Origin) String() string { return originNames[o] }

// Stats count what a Store did.
type Stats struct {
	Mapped   int64 // tables found on disk
	Built    int64 // tables made
	Rejected int64 // files that were damaged, of another version, or not for the module
	Unkept   int64 // tables that could not be written
}

// A Store gives out tables. It is safe for concurrent use. The zero Store keeps nothing on disk.
type Store struct {
	dir string

	mu     sync.Mutex
	tables map[string]*entry

	mapped, built, rejected, unkept atomic.Int64
	fault                           atomic.Pointer[error]
}

// An entry is one module's table, being made or ready.
type entry struct {
	ready sync.Once
	table *compact.Table
	from  Origin
	err   error
}

// Dir returns the directory on disk, which is this user's alone; "" if nothing is kept.
func (s *Store) Dir() string { return s.dir }

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

// Table returns the table of an image, nil for an image without unwind information. It stays valid when the image
// is closed. An error with a table says that some of the information is damaged and not in it: a table
// from disk does not remember.
func (s *Store) Table(img *module.Image) (*compact.Table, Origin, error) {
	frames, err := dwarf.Open(img)
	if err != nil && frames == nil {
		return nil, None, err
	}
	z := frames.Sizes()
	if z.EHFrame+z.DebugFrame == 0 {
		return nil, None, err
	}
	name := fmt.Sprintf("%s-%x-%x.%d", img.ID(), z.EHFrame, z.DebugFrame, compact.Version)
	s.mu.Lock()
	if s.tables == nil {
		s.tables = map[string]*entry{}
	}
	e := s.tables[name]
	if e == nil {
		e = &entry{}
		s.tables[name] = e
	}
	s.mu.Unlock()
	from := Memory
	e.ready.Do(func() {
		s.fill(e, name, frames)
		from = e.from
	})
	return e.table, from, errors.Join(err, e.err)
}

// fill gets a table from disk, or else makes and keeps it.
func (s *Store) fill(e *entry, name string, frames *dwarf.Frames) {
	e.err = errors.New("the table could not be made") // unless what follows returns
	if s.dir != "" {
		t, err := s.load(name)
		if t != nil {
			e.table, e.from, e.err = t, Disk, nil
			s.mapped.Add(1)
			return
		}
		if err != nil {
			s.rejected.Add(1)
		}
	}
	b, t, err := Build(frames)
	e.table, e.from, e.err = t, Built, err
	s.built.Add(1)
	if t == nil || s.dir == "" {
		return
	}
	if err := s.save(name, b); err != nil {
		s.unkept.Add(1)
		s.fault.CompareAndSwap(nil, &err)
	}
}

// Build makes a table and proves it equal to what it was made of. An error with a table says what is damaged.
func Build(frames *dwarf.Frames) ([]byte, *compact.Table, error) {
	ref, damage := frames.Build(dwarf.Both)
	var lost error
	if len(damage) > 0 {
		lost = fmt.Errorf("%d damaged entries; the first: %w", len(damage), damage[0])
	}
	if len(ref.Rows) == 0 {
		return nil, nil, lost
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
