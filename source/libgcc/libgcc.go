// Package libgcc reads the unwind information that a process has registered with libgcc: by __register_frame and the functions like it. Programs
// that make code while they run call these functions, so that exceptions pass through that code. Memory of the process comes in; rows of the
// registered code go out.
//
// The registry is a static variable of libgcc, and stripped files do not name it. Read therefore tries each word of the file's writable memory,
// and believes a word only if all of what it leads to has the layout of a registry, and describes code that is no file's. Two layouts are known:
//
//   - a list of objects, the newest first (up to GCC 12, and on machines without the atomic operations for the tree);
//   - a B-tree from ranges of code to objects (since GCC 13).
//
// An object is .eh_frame of some code up to a terminator, or an array of such.
package libgcc

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source/gdbjit"
	"github.com/unspool/unspool/unwind"
)

// A Memory reads memory of a process from an address on, and says whether all of b is there.
type Memory = gdbjit.Memory

// A Range is [Lo, Hi) in a process.
type Range struct{ Lo, Hi uint64 }

// Bounds on what a process can have registered, and on the search.
const (
	maxData    = 1 << 20  // bytes of a file's writable memory
	maxObjects = 1 << 15  // of a registry
	maxRegions = 1 << 16  // of all objects that are tried
	maxBytes   = 16 << 20 // of all unwind information that is tried
	maxEntry   = 1 << 20  // bytes of a CIE or FDE
	maxDepth   = 16       // of the tree
	maxReads   = 1 << 18  // objects and nodes that are read, of all words that are tried
	maxTries   = 3        // how often a registry that changes is read
)

// Data returns the parts of a file's writable memory, at link time, where a registry can begin: the variables of a file that names them, and all
// writable memory of a library with libgcc's functions. alone says that the process has no other file: then its writable memory is searched even if
// the file has no symbols. nil: the file has no registry.
func Data(img *module.Image, alone bool) (data []unwind.Range) {
	exports, named := false, false
	for _, dynamic := range []bool{true, false} {
		t, _ := img.SymbolTable(dynamic)
		if dynamic && t.Len() > maxExports {
			named = true
			continue
		}
		for i := 0; i < t.Len() && !exports; i++ {
			e := t.At(i)
			if !e.Section.Defined() {
				continue
			}
			switch named = true; {
			case dynamic:
				exports = e.Kind == module.Func && t.Name(e) == "__register_frame_info"
			case e.Kind == module.Object && e.Bind == module.Local && e.Size <= maxVariable && variables[t.Name(e)]:
				data = append(data, unwind.Range{Lo: arch.Vaddr(e.Value), Hi: arch.Vaddr(e.Value + e.Size)})
			}
		}
	}
	if data != nil || !exports && (named || !alone) {
		return data
	}
	size := uint64(0)
	for _, s := range img.Segments() {
		if s.Kind == module.Loaded && s.Perm&module.Write != 0 {
			n := min(s.MemSize, maxData-size, -uint64(s.Vaddr)-1)
			size += n
			data = append(data, unwind.Range{Lo: s.Vaddr, Hi: s.Vaddr + arch.Vaddr(n)})
		}
	}
	return data
}

// maxVariable is the size of the largest of variables: three words. maxExports is how many symbols a library with libgcc's functions may have for others:
// libgcc_s has 200, and to read the names of 40,000, as libLLVM has, takes 10 ms.
const (
	maxVariable = 24
	maxExports  = 1 << 12
)

// variables are the names of the variables where a registry begins.
var variables = map[string]bool{"unseen_objects": true, "seen_objects": true, "registered_frames": true}

// Read returns the rows of the code that is registered in the registries that begin in data. made says whether a range of memory has executable memory
// that is no file's: of other code, the files know more. err says what could not be read; the rows are good all the same. The process may run meanwhile: a
// registry that changes is read again.
func Read(m *arch.Machine, mem Memory, data []Range, made func(lo, hi arch.Addr) bool) (tables []*rows.Table, err error) {
	for range maxTries {
		r := newReader(m, mem, made)
		if r.search(data); r.steady() {
			return r.tables, r.err()
		}
		tables = r.tables
	}
	return tables, errors.New("libgcc's registry of unwind information changes while it is read")
}

// A reader reads registries.
type reader struct {
	machine *arch.Machine
	mem     Memory
	made    func(lo, hi arch.Addr) bool
	order   binary.ByteOrder
	word    uint64 // bytes of an address

	scratch []byte
	room    int             // bytes of unwind information that may be read yet
	regions int             // that may be read yet
	reads   int             // objects and nodes that may be read yet
	known   map[uint64]bool // objects whose rows are in tables
	roots   []root          // that are believed
	tables  []*rows.Table
	bad     []error
}

// A root is a word where a registry begins, and the objects in it.
type root struct {
	at      uint64
	walk    func(r *reader, from uint64) ([]object, error)
	objects []object
}

// An object is what one call has registered.
type object struct {
	at           uint64
	text, data   uint64 // bases of relative pointers
	from         uint64 // the address of .eh_frame, or of an array of such addresses
	array        bool
	vector, next uint64
}

func newReader(m *arch.Machine, mem Memory, made func(lo, hi arch.Addr) bool) *reader {
	r := &reader{machine: m, mem: mem, made: made, order: binary.LittleEndian, word: m.WordSize(), room: maxBytes, regions: maxRegions, reads: maxReads, known: map[uint64]bool{}}
	if m.BigEndian {
		r.order = binary.BigEndian
	}
	return r
}

// field returns address i of an array.
func (r *reader) field(b []byte, i int) uint64 {
	if r.word == 4 {
		return uint64(r.order.Uint32(b[4*i:]))
	}
	return r.order.Uint64(b[8*i:])
}

// read reads an object or a node, while that is permitted: words that lead to one list at many places would take its length each.
func (r *reader) read(at uint64, b []byte) bool {
	if r.reads == 0 || !r.mem(at, b) {
		return false
	}
	r.reads--
	return true
}

// pointer reads an address.
func (r *reader) pointer(at uint64) (uint64, bool) {
	var b [8]byte
	if !r.mem(at, b[:r.word]) {
		return 0, false
	}
	return r.field(b[:], 0), true
}

// search finds the registries that begin in data.
func (r *reader) search(data []Range) {
	tried := map[uint64]bool{0: true}
	var page [4096]byte
	for _, d := range data {
		for at := (d.Lo + r.word - 1) &^ (r.word - 1); at < d.Hi; {
			b := page[:min(d.Hi-at, 4096-at%4096)]
			if r.mem(at, b) {
				for i := range len(b) / int(r.word) {
					if v := r.field(b, i); v%r.word == 0 && !tried[v] {
						tried[v] = true
						r.try(at+uint64(i)*r.word, v)
					}
				}
			}
			at += uint64(len(b))
		}
	}
}

// try believes the word at an address if it leads to a registry.
func (r *reader) try(at, v uint64) {
	for _, walk := range []func(*reader, uint64) ([]object, error){(*reader).list, (*reader).tree} {
		objects, err := walk(r, v)
		tables, bad := r.rows(objects)
		if len(tables) == 0 {
			continue
		}
		r.tables = append(r.tables, tables...)
		r.roots = append(r.roots, root{at, walk, objects})
		for i := range objects {
			r.known[objects[i].at] = true
		}
		if err != nil {
			r.bad = append(r.bad, err)
		}
		r.bad = append(r.bad, bad...)
		return
	}
}

// steady says whether the registries are what they were when they were read.
func (r *reader) steady() bool {
	r.reads = maxReads
	for _, x := range r.roots {
		v, ok := r.pointer(x.at)
		if !ok {
			return false
		}
		if again, _ := x.walk(r, v); !slices.Equal(again, x.objects) {
			return false
		}
	}
	return true
}

func (r *reader) err() error {
	if len(r.bad) > 1 {
		return fmt.Errorf("libgcc's registry of unwind information: %w; and %d more", r.bad[0], len(r.bad)-1)
	}
	if len(r.bad) == 1 {
		return fmt.Errorf("libgcc's registry of unwind information: %w", r.bad[0])
	}
	return nil
}

// object reads an object: six words, of which the fifth has flags, the encoding of its pointers and a number of FDEs, as a C compiler lays out
// bit fields.
func (r *reader) object(at uint64) (o object, ok bool) {
	var buf [6 * 8]byte
	b := buf[:6*r.word]
	if at == 0 || at%r.word != 0 || !r.read(at, b) {
		return o, false
	}
	flags := r.order.Uint32(b[4*r.word:])
	sorted, array, encoding := flags&1 != 0, flags&2 != 0, flags>>3&0xff
	if r.machine.BigEndian {
		sorted, array, encoding = flags>>31 != 0, flags>>30&1 != 0, flags>>21&0xff
	}
	if r.word == 8 && r.order.Uint32(b[4*r.word+4:]) != 0 || !known(encoding) {
		return o, false
	}
	o = object{at: at, text: r.field(b, 1), data: r.field(b, 2), from: r.field(b, 3), array: array, next: r.field(b, 5)}
	if sorted { // into a vector that begins with what was registered
		o.vector = o.from
		if o.from, ok = r.pointer(o.vector); !ok {
			return o, false
		}
	}
	return o, o.from != 0
}

// known says whether an encoding of pointers is one (LSB core 5.0, section 10.5.1).
func known(encoding uint32) bool {
	low := encoding & 0x0f
	return encoding == dwarf.DW_EH_PE_omit || (low <= dwarf.DW_EH_PE_udata8 || low >= dwarf.DW_EH_PE_sleb128 && low <= dwarf.DW_EH_PE_sdata8) && encoding&0x70 <= dwarf.DW_EH_PE_aligned
}

// list returns the objects of a list.
func (r *reader) list(at uint64) (out []object, err error) {
	seen := map[uint64]bool{}
	for at != 0 {
		if seen[at] || len(out) == maxObjects {
			return out, fmt.Errorf("the list does not end after %d objects", len(out))
		}
		seen[at] = true
		o, ok := r.object(at)
		if !ok {
			return out, fmt.Errorf("object %d of the list, at %#x, is none", len(out), at)
		}
		out = append(out, o)
		at = o.next
	}
	return out, nil
}

// Nodes of a tree: a lock of one word, a number of entries, a type, and entries. Those of a leaf have a start, a size and an object, those of
// other nodes the last address below a child, and the child.
const (
	inner    = 0
	leaf     = 1
	maxInner = 15
	maxLeaf  = 10
)

// tree returns the objects of a tree whose root is at an address.
func (r *reader) tree(at uint64) (out []object, err error) {
	seen, nodes := map[uint64]bool{}, 0
	// Keys grow from left to right, and none is above that of the parent's entry.
	last := uint64(0)
	var visit func(at, most uint64, depth int) error
	visit = func(at, most uint64, depth int) error {
		nodes++
		var buf [2*8 + 3*8*maxLeaf]byte
		head := int(r.word) + 8
		b := buf[:head+int(r.word)*3*maxLeaf]
		if at == 0 || at%r.word != 0 || depth > maxDepth || nodes > maxObjects || !r.read(at, b) {
			return fmt.Errorf("the node of the tree at %#x is none", at)
		}
		n, kind := int(r.order.Uint32(b[r.word:])), r.order.Uint32(b[r.word+4:])
		b = b[head:]
		if kind > leaf || n < 0 || kind == inner && n > maxInner || kind == leaf && n > maxLeaf || n == 0 && depth > 0 {
			return fmt.Errorf("the node of the tree at %#x has %d entries of type %d", at, n, kind)
		}
		for i := range n {
			if kind == inner {
				key, child := r.field(b, 2*i), r.field(b, 2*i+1)
				if key < last || key > most {
					return fmt.Errorf("the node of the tree at %#x is not in order", at)
				}
				if err := visit(child, key, depth+1); err != nil {
					return err
				}
				continue
			}
			lo, size, ob := r.field(b, 3*i), r.field(b, 3*i+1), r.field(b, 3*i+2)
			if lo < last || size == 0 || lo+size-1 < lo || lo+size-1 > most {
				return fmt.Errorf("the node of the tree at %#x is not in order", at)
			}
			if last = lo + size; last == 0 {
				last = ^uint64(0)
			}
			if seen[ob] {
				continue // also by the address of its unwind information
			}
			o, ok := r.object(ob)
			if !ok || len(out) == maxObjects {
				return fmt.Errorf("object %d of the tree, at %#x, is none", len(out), ob)
			}
			seen[ob] = true
			o.next = 0 // the tree does not use it
			out = append(out, o)
		}
		return nil
	}
	err = visit(at, ^uint64(0), 0)
	return out, err
}

// rows returns the rows of objects that are not known yet; none if they describe no code that is no file's.
func (r *reader) rows(objects []object) (tables []*rows.Table, bad []error) {
	var sections []dwarf.Section
	build := func(o *object) {
		f := dwarf.New(dwarf.Sections{
			Machine: r.machine, Order: r.order, AddrSize: int(r.word), EHFrame: sections, Text: arch.Vaddr(o.text), GOT: arch.Vaddr(o.data),
			Memory: func(at arch.Vaddr, n int) ([]byte, bool) {
				b := make([]byte, min(n, 16))
				return b, n <= len(b) && r.mem(uint64(at), b)
			},
		})
		t, damage := f.Build(dwarf.EHFrame)
		for _, d := range damage {
			bad = append(bad, d)
		}
		for c := range code(t) {
			if r.made(c.Lo, c.Hi) {
				tables = append(tables, t)
				break
			}
		}
		sections = nil
	}
	objects = slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return r.known[o.at] })
	for i := range objects {
		o := &objects[i]
		found, err := r.sections(o)
		if err != nil {
			bad = append(bad, fmt.Errorf("object at %#x: %w", o.at, err))
		}
		sections = append(sections, found...)
		if errors.Is(err, errLarge) { // so are all that follow
			build(o)
			break
		}
		if i+1 == len(objects) || len(sections) >= maxTable || objects[i+1].text != o.text || objects[i+1].data != o.data {
			build(o)
		}
	}
	return tables, bad
}

// maxTable is how many sections a table is made of, and a few more: to join many takes long.
const maxTable = 64

// code yields the pieces of code that have rows, in order.
func code(t *rows.Table) func(yield func(unwind.Mapping) bool) {
	return func(yield func(unwind.Mapping) bool) {
		for i := 0; i+1 < len(t.Rows); i++ {
			if t.Rows[i].Set == rows.GapID {
				continue
			}
			lo := t.Rows[i].Lo
			for i+1 < len(t.Rows) && t.Rows[i].Set != rows.GapID {
				i++
			}
			if !yield(unwind.Mapping{Lo: arch.Addr(lo), Hi: arch.Addr(t.Rows[i].Lo), Off: uint64(lo)}) {
				return
			}
		}
	}
}

// sections reads the unwind information of an object.
func (r *reader) sections(o *object) (out []dwarf.Section, err error) {
	if !o.array {
		s, err := r.section(o.from)
		return []dwarf.Section{s}, err
	}
	for at := o.from; ; at += r.word {
		from, ok := r.pointer(at)
		if !ok {
			return out, fmt.Errorf("the array at %#x: %w", o.from, errUnreadable)
		}
		if from == 0 {
			return out, nil
		}
		s, err := r.section(from)
		if err != nil {
			return out, err
		}
		out = append(out, s)
	}
}

var errUnreadable = errors.New("unreadable")

// section reads .eh_frame from an address on, up to its terminator. If its first FDE's CIE lies before it, as when single FDEs are registered, the
// section begins there.
func (r *reader) section(from uint64) (dwarf.Section, error) {
	if r.regions--; r.regions < 0 {
		return dwarf.Section{}, errLarge
	}
	b := buffer{r: r, at: from, b: r.scratch[:0]}
	defer func() { r.scratch = b.b }()
	s := dwarf.Section{Name: fmt.Sprintf(".eh_frame at %#x", from), Addr: arch.Vaddr(from)}
	first, end, err := from, 0, error(nil)
	for {
		var head, entry []byte
		if head, err = b.bytes(end, 4); err != nil {
			break
		}
		size := uint64(r.order.Uint32(head))
		if size == 0 {
			break
		}
		if size < 4 || size > maxEntry {
			err = fmt.Errorf("an entry of %d bytes", size)
			break
		}
		if entry, err = b.bytes(end+4, int(size)); err != nil {
			break
		}
		if id := uint64(r.order.Uint32(entry)); id != 0 {
			first = min(first, from+uint64(end)+4-id)
		}
		end += 4 + int(size)
	}
	if err != nil {
		err = fmt.Errorf("%s+%#x: %w", s.Name, end, err)
	}
	s.Data = slices.Clone(b.b[:end])
	r.room -= end
	if before := from - first; before > 0 && before <= maxEntry {
		if in := r.chain(first, before); in != nil {
			s.Addr, s.Data = arch.Vaddr(first), append(in, s.Data...)
		}
	}
	return s, err
}

// chain returns the entries from an address on, if they take n bytes together.
func (r *reader) chain(at, n uint64) []byte {
	if uint64(r.room) < n {
		return nil
	}
	all := make([]byte, n)
	if !r.mem(at, all) {
		return nil
	}
	r.room -= int(n)
	for off := uint64(0); off != n; {
		if n-off < 4 {
			return nil
		}
		size := uint64(r.order.Uint32(all[off:]))
		if size == 0 || size > n-off-4 {
			return nil
		}
		off += 4 + size
	}
	return all
}

// A buffer has memory from an address on. It grows by pages.
type buffer struct {
	r  *reader
	at uint64
	b  []byte
}

var errLarge = errors.New("too large")

// bytes returns n bytes at an offset.
func (b *buffer) bytes(off, n int) ([]byte, error) {
	if off+n > b.r.room {
		return nil, errLarge
	}
	for len(b.b) < off+n {
		next, old := b.at+uint64(len(b.b)), len(b.b)
		b.b = slices.Grow(b.b, 4096)[:old+int(4096-next%4096)]
		if next < b.at || !b.r.mem(next, b.b[old:]) {
			b.b = b.b[:old]
			return nil, errUnreadable
		}
	}
	return b.b[off:][:n], nil
}

// Splice returns mappings with registered code in place of the memory that is no file's. made says which mappings are of such memory. The new
// modules are of a process, 0 for a core's, and have the path of such memory.
func Splice(maps []unwind.Mapping, tables []*rows.Table, m *arch.Machine, made func(*unwind.Mapping) bool, path string, pid int32) []unwind.Mapping {
	maps = slices.SortedFunc(slices.Values(maps), func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	var all []unwind.Mapping
	for _, t := range tables {
		rest := maps
		mod := unwind.NewModule(path, "", func(*unwind.Module) *unwind.Code {
			return &unwind.Code{Machine: m, Stepper: rows.Interp{Table: t}, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true }}
		})
		mod.PID = pid
		for c := range code(t) {
			for len(rest) > 0 && rest[0].Hi <= c.Lo {
				rest = rest[1:]
			}
			for i := 0; i < len(rest) && rest[i].Lo < c.Hi; i++ {
				lo, hi := max(c.Lo, rest[i].Lo), min(c.Hi, rest[i].Hi)
				all = append(all, unwind.Mapping{Lo: lo, Hi: hi, Off: uint64(lo), Module: mod})
			}
		}
	}
	return gdbjit.Insert(maps, all, made)
}
