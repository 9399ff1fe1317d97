package names

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"unsafe"

	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// Reading symbols, demangling them, and running line tables is a third of the time of a report. So the answers for a module's offsets are kept,
// nameless ones, too, with the identity of all that they were made of: the next report of the same code reads one file a module. The file is used
// as it is, and its strings are those of the names.
//
// A file of the cache is called answers-BUILDID-SUM, or answers-BUILDID-SUM-lines. SUM is the beginning of its identity, in hex: a build ID has
// several, such as with a debug file and without. It has, little-endian:
//
//	8      magic number
//	u32    CRC-32C of what follows
//	u32    0
//	32     identity: symbol.Identity.Sum
//	5*u32  how many places, functions, sources and strings there are, and bytes of text; u32 0
//	u64    for each place: its offset, ascending
//	u32    for each place: its function
//	u32    for each place: where its sources begin; and their number
//	16     for each function: u64 Start, u32 Func, u32 Linkage
//	20     for each source: u32 Func, Linkage, File, Line, Column
//	u32    for each string: where it begins in the text; and the text's length
//	...    text
//
// Strings are numbers of strings.
const (
	answersMagic  = "unspans1"
	answersPrefix = "answers-"
	answersHead   = 8 + 4 + 4 + 32 + 6*4

	// Bounds of a file; of all files that a Namer has read; of what a Namer adds, in places and sources, and in bytes of their text; and of all files
	// in the cache: those go first that were not used for longest.
	maxAnswers    = 16 << 20
	maxAnswersIn  = 64 << 20
	maxAnswersNew = 1 << 18
	maxNewText    = 64 << 20
	maxAnswersAll = 256 << 20
)

// answers has the names of places of one module.
type answers struct {
	id   symbol.Identity
	path string
	load sync.Once
	had  *answerFile // nil: there was none
	new  [][]answer  // as they were found
}

// An answer is the name of the place at an offset.
type answer struct {
	off  uint64
	name *profile.Name
}

// keeps says whether answers are kept in the cache.
func (n *Namer) keeps() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cache != "" && (n.recorded || n.kept != nil)
}

// answersOf returns what is known of a module; nil where nothing may be kept.
func (n *Namer) answersOf(m *unwind.Module, t *symbol.Table) *answers {
	if !n.keeps() {
		return nil
	}
	id, ok := t.Identity(n.Lines)
	if !ok {
		return nil
	}
	n.mu.Lock()
	a := n.answers[id]
	if a == nil {
		name := answersPrefix + id.BuildID + "-" + hex.EncodeToString(id.Sum[:4])
		if n.Lines {
			name += "-lines"
		}
		a = &answers{id: id, path: filepath.Join(n.cache, name)}
		n.answers[id] = a
	}
	n.mu.Unlock()
	a.load.Do(func() {
		b, err := kept.Read(a.path, maxAnswers)
		if err != nil {
			return
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.answered+len(b) > maxAnswersIn {
			return
		}
		if a.had = readAnswers(b, &id.Sum); a.had != nil {
			n.answered += len(b)
		}
	})
	return a
}

// remember adds names to a, if they are still made of the same. They must not change afterwards.
func (n *Namer) remember(a *answers, t *symbol.Table, offs []uint64, names []profile.Name) {
	if id, ok := t.Identity(n.Lines); !ok || id != a.id {
		return
	}
	n.learn(a, offs, names)
}

// learn adds names to a, while there is room.
func (n *Namer) learn(a *answers, offs []uint64, names []profile.Name) {
	list, cost, text, last := make([]answer, len(offs)), len(offs), 0, new(profile.Name)
	for i, off := range offs {
		x := &names[i]
		list[i] = answer{off, x}
		cost += len(x.Source)
		if x.Start != last.Start || x.Func != last.Func || x.Linkage != last.Linkage { // the places of a function share their text
			text += len(x.Func) + len(x.Linkage)
		}
		for j := range x.Source {
			s := &x.Source[j]
			if j >= len(last.Source) || s.Func != last.Source[j].Func || s.Linkage != last.Source[j].Linkage || s.File != last.Source[j].File {
				text += len(s.Func) + len(s.Linkage) + len(s.File)
			}
		}
		last = x
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.learned+cost <= maxAnswersNew && n.learnedText+text <= maxNewText {
		n.learned += cost
		n.learnedText += text
		a.new = append(a.new, list)
	}
}

// saveAnswers writes the new answers to the cache. n.mu is held. A failure costs only time.
func (n *Namer) saveAnswers() {
	wrote := false
	for _, a := range n.answers {
		if len(a.new) == 0 {
			continue
		}
		all := slices.Concat(a.new...)
		if a.had != nil && a.had.places+len(all) <= maxKeptPlaces {
			var room sourceRoom
			for i := range a.had.places {
				name := a.had.name(i, &room)
				all = append(all, answer{a.had.off(i), &name})
			}
		}
		if b := encodeAnswers(all, &a.id.Sum); b != nil {
			kept.Write(a.path, b)
			wrote = true
		}
	}
	if wrote {
		kept.Prune(n.cache, answersPrefix, maxAnswersAll)
	}
}

// fill fills in names, and returns the indices of those that are not known.
func (a *answers) fill(offs []uint64, names []profile.Name) (missing []int) {
	f := a.had
	if f == nil {
		f = &answerFile{}
	}
	at := 0
	var room sourceRoom
	for i, off := range offs {
		at += sort.Search(f.places-at, func(k int) bool { return f.off(at+k) >= off })
		if at == f.places || f.off(at) != off {
			missing = append(missing, i)
			continue
		}
		names[i] = f.name(at, &room)
	}
	return missing
}

// An answerFile is a file of the cache. Offsets and the order of sources are checked when it is read, so no source is read twice; a number out of
// range is found when it is used, and stands for nothing.
type answerFile struct {
	places                                     int
	offs, funcOf, sourceOf, funcs, srcs, bound []byte
	text                                       string
}

// readAnswers returns what b has, which must not change afterwards; nil if it is damaged, or of another identity.
func readAnswers(b []byte, id *[32]byte) *answerFile {
	le := binary.LittleEndian
	if len(b) < answersHead || string(b[:8]) != answersMagic || !bytes.Equal(b[16:48], id[:]) || le.Uint32(b[8:]) != crc32.Checksum(b[12:], castagnoli) {
		return nil
	}
	places, funcs, srcs, strs, text := uint64(le.Uint32(b[48:])), uint64(le.Uint32(b[52:])), uint64(le.Uint32(b[56:])), uint64(le.Uint32(b[60:])), uint64(le.Uint32(b[64:]))
	if uint64(len(b)) != answersHead+places*(8+4+4)+4+funcs*16+srcs*20+strs*4+4+text {
		return nil
	}
	b = b[answersHead:]
	cut := func(n uint64) []byte {
		part := b[:n:n]
		b = b[n:]
		return part
	}
	f := &answerFile{
		places: int(places), offs: cut(8 * places), funcOf: cut(4 * places), sourceOf: cut(4*places + 4), funcs: cut(16 * funcs), srcs: cut(20 * srcs),
		bound: cut(4*strs + 4), text: unsafe.String(unsafe.SliceData(b), len(b)),
	}
	for i := range f.places {
		if i > 0 && f.off(i-1) >= f.off(i) || le.Uint32(f.sourceOf[4*i:]) > le.Uint32(f.sourceOf[4*i+4:]) {
			return nil
		}
	}
	return f
}

func (f *answerFile) off(i int) uint64 { return binary.LittleEndian.Uint64(f.offs[8*i:]) }

// str returns the string whose number is at the start of b.
func (f *answerFile) str(b []byte) string {
	n := uint64(binary.LittleEndian.Uint32(b))
	if 4*n+8 > uint64(len(f.bound)) {
		return ""
	}
	lo, hi := binary.LittleEndian.Uint32(f.bound[4*n:]), binary.LittleEndian.Uint32(f.bound[4*n+4:])
	if lo > hi || uint64(hi) > uint64(len(f.text)) {
		return ""
	}
	return f.text[lo:hi]
}

// name returns the name of place i. Its sources are cut from room, which grows as needed.
func (f *answerFile) name(i int, room *sourceRoom) (n profile.Name) {
	le := binary.LittleEndian
	if k := uint64(le.Uint32(f.funcOf[4*i:])); 16*k < uint64(len(f.funcs)) {
		r := f.funcs[16*k:]
		n.Start, n.Func, n.Linkage = le.Uint64(r), f.str(r[8:]), f.str(r[12:])
	}
	lo, hi := uint64(le.Uint32(f.sourceOf[4*i:])), uint64(le.Uint32(f.sourceOf[4*i+4:]))
	if lo >= hi || 20*hi > uint64(len(f.srcs)) {
		return n
	}
	count := int(hi - lo)
	n.Source = room.cut(count)
	for j := range n.Source {
		r := f.srcs[20*(int(lo)+j):]
		n.Source[j] = profile.Source{Func: f.str(r), Linkage: f.str(r[4:]), File: f.str(r[8:]), Line: le.Uint32(r[12:]), Column: le.Uint32(r[16:])}
	}
	return n
}

// A sourceRoom is memory for sources of many names, or of one.
type sourceRoom struct {
	free []profile.Source
	size int
}

func (r *sourceRoom) cut(n int) []profile.Source {
	if len(r.free) < n {
		r.size = min(max(4*r.size, 4), 1<<9)
		r.free = make([]profile.Source, max(n, r.size))
	}
	out := r.free[:n:n]
	r.free = r.free[n:]
	return out
}

// encodeAnswers returns the file of all, which it sorts; nil where it were too long. Of several answers for an offset, any is as good.
func encodeAnswers(all []answer, id *[32]byte) []byte {
	slices.SortFunc(all, func(a, b answer) int { return cmp.Compare(a.off, b.off) })
	all = slices.CompactFunc(all, func(a, b answer) bool { return a.off == b.off })
	le := binary.LittleEndian
	var text strings.Builder
	numbers, bound := map[string]uint32{}, []byte{0, 0, 0, 0}
	str := func(s string) uint32 {
		n, ok := numbers[s]
		if !ok {
			n = uint32(len(numbers))
			numbers[s] = n
			text.WriteString(s)
			bound = le.AppendUint32(bound, uint32(text.Len()))
		}
		return n
	}
	var offs, funcOf, sourceOf, funcs, srcs []byte
	last := new(profile.Name)
	for i, a := range all {
		if text.Len() > maxAnswers {
			return nil
		}
		n := a.name
		offs = le.AppendUint64(offs, a.off)
		if i == 0 || n.Start != last.Start || n.Func != last.Func || n.Linkage != last.Linkage { // the places of a function are neighbours
			funcs = le.AppendUint32(le.AppendUint32(le.AppendUint64(funcs, n.Start), str(n.Func)), str(n.Linkage))
			last = n
		}
		funcOf = le.AppendUint32(funcOf, uint32(len(funcs)/16-1))
		sourceOf = le.AppendUint32(sourceOf, uint32(len(srcs)/20))
		for i := range n.Source {
			s := &n.Source[i]
			for _, v := range [...]uint32{str(s.Func), str(s.Linkage), str(s.File), s.Line, s.Column} {
				srcs = le.AppendUint32(srcs, v)
			}
		}
	}
	sourceOf = le.AppendUint32(sourceOf, uint32(len(srcs)/20))
	b := append(append([]byte(answersMagic), make([]byte, 8)...), id[:]...)
	for _, v := range []int{len(all), len(funcs) / 16, len(srcs) / 20, len(numbers), text.Len(), 0} {
		b = le.AppendUint32(b, uint32(v))
	}
	b = append(slices.Concat(b, offs, funcOf, sourceOf, funcs, srcs, bound), text.String()...)
	if len(b) > maxAnswers {
		return nil
	}
	le.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
	return b
}
