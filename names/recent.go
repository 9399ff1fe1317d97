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
// It has two generations. When the young one is full, or older than recentTime, it becomes the old one, and what is asked again moves to the
// new young one. So names from a debug file that is installed later come after two times recentTime at most.
type recent struct {
	mu         sync.Mutex
	young, old map[place]profile.Name
	size       int       // about how many bytes young takes
	until      time.Time // when young becomes old
}

// A place is an offset in a module.
type place struct {
	path, buildID string
	off           uint64
}

const (
	recentBytes = 1 << 20
	recentTime  = 5 * time.Minute
)

// fill fills in names, and returns the indices of those that are not known.
func (r *recent) fill(m *unwind.Module, offs []uint64, names []profile.Name) (missing []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, off := range offs {
		p := place{m.Path, m.BuildID, off}
		name, ok := r.young[p]
		if !ok {
			if name, ok = r.old[p]; !ok {
				missing = append(missing, i)
				continue
			}
			r.add(p, name)
		}
		names[i] = name
	}
	return missing
}

// learn adds names, which must not change afterwards.
func (r *recent) learn(m *unwind.Module, offs []uint64, names []profile.Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, off := range offs {
		r.add(place{m.Path, m.BuildID, off}, names[i])
	}
}

// add adds a name. r.mu is held.
func (r *recent) add(p place, name profile.Name) {
	if now := time.Now(); r.young == nil || r.size > recentBytes || now.After(r.until) {
		r.young, r.old, r.size, r.until = map[place]profile.Name{}, r.young, 0, now.Add(recentTime)
	}
	r.young[p] = name
	r.size += 200 + len(name.Func) + len(name.Linkage)
	for i := range name.Source {
		s := &name.Source[i]
		r.size += 80 + len(s.Func) + len(s.Linkage) + len(s.File)
	}
}
