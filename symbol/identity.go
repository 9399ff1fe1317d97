package symbol

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/symbol/debuginfo"
)

// An Identity stands for all that the answers of a Table are made of.
type Identity struct {
	BuildID string            // of the module, in hex
	Sum     [sha256.Size]byte // of this program and of the files that names come from, as they were when they were opened
}

// Identity opens the module's file and its debug file, and returns what the answers to Resolve are made of; with lines, also those to Places.
// While it is the same, answers given before are still right: an installed debug file changes it. ok is false if the answers may not be kept: others
// could change a file, there is something to note, or debug information names further files.
func (t *Table) Identity(lines bool) (id Identity, ok bool) {
	t.enter()
	defer t.leave()
	if t.closed || t.img == nil || t.given != nil {
		return id, false
	}
	if lines {
		t.lined.Do(t.findLines)
	}
	t.owning.Lock()
	debug, notes := t.debug, t.note != "" || t.noted || t.links || t.shared || t.replaced
	if t.info != nil {
		notes = notes || len(t.info.Notes()) > 0
	}
	had := t.made[lines]
	t.owning.Unlock()
	if notes {
		return id, false
	}
	if had != nil {
		return *had, true
	}
	key := program()
	if key == nil {
		return id, false
	}
	key = slices.Clone(key)
	for _, img := range []*module.Image{t.img, debug} {
		if img == nil {
			key = append(key, 0)
			continue
		}
		file, ok := debuginfo.Kept(img)
		if !ok {
			return id, false
		}
		key = append(append(key, 1), file...)
	}
	if lines {
		key = append(key, 1)
	}
	id = Identity{t.buildID(), sha256.Sum256(key)}
	t.owning.Lock()
	if t.made == nil {
		t.made = map[bool]*Identity{}
	}
	t.made[lines] = &id
	t.owning.Unlock()
	return id, true
}

// program identifies this program: another one may demangle otherwise, or read more. nil: it is not known.
var program = sync.OnceValue(func() []byte {
	var st unix.Stat_t
	if unix.Stat("/proc/self/exe", &st) != nil { // it leads to the inode that runs, also where the path has another by now
		return nil
	}
	var b []byte
	for _, v := range []uint64{uint64(st.Dev), st.Ino, uint64(st.Size), uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
})
