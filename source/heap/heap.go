// Package heap reads what libunspool_heap.so writes of a process's allocations (runtime/heap.h, docs/HEAP.md): a directory of files comes in,
// processes with their stacks and counts go out. The processes may still run.
//
// The files belong to the processes, which may write anything: all numbers and sizes are checked, and what is damaged is counted.
package heap

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/procfs"
)

// An Amount is a number of objects and their bytes, as they were asked for.
type Amount struct{ Objects, Bytes uint64 }

// A Process is one program that a process ran. After fork, the child has counts of its own, and nothing in use; after exec, the process has new ones.
type Process struct {
	PID     int32
	Start   time.Time // of recording it
	Comm    string
	Path    string // of the program
	Period  uint64 // bytes, on average, between samples; 0: all allocations were recorded
	Foreign bool   // the program has an allocator in itself, whose calls are not seen
	Lost    uint64 // allocations that there was no room for
	Nested  uint64 // allocations in signal handlers that interrupted the recording of another: not recorded
	InUse   Amount // at the end
	Peak    Amount // in use when most bytes were
	Modules []Module
	Stacks  []Stack
	Damaged uint64 // records and files that could not be read
	Full    bool   // the file system had no room for all records

	index  map[uint16]int // in Modules
	place  map[place]int  // in Stacks
	shared int            // frames that stacks may still have from others
	epoch  uint64
}

// A Module is a file with code.
type Module struct {
	Path     string
	BuildID  string // hex; may be empty
	Segments []Segment
}

// A Segment is executable: [Lo, Hi) in the process begins at Off in the file.
type Segment struct{ Lo, Hi, Off uint64 }

// A Stack is where objects were allocated.
type Stack struct {
	Frames []Frame // innermost first
	Cut    bool    // there are more, which were not walked
	Lacks  bool    // there are more, in a record that cannot be read
	Alloc  Amount  // all
	InUse  Amount  // at the end
	Peak   Amount  // at the process's peak
	Brief  Amount  // freed before their thread had allocated anything else
}

// A Frame is a return address, and the module that it is in: an index in Process.Modules, or -1.
type Frame struct {
	PC     uint64
	Module int
}

// A place is where a record is: its chunk's number, and its offset there, in units of 8 bytes.
type place uint32

const placeBits = 21 // of the offset

// Bounds of what is read.
const (
	maxChunk   = 8 << placeBits
	maxFiles   = 1 << 16
	maxBytes   = 4 << 30 // of all files
	maxModules = 1 << 14 // of a process
	maxShared  = 1 << 26 // frames that stacks have from others, of all processes
	maxChunks  = 1 << (32 - placeBits)
)

// What runtime/heap.h says.
const (
	magic   = 0x7061656874707375
	version = 2
	unit    = 1 << 16 // of objects

	recordProcess, recordModule, recordStack = 1, 2, 3

	chunkSize   = 40
	processSize = 8 + 9*8 + 16
	moduleSize  = 8 + 16 + 32 + 8*24
	stackSize   = 8 + 2*8 + 9*8

	maxFrames   = 255
	maxID       = 32
	maxSegments = 8
)

type chunk struct {
	name   string
	pid    uint32
	part   uint64
	number uint32
}

// Read reads the files of a directory. Processes are in the order in which they began.
func Read(dir string) ([]*Process, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var chunks []chunk
	for _, e := range names[:min(len(names), maxFiles)] {
		c := chunk{name: e.Name()}
		if n, err := fmt.Sscanf(c.name, "%d-%d-%d", &c.pid, &c.part, &c.number); n == 3 && err == nil {
			chunks = append(chunks, c)
		}
	}
	slices.SortFunc(chunks, func(a, b chunk) int {
		return cmp.Or(cmp.Compare(a.part, b.part), cmp.Compare(a.pid, b.pid), cmp.Compare(a.number, b.number))
	})
	var all []*Process
	left, shared := int64(maxBytes), maxShared
	for i := 0; i < len(chunks); {
		c := &chunks[i]
		p := newProcess(c.pid, c.part, shared)
		for n := uint32(0); i < len(chunks) && chunks[i].part == c.part && chunks[i].pid == c.pid; i++ {
			b, err := readChunk(filepath.Join(dir, chunks[i].name), left)
			left -= int64(len(b))
			if errors.Is(err, errEmpty) {
				p.Full = true
			} else if err != nil || chunks[i].number != n || !p.add(b, c.pid, c.part, n) {
				p.Damaged++
			}
			n++
		}
		p.finish()
		shared = p.shared
		all = append(all, p)
	}
	if n := len(names) - maxFiles; n > 0 && len(all) > 0 {
		all[len(all)-1].Damaged += uint64(n) // nobody has looked whose these are
	}
	return all, nil
}

func newProcess(pid uint32, part uint64, shared int) *Process {
	return &Process{PID: int32(pid), Start: time.Unix(0, int64(part)), index: map[uint16]int{}, place: map[place]int{}, shared: shared}
}

var (
	errSize  = errors.New("too large")
	errEmpty = errors.New("empty, as the library leaves a file that it finds no room for")
)

func readChunk(path string, left int64) ([]byte, error) {
	f, err := procfs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch size := st.Size(); {
	case size == 0:
		return nil, errEmpty
	case size > min(maxChunk, left):
		return nil, errSize
	}
	var head [chunkSize]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, err
	}
	used := min(uint64(st.Size()), word(head[:], 4))
	b := make([]byte, used)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF {
		err = nil
	}
	return b[:n], err
}

// word returns the word at 8*i.
func word(b []byte, i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }

func half(b []byte, i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }

// add reads a chunk's records. It returns false where one is damaged, and leaves out what follows.
func (p *Process) add(b []byte, pid uint32, part uint64, number uint32) bool {
	if len(b) < chunkSize || word(b, 0) != magic || half(b, 2) != version || half(b, 3) != pid || word(b, 2) != part || half(b, 6) != number || number >= maxChunks {
		return false
	}
	for at := chunkSize; at < len(b); {
		b := b[at:]
		if len(b) < 8 {
			return false
		}
		kind, size := half(b, 0), half(b, 1)
		if size < 8 || size%8 != 0 || uint64(size) > uint64(len(b)) || !p.record(kind, b[:size], place(number<<placeBits|uint32(at)/8)) {
			return false
		}
		at += int(size)
	}
	return true
}

func (p *Process) record(kind uint32, b []byte, at place) bool {
	switch kind {
	case recordProcess:
		return p.process(b)
	case recordModule:
		return p.module(b)
	case recordStack:
		return p.stack(b, at)
	}
	return false
}

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(s), "\ufffd")
}

func (p *Process) process(b []byte) bool {
	if len(b) < processSize {
		return false
	}
	p.Period, p.Foreign, p.Lost, p.Nested = word(b, 1), word(b, 2) != 0, word(b, 3), word(b, 4)
	p.InUse = amount(raw{word(b, 5), word(b, 6)})
	p.Peak = amount(raw{word(b, 7), word(b, 8)})
	p.epoch = word(b, 9)
	p.Comm, p.Path = text(b[80:96]), text(b[processSize:])
	return true
}

func (p *Process) module(b []byte) bool {
	if len(b) < moduleSize || len(p.Modules) == maxModules {
		return false
	}
	index, id, n := half(b, 2), half(b, 3), half(b, 4)
	if index > 0xffff || id > maxID || n > maxSegments {
		return false
	}
	m := Module{Path: text(b[moduleSize:]), BuildID: hex.EncodeToString(b[24 : 24+id])}
	for i := range int(n) {
		at := b[56+24*i:]
		s := Segment{word(at, 0), word(at, 1), word(at, 2)}
		if s.Lo >= s.Hi {
			return false
		}
		m.Segments = append(m.Segments, s)
	}
	p.index[uint16(index)] = len(p.Modules)
	p.Modules = append(p.Modules, m)
	return true
}

// A raw amount counts objects in parts of one.
type raw struct{ objects, bytes uint64 }

func amount(r raw) Amount {
	if int64(r.objects) < 0 || int64(r.bytes) < 0 {
		return Amount{}
	}
	return Amount{(r.objects + unit/2) / unit, r.bytes}
}

// less returns r without s, nothing if that is more.
func (r raw) less(s raw) raw {
	return raw{r.objects - min(s.objects, r.objects), r.bytes - min(s.bytes, r.bytes)}
}

func (p *Process) stack(b []byte, at place) bool {
	if len(b) < stackSize {
		return false
	}
	outer, ends := place(half(b, 4)), half(b, 5)
	shared, n := int(ends&0xffff), int(ends>>16)
	if shared+n > maxFrames || len(b) != stackSize+8*n {
		return false
	}
	alloc, freed := raw{word(b, 3), word(b, 4)}, raw{word(b, 5), word(b, 6)}
	s := Stack{Cut: shared+n == maxFrames, Alloc: amount(alloc), InUse: amount(alloc.less(freed)), Brief: amount(raw{word(b, 7), word(b, 8)})}
	s.Peak = s.InUse
	if word(b, 11) == p.epoch {
		s.Peak = amount(raw{word(b, 9), word(b, 10)})
	}
	more, ok := p.outermost(outer, shared)
	if !ok {
		s.Lacks = true
		p.Damaged++
	}
	s.Frames = make([]Frame, n, n+len(more))
	for i := range s.Frames {
		w := word(b[stackSize:], i)
		f := Frame{PC: w & (1<<48 - 1), Module: -1}
		if m, ok := p.index[uint16(w>>48)]; ok && w>>48 != 0 {
			f.Module = m
		}
		s.Frames[i] = f
	}
	s.Frames = append(s.Frames, more...)
	if ok { // a stack that lacks its outermost frames has none for others
		p.place[at] = len(p.Stacks)
	}
	p.Stacks = append(p.Stacks, s)
	return true
}

// outermost returns the n outermost frames of a stack that was read before; false where it was not, or has fewer frames.
func (p *Process) outermost(at place, n int) ([]Frame, bool) {
	if n == 0 {
		return nil, true
	}
	i, ok := p.place[at]
	if !ok || n > len(p.Stacks[i].Frames) || n > p.shared {
		return nil, false
	}
	p.shared -= n
	f := p.Stacks[i].Frames
	return f[len(f)-n:], true
}

// finish leaves out what counts for nothing.
func (p *Process) finish() {
	p.place = nil
	p.Stacks = slices.DeleteFunc(p.Stacks, func(s Stack) bool { return s.Alloc == Amount{} })
}
