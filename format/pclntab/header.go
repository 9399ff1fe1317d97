package pclntab

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A Version is a layout: the value of pcHeader.magic, called by the Go version that began to write it.
type Version uint32

const (
	Go12  Version = 0xfffffffb
	Go116 Version = 0xfffffffa
	Go118 Version = 0xfffffff0 // offsets from the text's start in place of addresses
	Go120 Version = 0xfffffff1 // lines at which functions start
)

// A Header is the decoded beginning of a table: the layout, and where the parts are. It is valid as long as its image is open, and safe for
// concurrent use.
type Header struct {
	Version Version
	Bytes   []byte     // from the header to the end of what there is
	Addr    arch.Vaddr // of Bytes
	Order   binary.ByteOrder
	PtrSize int    // bytes
	Quantum uint64 // least size of an instruction, in bytes
	N       int    // functions
	Text    uint64 // what offsets of functions count from; 0 where they are addresses

	// Parts of Bytes. Offsets that lead to a part count from its start.
	Names, Units, Files, Numbers, Funcs []byte

	// Inlined is what offsets of inlining trees count from; nil: not known.
	Inlined []byte
}

const maxFuncs = 1 << 24

// Find returns the header of a Go program's table; nil without an error if there is no table. Where no section has the table's name, Find
// searches for the header: section headers may be missing, or the linker may have put the table into another section.
func Find(img *module.Image) (*Header, error) {
	b, addr, err := find(img)
	if b == nil {
		return nil, err
	}
	h, err := Parse(b, img.Order())
	if err != nil {
		return nil, fmt.Errorf("%s: pclntab at %#x: %w", img.Name(), uint64(addr), err)
	}
	if h.Addr = addr; h.relative() {
		h.place(img)
	}
	return h, nil
}

// find returns the table's bytes and address.
func find(img *module.Image) ([]byte, arch.Vaddr, error) {
	secs := img.Sections()
	isGo := len(secs) == 0 // it may be
	for i := range secs {
		switch s := &secs[i]; s.Common() {
		case ".gopclntab", ".data.rel.ro.gopclntab":
			b, err := img.Data(s)
			return b, s.Addr, err
		case ".note.go.buildid", ".go.buildinfo", ".go_buildinfo":
			isGo = true
		case ".symtab": // Go's linker leaves one in an image for Windows, stripped or not; no other linker does
			isGo = isGo || img.Format() == "PE"
		}
	}
	if !isGo {
		return nil, 0, nil
	}
	left := int(img.Reach()) // segments that share their bytes are no reason to read more than the file has
	for _, s := range img.Segments() {
		if s.Kind != module.Loaded || s.Perm&module.Exec != 0 && s.Perm&module.Write != 0 {
			continue
		}
		all := img.Tail(s.Vaddr)
		all = all[:min(len(all), left)]
		left -= len(all)
		for _, version := range []Version{Go120, Go118, Go116, Go12} {
			var m [6]byte // and two bytes that are 0
			img.Order().PutUint32(m[:], uint32(version))
			for at := 0; ; {
				i := bytes.Index(all[at:], m[:])
				if i < 0 {
					break
				}
				if at += i; at%8 == 0 && sound(all[at:], img.Order()) {
					return all[at:], s.Vaddr + arch.Vaddr(at), nil
				}
				at++
			}
		}
	}
	return nil, 0, nil
}

// sound says whether bytes look like a table: the parts are in order, and the first functions ascend.
func sound(b []byte, order binary.ByteOrder) bool {
	h, err := Parse(b, order)
	if err != nil {
		return false
	}
	for i := range min(h.N, 16) {
		if h.Start(i) > h.Start(i+1) {
			return false
		}
	}
	name := uint64(h.U32(h.Desc(0), 0))
	return name < uint64(len(h.Names)) && h.Names[name] != 0
}

// Parse reads the header at the beginning of b. Of Go 1.26 and later, Text is 0 and not known.
func Parse(b []byte, order binary.ByteOrder) (*Header, error) {
	if len(b) < 16 {
		return nil, module.ErrTruncated
	}
	h := &Header{Version: Version(order.Uint32(b)), Bytes: b, Order: order, Quantum: uint64(b[6]), PtrSize: int(b[7])}
	if b[4] != 0 || b[5] != 0 || h.Quantum != 1 && h.Quantum != 2 && h.Quantum != 4 || h.PtrSize != 4 && h.PtrSize != 8 {
		return nil, fmt.Errorf("header % x: %w", b[:8], module.ErrMalformed)
	}
	word := func(i int) uint64 { return h.Word(b, uint64(8+i*h.PtrSize)) }
	n := word(0)
	if n > maxFuncs {
		return nil, fmt.Errorf("%d functions: %w", n, module.ErrUnsupported)
	}
	h.N = int(n)
	part := func(i int) []byte { return b[min(word(i), uint64(len(b))):] }
	switch h.Version {
	case Go12:
		h.Names, h.Units, h.Files, h.Numbers = b, b, b, b
		h.Funcs = b[min(8+h.PtrSize, len(b)):]
	case Go116:
		h.Names, h.Units, h.Files, h.Numbers, h.Funcs = part(2), part(3), part(4), part(5), part(6)
	case Go118, Go120:
		h.Text = word(2)
		h.Names, h.Units, h.Files, h.Numbers, h.Funcs = part(3), part(4), part(5), part(6), part(7)
	default:
		return nil, fmt.Errorf("magic %#x: %w", uint32(h.Version), module.ErrUnsupported)
	}
	if size := h.N*2*h.width() + h.width(); h.N == 0 || len(h.Funcs) < size {
		return nil, fmt.Errorf("%d functions in %d bytes: %w", n, len(h.Funcs), module.ErrTruncated)
	}
	if h.Version == Go12 { // the table of files is where the last word of that of functions says
		at := h.U32(h.Funcs, uint64(h.N*2*h.width()+h.width()))
		h.Units = b[min(uint64(at), uint64(len(b))):]
	}
	return h, nil
}

// relative says whether functions are told by offsets from Text.
func (h *Header) relative() bool { return h.Version == Go118 || h.Version == Go120 }

// Word reads a pointer at off; 0 outside of b.
func (h *Header) Word(b []byte, off uint64) uint64 {
	if h.PtrSize == 4 {
		return uint64(h.U32(b, off))
	}
	if off > uint64(len(b)) || len(b)-int(off) < 8 {
		return 0
	}
	return h.Order.Uint64(b[off:])
}

// U32 reads four bytes at off; 0 outside of b.
func (h *Header) U32(b []byte, off uint64) uint32 {
	if off > uint64(len(b)) || len(b)-int(off) < 4 {
		return 0
	}
	return h.Order.Uint32(b[off:])
}

// width is the size of the numbers in the table of functions: pairs of a start and the offset of a description.
func (h *Header) width() int {
	if h.relative() {
		return 4
	}
	return h.PtrSize
}

func (h *Header) entry(k int) uint64 {
	if h.width() == 4 {
		return uint64(h.U32(h.Funcs, uint64(k)*4))
	}
	return h.Word(h.Funcs, uint64(k)*8)
}

// Start returns where function i starts. Start(N) is the end of the last function.
func (h *Header) Start(i int) arch.Vaddr { return arch.Vaddr(h.Text + h.entry(2*i)) }

// Desc returns the description of function i (runtime._func) from the name's offset on. It may be short, or nil.
func (h *Header) Desc(i int) []byte {
	b, at, entry := h.Funcs, h.entry(2*i+1), 4
	if h.Version == Go12 {
		b = h.Bytes
	}
	if !h.relative() {
		entry = h.PtrSize
	}
	if at > uint64(len(b)) {
		return nil
	}
	b = b[at:]
	return b[min(entry, len(b)):]
}

// Words of a runtime.moduledata, the linker's description of a program.
const (
	moduleMinPC  = 20
	moduleText   = 22
	moduleRodata = 39 // since Go 1.20; before, there are two words less
	moduleGofunc = 40
)

// place finds out what the table's offsets count from: the program's moduledata says so. Since Go 1.26, the header does not say where the
// text begins.
func (h *Header) place(img *module.Image) {
	for _, md := range h.candidates(img) {
		var words [moduleGofunc + 1]uint64
		b, ok := img.At(md, len(words)*h.PtrSize)
		if !ok {
			continue
		}
		for i := range words {
			words[i] = h.Word(b, uint64(i*h.PtrSize))
		}
		img.Rebased(func(at, v uint64) {
			if i := (at - uint64(md)) / 8; i < uint64(len(words)) && at >= uint64(md) {
				words[i] = v
			}
		})
		text := words[moduleText]
		if words[0] != uint64(h.Addr) || words[moduleMinPC] < text || h.Text != 0 && h.Text != text {
			continue
		}
		rodata, gofunc := words[moduleRodata], words[moduleGofunc]
		if h.Version == Go118 {
			rodata, gofunc = words[moduleRodata-2], words[moduleGofunc-2]
		}
		if h.Text = text; gofunc >= rodata {
			h.Inlined = img.Tail(arch.Vaddr(gofunc))
		}
		return
	}
	if s := img.Section(".text"); h.Text == 0 && s != nil {
		h.Text = uint64(s.Addr)
	}
}

// maxCandidates bounds where the moduledata is looked for. Apart from it, nothing points to the table.
const maxCandidates = 16

// candidates returns where the moduledata may be: every word that points to the table.
func (h *Header) candidates(img *module.Image) (out []arch.Vaddr) {
	if s := img.Section(".go.module"); s != nil {
		return []arch.Vaddr{s.Addr}
	}
	img.Rebased(func(at, v uint64) {
		if v == uint64(h.Addr) && len(out) < maxCandidates {
			out = append(out, arch.Vaddr(at))
		}
	})
	want := make([]byte, h.PtrSize)
	if h.PtrSize == 8 {
		h.Order.PutUint64(want, uint64(h.Addr))
	} else {
		h.Order.PutUint32(want, uint32(h.Addr))
	}
	left := int(img.Reach()) // as in find
	for _, s := range img.Segments() {
		if s.Kind != module.Loaded || s.Perm&module.Write == 0 {
			continue
		}
		all := img.Tail(s.Vaddr)
		all = all[:min(len(all), left)]
		left -= len(all)
		for at := 0; len(out) < maxCandidates; at++ {
			i := bytes.Index(all[at:], want)
			if i < 0 {
				break
			}
			if at += i; at%h.PtrSize == 0 {
				out = append(out, s.Vaddr+arch.Vaddr(at))
			}
		}
	}
	return out
}
