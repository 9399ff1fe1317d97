package ebpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/unspool/unspool/source"
)

// What a process and a user may take of what all share: the kernel's maps, and the time of the goroutine that fills them. What is
// beyond is not walked in the kernel, but copied. Other processes and users lose nothing but, while many copies wait, the ends of long copies of
// their own, which are counted (perfevent.Stats.Shortened).
const (
	maxRecords    = 1 << 12 // executable mappings that a process makes in a second
	maxUserMade   = 1 << 14 // that a user's processes make in a second, of those that make askAt
	askAt         = 1 << 8
	heavyMappings = 1 << 9 // of a process, so many that its space is not brought into the kernel each time one changes
	heavyEvery    = 100 * time.Millisecond
	userShare     = 8       // an eighth of the blocks of ranges that there is room for, but
	leastBlocks   = 1 << 12 // as many as a desktop has, if that is not more than half of them
	maxUserTables = 1 << 12 // of maxTables: a quarter
)

// bounds count what processes and users take.
type bounds struct {
	blocks  int            // of ranges that there is room for
	since   uint64         // under the tracker's lock, and so to flooded: when the second began
	made    map[int32]int  // executable mappings in it, by process
	by      map[uint32]int // by user
	out     map[int32]bool // processes whose mappings are dropped: until they have another program
	flooded map[int32]bool // those of which one was since the goroutine has looked

	// The goroutine's.
	partial map[int32]bool // processes whose mappings are not all known: not before they have another program
	late    map[int32]bool // heavy ones that have changed and wait
	shared  map[int32]uint64
	users   map[uint32]*user
}

// A user is who has processes: what their spaces take, and the most blocks.
type user struct{ blocks, tables, max int }

// start begins, with room for so many blocks.
func (b *bounds) start(blocks int) {
	b.blocks = blocks
	b.made, b.by, b.out, b.flooded = map[int32]int{}, map[uint32]int{}, map[int32]bool{}, map[int32]bool{}
	b.partial, b.late, b.shared, b.users = map[int32]bool{}, map[int32]bool{}, map[int32]uint64{}, map[uint32]*user{}
}

// admits says whether a record is to be kept, which came at a time.
func (b *bounds) admits(raw []byte, now uint64) bool {
	if len(raw) < 16 {
		return true
	}
	pid := int32(binary.LittleEndian.Uint32(raw[8:]))
	switch binary.LittleEndian.Uint32(raw) {
	case source.RecordMmap, source.RecordMmap2:
		if binary.LittleEndian.Uint16(raw[4:])&source.MiscAgain != 0 {
			return !b.out[pid] // not the process's doing
		}
	case source.RecordComm:
		if binary.LittleEndian.Uint16(raw[4:])&source.MiscCommExec != 0 {
			delete(b.out, pid)
		}
		return true
	case source.RecordExit:
		if len(raw) >= 20 && int32(binary.LittleEndian.Uint32(raw[16:])) == pid {
			delete(b.out, pid)
		}
		return true
	default:
		return true
	}
	if now-b.since > 1e9 {
		b.since = now
		clear(b.made)
		clear(b.by)
	}
	b.made[pid]++
	if n := b.made[pid]; n%askAt == 0 {
		uid := owner(pid)
		if b.by[uid] += askAt; n >= maxRecords || uid != 0 && b.by[uid] > maxUserMade {
			b.out[pid] = true
		}
	}
	if b.out[pid] {
		b.flooded[pid] = true
	}
	return !b.out[pid]
}

// owner returns who has a process; nobody's are those that have ended.
func owner(pid int32) uint32 {
	st, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return nobody
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nobody
	}
	return sys.Uid
}

const nobody = ^uint32(0)

// taken returns the processes of which records were dropped since it was called last.
func (b *bounds) taken() map[int32]bool {
	if len(b.flooded) == 0 {
		return nil
	}
	f := b.flooded
	b.flooded = map[int32]bool{}
	return f
}

// follow takes note of a record that changes which processes are known in part.
func (b *bounds) follow(r *source.Record) {
	switch {
	case r.Type == source.RecordComm && r.Exec(), r.Type == source.RecordExit && r.PID == r.TID:
		delete(b.partial, r.PID)
	case r.Type == source.RecordFork && r.PID != r.PPID:
		if delete(b.partial, r.PID); b.partial[r.PPID] {
			b.partial[r.PID] = true
		}
	}
}

// waits says whether a process with so many mappings, which have changed, has to wait.
func (b *bounds) waits(pid int32, mappings int, now uint64) bool {
	if mappings <= heavyMappings {
		delete(b.late, pid)
		return false
	}
	if now-b.shared[pid] < uint64(heavyEvery) {
		b.late[pid] = true
		return true
	}
	b.shared[pid] = now
	delete(b.late, pid)
	return false
}

// forget forgets a process.
func (b *bounds) forget(pid int32) {
	delete(b.late, pid)
	delete(b.shared, pid)
}

// of returns the user who has a process; nil for root and where it is not known, whom nothing bounds.
func (b *bounds) of(pid int32) *user {
	uid := owner(pid)
	if uid == 0 || uid == nobody {
		return nil
	}
	u := b.users[uid]
	if u == nil {
		u = &user{max: share(b.blocks)}
		b.users[uid] = u
	}
	return u
}

// share returns how many of the blocks a user may have.
func share(blocks int) int { return max(blocks/userShare, min(blocks/2, leastBlocks)) }

// fits takes blocks for a space of u's; false where that would be too many.
func (u *user) fits(blocks int) bool {
	if u == nil {
		return true
	}
	if u.blocks+blocks > u.max {
		return false
	}
	u.blocks += blocks
	return true
}

// release says that a table of u's is none any more.
func (u *user) release() {
	if u != nil {
		u.tables--
	}
}

// table takes one for u; false where that would be too many.
func (u *user) table() bool {
	if u == nil {
		return true
	}
	if u.tables >= maxUserTables {
		return false
	}
	u.tables++
	return true
}
