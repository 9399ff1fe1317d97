package gosym

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// find returns the table's bytes and address. Where no section is called so, it looks for the header: there are no
// sections, or the linker put it into another one.
func find(img *module.Image) ([]byte, arch.Vaddr, error) {
	secs := img.Sections()
	isGo := len(secs) == 0 // it may be
	for i := range secs {
		switch s := &secs[i]; s.Name {
		case ".gopclntab", ".data.rel.ro.gopclntab":
			b, err := img.Data(s)
			return b, s.Addr, err
		case ".note.go.buildid", ".go.buildinfo":
			isGo = true
		}
	}
	if !isGo {
		return nil, 0, nil
	}
	left := int(img.Reach()) // segments that share their bytes are no reason to read more than the file has
	for _, s := range img.Segments() {
		if s.Type != elf.PT_LOAD || s.Flags&elf.PF_X != 0 && s.Flags&elf.PF_W != 0 {
			continue
		}
		all := img.Tail(s.Vaddr)
		all = all[:min(len(all), left)]
		left -= len(all)
		for _, magic := range []uint32{go120, go118, go116, go12} {
			var m [6]byte // and two bytes that are 0
			img.Order().PutUint32(m[:], magic)
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

// sound says whether a table that may be one looks like it: its parts are in order, and its first functions ascend.
func sound(b []byte, order binary.ByteOrder) bool {
	t, err := parse(b, order)
	if err != nil {
		return false
	}
	for i := range min(t.n, 16) {
		if t.start(i) > t.start(i+1) {
			return false
		}
	}
	return t.name(t.fn(0).nameOff) != ""
}

// Words of a runtime.moduledata, the linker's description of a program.
const (
	moduleMinPC  = 20
	moduleText   = 22
	moduleRodata = 39 // since Go 1.20; before, there are two words less
	moduleGofunc = 40
)

// place finds out what the table's offsets of functions and of inlining trees are from: the program's moduledata has it. Since Go 1.26, the
// header does not say where the text begins.
func (t *Table) place(img *module.Image, addr arch.Vaddr) {
	for _, md := range t.candidates(img, addr) {
		var words [moduleGofunc + 1]uint64
		b, ok := img.At(md, len(words)*t.ptr)
		if !ok {
			continue
		}
		for i := range words {
			words[i] = t.word(b, uint64(i*t.ptr))
		}
		relocations(img, func(at, v uint64) {
			if i := (at - uint64(md)) / 8; i < uint64(len(words)) && at >= uint64(md) {
				words[i] = v
			}
		})
		text := words[moduleText]
		if words[0] != uint64(addr) || words[moduleMinPC] < text || t.text != 0 && t.text != text {
			continue
		}
		rodata, gofunc := words[moduleRodata], words[moduleGofunc]
		if t.magic == go118 {
			rodata, gofunc = words[moduleRodata-2], words[moduleGofunc-2]
		}
		if t.text = text; gofunc >= rodata {
			t.inlined = img.Tail(arch.Vaddr(gofunc))
		}
		return
	}
	if s := img.Section(".text"); t.text == 0 && s != nil {
		t.text = uint64(s.Addr)
	}
}

// maxCandidates bounds where the moduledata is looked for. Apart from it, nothing points to the table.
const maxCandidates = 16

// candidates returns where the moduledata may be: every word that points to the table.
func (t *Table) candidates(img *module.Image, addr arch.Vaddr) (out []arch.Vaddr) {
	if s := img.Section(".go.module"); s != nil {
		return []arch.Vaddr{s.Addr}
	}
	relocations(img, func(at, v uint64) {
		if v == uint64(addr) && len(out) < maxCandidates {
			out = append(out, arch.Vaddr(at))
		}
	})
	want := make([]byte, t.ptr)
	if t.ptr == 8 {
		t.order.PutUint64(want, uint64(addr))
	} else {
		t.order.PutUint32(want, uint32(addr))
	}
	left := int(img.Reach()) // as in find
	for _, s := range img.Segments() {
		if s.Type != elf.PT_LOAD || s.Flags&elf.PF_W == 0 {
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
			if at += i; at%t.ptr == 0 {
				out = append(out, s.Vaddr+arch.Vaddr(at))
			}
		}
	}
	return out
}

// relocations calls each with the words of a position-independent program that are set when it is loaded: where they lie, and what they are
// as if it was loaded where it was linked. 64 bits only.
func relocations(img *module.Image, each func(at, v uint64)) {
	if img.Type() != elf.ET_DYN || !img.Is64() {
		return
	}
	order := img.Order()
	var table, size uint64
	for _, s := range img.Segments() {
		if s.Type != elf.PT_DYNAMIC {
			continue
		}
		b, _ := img.Contents(&s)
		for ; len(b) >= 16; b = b[16:] {
			switch v := order.Uint64(b[8:]); elf.DynTag(order.Uint64(b)) {
			case elf.DT_RELA:
				table = v
			case elf.DT_RELASZ:
				size = v
			}
		}
		break
	}
	all := img.Tail(arch.Vaddr(table))
	for all = all[:min(size, uint64(len(all)))]; len(all) >= 24; all = all[24:] {
		if typ := uint32(order.Uint64(all[8:])); typ == uint32(elf.R_X86_64_RELATIVE) || typ == uint32(elf.R_AARCH64_RELATIVE) {
			each(order.Uint64(all), order.Uint64(all[16:]))
		}
	}
}
