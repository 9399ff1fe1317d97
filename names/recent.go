package names

import (
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// recent has the names that a live profile had last. A machine's profile names the same few places again in each interval. Where memory has no
// room for open symbol tables, a whole one would be read for each of them.
//
// It has two generations. When the young one is full, it becomes the old one, and what is asked again moves to the new young one. A name is searched
// again after recentTime, because a debug file may have been installed; a place without a name after a minute.
type recent struct {
	mu         sync.Mutex
	young, old map[place]known
	size       int // about how many bytes young takes
}

// A place is an offset in a module.
type place struct {
	path, buildID string
	off           uint64
}

// A known is a name, and until when it holds.
type known struct {
	profile.Name
	until time.Time
}

const (
	recentBytes  = 1 << 20
	recentTime   = 10 * time.Minute
	namelessTime = time.Minute
)

// fill fills in names, and returns the indices of those that are not known.
func (r *recent) fill(m *unwind.Module, offs []uint64, names []profile.Name) (missing []int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, off := range offs {
		p := place{m.Path, m.BuildID, off}
		name, young := r.young[p]
		if !young {
			name = r.old[p]
		}
		if !now.Before(name.until) {
			missing = append(missing, i)
			continue
		}
		if !young {
			r.add(p, name)
		}
		names[i] = name.Name
	}
	return missing
}

// learn adds names, which must not change afterwards.
func (r *recent) learn(m *unwind.Module, offs []uint64, names []profile.Name) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, off := range offs {
		hold := recentTime
		if names[i].Func == "" {
			hold = namelessTime
		}
		r.add(place{m.Path, m.BuildID, off}, known{names[i], now.Add(hold)})
	}
}

// add adds a name. r.mu is held.
func (r *recent) add(p place, name known) {
	if r.young == nil || r.size > recentBytes {
		r.young, r.old, r.size = map[place]known{}, r.young, 0
	}
	r.young[p] = name
	r.size += 200 + len(name.Func) + len(name.Linkage)
	for i := range name.Source {
		s := &name.Source[i]
		r.size += 80 + len(s.Func) + len(s.Linkage) + len(s.File)
	}
}
