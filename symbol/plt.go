package symbol

import (
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// pltNames returns symbols for the entries of img's procedure linkage tables: "puts@plt". Each entry jumps
// through a slot of the global offset table; the relocation of the slot has the name. resolvers fills in the
// names of the functions that choose an indirect one. Only for machines whose linkage tables arch knows.
func pltNames(img *module.Image, resolvers func(byAddr map[uint64][]byte)) source {
	out := synthetic()
	stubs := pltStubs(img)
	if len(stubs) == 0 {
		return out
	}
	slots := make(map[uint64]slot, len(stubs))
	for _, s := range stubs {
		slots[s.Slot] = slot{}
	}
	readSlots(img, slots)

	byAddr := map[uint64][]byte{}
	for _, s := range slots {
		if s.resolver != 0 {
			byAddr[s.resolver] = nil
		}
	}
	if len(byAddr) > 0 {
		resolvers(byAddr)
	}
	for _, s := range stubs {
		to := slots[s.Slot]
		name := to.name
		if to.resolver != 0 {
			name = byAddr[to.resolver]
		}
		if len(name) > 0 && int64(len(out.Names)) < img.Size() { // many stubs may share one long name
			out.Add(string(name)+"@plt", module.SymbolEntry{Value: s.Lo, Size: s.Hi - s.Lo, Kind: module.Func, Bind: module.Local, Section: 1})
		}
	}
	return out
}

// pltStubs returns the entries of all procedure linkage tables. Sections that share their bytes are no
// reason to read more than the file has.
func pltStubs(img *module.Image) []arch.Jump {
	if !img.Is64() || img.Order() != binary.LittleEndian {
		return nil
	}
	var out []arch.Jump
	left := img.Size()
	secs := img.Sections()
	for i := range secs {
		s := &secs[i]
		if !s.IsPLT() {
			continue
		}
		b, err := img.Data(s)
		if left -= int64(len(b)); err != nil || left < 0 {
			continue
		}
		if shape := img.Machine().PLT; shape != nil && shape.Jumps != nil {
			out = append(out, shape.Jumps(b, uint64(s.Addr), s.Entsize)...)
		}
	}
	return out
}

// A slot is a word of the global offset table: the name of what it points to, as it lies in the file, or the address
// of the function that chooses it.
type slot struct {
	name     []byte
	resolver uint64
}

func (s *slot) known() bool { return s.name != nil || s.resolver != 0 }

// readSlots fills in slots from the bindings of img.
func readSlots(img *module.Image, slots map[uint64]slot) {
	left := len(slots)
	img.Bindings(func(b *module.Binding) bool {
		old, ok := slots[b.At]
		if !ok || old.known() {
			return true
		}
		s := slot{resolver: b.Resolver}
		if b.Symbol > 0 {
			t := source{SymbolTable: *b.Table}
			e := t.At(b.Symbol)
			s.name = t.name(e.Name)
		}
		if s.known() {
			slots[b.At] = s
			left--
		}
		return left > 0
	})
}
