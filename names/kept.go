package names

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// When a recording ends, the names and lines of what was sampled are kept: a program that is built again in place takes them with it. A file of
// the cache, names-BUILDID, has those of one module. Where others could change the module's file, which then can have any build ID, a hash of
// its path is part of the name, and they are for modules at that path only.

// A keptModule has the names of places in one module, by offset in its file.
type keptModule struct {
	path, id string
	own      bool // only root and this user could change the file
	at       map[uint64]profile.Name
}

// Bounds of what is kept.
const (
	maxKeptPlaces = 1 << 17   // of a module
	maxKeptFile   = 64 << 20  // bytes
	maxKeptFiles  = 256 << 20 // bytes of all files in the cache; those go first that were not used for longest
	maxRecalled   = 1 << 8    // modules whose kept names are remembered
	keptPrefix    = "names-"
	keptMagic     = "unspnam1"
)

// add takes in names that were found; those without a function say nothing.
func (k *keptModule) add(offs []uint64, names []profile.Name) {
	for i, off := range offs {
		if names[i].Func != "" && (len(k.at) < maxKeptPlaces || k.at[off].Func != "") {
			k.at[off] = names[i]
		}
	}
}

// fill fills in the names that are missing.
func (k *keptModule) fill(offs []uint64, names []profile.Name, source bool) {
	for i, off := range offs {
		if n, ok := k.at[off]; ok && names[i].Func == "" {
			if names[i] = n; !source {
				names[i].Source = nil
			}
		}
	}
}

// keptName returns what a module's file in the cache is called; "" where it has none.
func keptName(m *unwind.Module, own bool) string {
	if id, err := hex.DecodeString(m.BuildID); err != nil || len(id) < 4 || len(id) > 64 {
		return ""
	}
	if own {
		return keptPrefix + m.BuildID
	}
	sum := sha256.Sum256([]byte(m.Path))
	return keptPrefix + m.BuildID + "-" + hex.EncodeToString(sum[:8])
}

// Collect makes the Namer remember all names that it gives from now on, for Save and Export.
func (n *Namer) Collect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = map[*unwind.Module]*keptModule{}
}

// collect remembers names that were found in the file of m.
func (n *Namer) collect(m *unwind.Module, own bool, offs []uint64, names []profile.Name) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil {
		return
	}
	if m.PID != 0 { // the same however often it is asked for
		for other := range n.kept {
			if other.PID == m.PID {
				m = other
			}
		}
	}
	k := n.kept[m]
	if k == nil {
		k = &keptModule{path: m.Path, id: m.ID(), own: own, at: map[uint64]profile.Name{}}
		n.kept[m] = k
	}
	k.add(offs, names)
}

// key tells the modules of a recording apart: by build ID, or else by path; code that a process made has its PID for one.
func (k *keptModule) key() string {
	if k.id != "" {
		return k.id
	}
	return "path " + k.path
}

// madeBy stands for the module of code that a process made, in which offsets are addresses; the kernel's is that of PID -1.
func madeBy(pid int32) *unwind.Module {
	return &unwind.Module{Path: fmt.Sprint("//made by ", pid), PID: pid}
}

// inRecording fills in names that the recording brought with it.
func (n *Namer) inRecording(m *unwind.Module, offs []uint64, names []profile.Name) {
	if n.inside == nil {
		return
	}
	if m.PID != 0 {
		m = madeBy(m.PID)
	}
	if k := n.inside[(&keptModule{path: m.Path, id: m.ID()}).key()]; k != nil {
		k.fill(offs, names, n.Lines)
	}
}

// Import takes the names that Export put into a recording; b may be empty. Call it before the first use. If the names are damaged, Import
// returns an error and takes none.
func (n *Namer) Import(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	mods, err := decodeKept(b)
	n.inside = map[string]*keptModule{}
	for _, k := range mods {
		n.inside[k.key()] = k
	}
	return err
}

// Export returns all collected names, to be put into a recording. Modules that a reader cannot tell apart become one.
func (n *Namer) Export() []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := map[string]*keptModule{}
	for _, k := range n.kept {
		have := all[k.key()]
		if have == nil {
			have = &keptModule{path: k.path, id: k.id, at: map[uint64]profile.Name{}}
			all[k.key()] = have
		}
		maps.Copy(have.at, k.at)
	}
	var list []*keptModule
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[key])
	}
	return encodeKept(list)
}

// recall fills in names of a module whose file is gone, or is another by now.
func (n *Namer) recall(m *unwind.Module, offs []uint64, names []profile.Name) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cache == "" {
		return
	}
	old, ok := n.recalled[m]
	if !ok {
		for _, own := range []bool{true, false} {
			if name := keptName(m, own); name != "" && old == nil {
				old = loadKept(filepath.Join(n.cache, name))
			}
		}
		if n.recalled == nil || len(n.recalled) >= maxRecalled {
			n.recalled = map[*unwind.Module]*keptModule{}
		}
		n.recalled[m] = old
	}
	if old != nil {
		old.fill(offs, names, n.Lines)
	}
}

// Save writes the collected names to the cache, and removes the least recently used ones. A failure costs only names.
func (n *Namer) Save() {
	if n.cache == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for m, k := range n.kept {
		name := keptName(m, k.own)
		if name == "" || len(k.at) == 0 {
			continue
		}
		path := filepath.Join(n.cache, name)
		all := *k
		if old := loadKept(path); old != nil {
			all.at = old.at
			offs := slices.Sorted(maps.Keys(k.at))
			names := make([]profile.Name, len(offs))
			for i, off := range offs {
				names[i] = k.at[off]
			}
			all.add(offs, names)
		}
		kept.Write(path, encodeKept([]*keptModule{&all}))
	}
	kept.Prune(n.cache, keptPrefix, maxKeptFiles)
}

// loadKept reads a file of the cache; nil where there is none that can be read.
func loadKept(path string) *keptModule {
	b, err := kept.Read(path, maxKeptFile)
	if err != nil {
		return nil
	}
	mods, err := decodeKept(b)
	if err != nil || len(mods) != 1 {
		return nil
	}
	return mods[0]
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeKept writes modules: a magic number, the CRC-32C of what follows, the strings, and for each module its path and build ID, and its places by
// ascending offset. All numbers are varints, strings are numbers of them.
func encodeKept(mods []*keptModule) []byte {
	numbers, list := map[string]uint64{}, []string{}
	var body []byte
	num := func(v uint64) { body = binary.AppendUvarint(body, v) }
	str := func(s string) {
		n, ok := numbers[s]
		if !ok {
			n = uint64(len(list))
			numbers[s], list = n, append(list, s)
		}
		num(n)
	}
	num(uint64(len(mods)))
	for _, m := range mods {
		str(m.path)
		str(m.id)
		num(uint64(len(m.at)))
		last := uint64(0)
		for _, off := range slices.Sorted(maps.Keys(m.at)) {
			n := m.at[off]
			num(off - last)
			last = off
			str(n.Func)
			str(n.Linkage)
			str(n.Module)
			num(n.Start)
			num(uint64(len(n.Source)))
			for _, s := range n.Source {
				str(s.Func)
				str(s.Linkage)
				str(s.File)
				num(uint64(s.Line))
				num(uint64(s.Column))
			}
		}
	}
	b := make([]byte, 12)
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, s := range list {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	b = append(b, body...)
	return sealKept(b)
}

// sealKept puts in what comes first.
func sealKept(b []byte) []byte {
	copy(b, keptMagic)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
	return b
}

var errKept = errors.New("names that cannot be read")

// maxKeptRoom bounds what is made of names, in units of the 16 bytes that a string takes: 2 million places, or 4 million lines.
const maxKeptRoom = 1 << 25

// decodeKept reads what encodeKept wrote. What it allocates is bounded: an item of a byte or two can take a hundred times as much.
func decodeKept(b []byte) (mods []*keptModule, err error) {
	if len(b) < 12 || !bytes.HasPrefix(b, []byte(keptMagic)) || binary.LittleEndian.Uint32(b[8:]) != crc32.Checksum(b[12:], castagnoli) {
		return nil, errKept
	}
	b = b[12:]
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err, b = errKept, nil
			return 0
		}
		b = b[n:]
		return v
	}
	count := func() int { // of what takes a byte each, at least
		if n := num(); n <= uint64(len(b)) {
			return int(n)
		}
		err = cmp.Or(err, errKept)
		return 0
	}
	room := maxKeptRoom
	items := func(cost int) int { // of what takes so much room each
		n := count()
		if n > room/cost {
			err = cmp.Or(err, errKept)
			return 0
		}
		room -= n * cost
		return n
	}
	list := make([]string, items(1))
	for i := range list {
		n := count()
		list[i] = strings.Clone(string(b[:n]))
		b = b[n:]
	}
	str := func() string {
		if n := num(); n < uint64(len(list)) {
			return list[n]
		}
		err = cmp.Or(err, errKept)
		return ""
	}
	for n := items(64); n > 0 && err == nil; n-- {
		m := &keptModule{path: str(), id: str(), at: map[uint64]profile.Name{}}
		off := uint64(0)
		for k := items(16); k > 0 && err == nil; k-- {
			off += num()
			x := profile.Name{Func: str(), Linkage: str(), Module: str(), Start: num()}
			for s := items(8); s > 0 && err == nil; s-- {
				x.Source = append(x.Source, profile.Source{Func: str(), Linkage: str(), File: str(), Line: uint32(num()), Column: uint32(num())})
			}
			m.at[off] = x
		}
		mods = append(mods, m)
	}
	if err != nil {
		return nil, err
	}
	return mods, nil
}
