package jit

import (
	"errors"
	"sync"
)

// maxHeld is how many bytes the unwind information of all processes takes together: any user can write dumps, under many names and in many
// processes. A thousand functions of CPython take 0.2 MB.
const maxHeld = 128 << 20

// entryBytes is what an entry takes while it is read, without its place in the tree: itself, bounds, order and index.
const entryBytes = 192

var errHeld = errors.New("it has not been read: unwind information of this user's processes would take more than what is left of 128 MiB for all others")

// held is what is taken of maxHeld. A user takes no more than is left: the first one half, the next one half of the rest. So there is room for a user
// who comes last.
var held struct {
	sync.Mutex
	all   int64 // bytes
	users map[int64]int64
}

// A Charge is what a process's unwind information takes. It is safe for concurrent use.
type Charge struct {
	user int64
	n    int64 // under held
}

// nobody stands for the users of processes that have gone before they were seen.
const nobody = -1

// Charge returns a charge of the process's user.
func (p *Process) Charge() *Charge {
	if !p.seen {
		return &Charge{user: nobody}
	}
	return &Charge{user: int64(p.uid)}
}

// Take takes n bytes more, if there are so many for the user. A nil Charge has no bound.
func (c *Charge) Take(n int64) bool {
	if c == nil {
		return true
	}
	held.Lock()
	defer held.Unlock()
	if held.users[c.user]+n > maxHeld-held.all-n {
		return false
	}
	if held.users == nil {
		held.users = map[int64]int64{}
	}
	held.all += n
	held.users[c.user] += n
	c.n += n
	return true
}

// Release gives all of it back.
func (c *Charge) Release() {
	if c == nil {
		return
	}
	held.Lock()
	defer held.Unlock()
	if c.n == 0 {
		return
	}
	held.all -= c.n
	if held.users[c.user] -= c.n; held.users[c.user] == 0 {
		delete(held.users, c.user)
	}
	c.n = 0
}
