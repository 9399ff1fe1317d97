package module

import (
	"container/list"
	"sync"
	"time"
)

// A Budget bounds the memory of all that can be opened or made again: files that are mapped, code, names. What was not used for longest goes first.
// The zero Budget has DefaultBudget. It is safe for concurrent use.
//
// Of a mapped file, smallFile bytes count, and a quarter of the rest: most of a large program is code and lines that nobody reads, and what is not
// read takes no memory.
type Budget struct {
	Max int64 // bytes; 0: DefaultBudget. It is to be set before the first use.

	mu   sync.Mutex
	used int64
	list list.List // of *Share; the one that was used last is the first
}

// DefaultBudget is 128 MiB: about 3,000 small programs, or 500 MB of large files.
const DefaultBudget = 128 << 20

// smallFile is how many bytes of a mapped file count in full.
const smallFile = 64 << 10

// recent is how long what was used stays although it is too much, up to twice the budget: what is needed every second is not opened every second.
const recent = 10 * time.Second

// A Share is what one thing takes of a Budget.
type Share struct {
	b    *Budget
	size int64
	used time.Time
	drop func() bool
	at   *list.Element // nil: it has gone
}

// Add takes a share of so many bytes. drop is called, from any goroutine that adds or grows shares, to release what it is of: it returns false where that
// cannot be now, because it is in use. It must not wait for whoever adds or grows. Whoever calls Add may not hold what drop takes.
func (b *Budget) Add(size int64, drop func() bool) *Share {
	s := &Share{b: b, size: size, used: time.Now(), drop: drop}
	b.mu.Lock()
	s.at = b.list.PushFront(s)
	b.used += size
	b.fit(s)
	return s
}

// Use says that what a share is of is used now, and takes so many bytes.
func (s *Share) Use(size int64) {
	b := s.b
	b.mu.Lock()
	if s.at == nil {
		b.mu.Unlock()
		return
	}
	b.used += size - s.size
	s.size, s.used = size, time.Now()
	b.list.MoveToFront(s.at)
	b.fit(s)
}

// Touch is Use for what takes as much as before.
func (s *Share) Touch() {
	s.b.mu.Lock()
	if s.at != nil {
		s.used = time.Now()
		s.b.list.MoveToFront(s.at)
	}
	s.b.mu.Unlock()
}

// Remove gives up a share, without a call of drop.
func (s *Share) Remove() {
	if s == nil {
		return
	}
	s.b.mu.Lock()
	s.b.remove(s)
	s.b.mu.Unlock()
}

func (b *Budget) remove(s *Share) {
	if s.at != nil {
		b.list.Remove(s.at)
		b.used -= s.size
		s.at = nil
	}
}

// forget forgets all shares.
func (b *Budget) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for at := b.list.Front(); at != nil; at = at.Next() {
		at.Value.(*Share).at = nil
	}
	b.list.Init()
	b.used = 0
}

// Used returns how many bytes all shares take.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// fit drops shares, but not the one that has just come, until the others are within the budget. It unlocks b, which is locked.
func (b *Budget) fit(but *Share) {
	most := b.Max
	if most == 0 {
		most = DefaultBudget
	}
	var out []*Share
	for at := b.list.Back(); at != nil && b.used > most; {
		s := at.Value.(*Share)
		at = at.Prev()
		if s == but || b.used <= 2*most && time.Since(s.used) < recent {
			break // all others were used later
		}
		b.remove(s)
		out = append(out, s)
	}
	b.mu.Unlock()
	for _, s := range out {
		if s.drop() {
			continue
		}
		b.mu.Lock()
		s.used, s.at = time.Now(), b.list.PushFront(s)
		b.used += s.size
		b.mu.Unlock()
	}
}
