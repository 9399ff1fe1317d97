package symbol

import (
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// pltNames returns symbols for the entries of img's procedure linkage tables: "puts@plt". Each entry jumps
// through a slot of the global offset table; the relocation of the slot has the name. resolvers fills in the
// names of the functions that choose an indirect one. x86-64 and AArch64 only.
func pltNames(img *module.Image, resolvers func(byAddr map[uint64][]byte)) source {
	out := synthetic()
	stubs := pltStubs(img)
	if len(stubs) == 0 {
		return out
	}
	slots := make(map[uint64]slot, len(stubs))
	for _, s := range stubs {
		slots[s.slot] = slot{}
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
		to := slots[s.slot]
		name := to.name
		if to.resolver != 0 {
			name = byAddr[to.resolver]
		}
		if len(name) > 0 && int64(len(out.Names)) < img.Size() { // many stubs may share one long name
			out.Add(string(name)+"@plt", module.SymbolEntry{Value: s.lo, Size: s.hi - s.lo, Kind: module.Func, Bind: module.Local, Section: 1})
		}
	}
	return out
}

// pltStubs returns the entries of all procedure linkage tables. Sections that share their bytes are no
// reason to read more than the file has.
func pltStubs(img *module.Image) []stub {
	if !img.Is64() || img.Order() != binary.LittleEndian {
		return nil
	}
	var out []stub
	left := img.Size()
	secs := img.Sections()
	for i := range secs {
		s := &secs[i]
		switch s.Name {
		case ".plt", ".plt.sec", ".plt.got", ".iplt":
		default:
			continue
		}
		if s.Empty || s.Perm&module.Exec == 0 || s.Compressed {
			continue
		}
		b, err := img.Data(s)
		if left -= int64(len(b)); err != nil || left < 0 {
			continue
		}
		switch img.Machine() {
		case arch.AMD64:
			out = append(out, stubsAMD64(b, uint64(s.Addr), s.Entsize)...)
		case arch.ARM64:
			out = append(out, stubsARM64(b, uint64(s.Addr))...)
		}
	}
	return out
}

// A stub is an entry [lo, hi) that jumps to where the word at slot says.
type stub struct{ lo, hi, slot uint64 }

// stubsAMD64 finds jmp *disp(%rip) in entries of 16 bytes, or 8 where the section says so (AMD64 supplement, section 5.2; with
// IBT, endbr64 comes first).
func stubsAMD64(b []byte, addr, entsize uint64) []stub {
	if entsize != 8 {
		entsize = 16
	}
	var out []stub
	for at := uint64(0); at+entsize <= uint64(len(b)); at += entsize {
		e := b[at : at+entsize]
		for i := 0; i+6 <= len(e); i++ {
			if e[i] == 0xff && e[i+1] == 0x25 {
				disp := int64(int32(binary.LittleEndian.Uint32(e[i+2:])))
				out = append(out, stub{addr + at, addr + at + entsize, addr + at + uint64(i) + 6 + uint64(disp)})
				break
			}
		}
	}
	return out
}

// stubsARM64 finds adrp x16, slot; ldr x17, [x16, slot], with or without bti c in front. An entry ends where the
// next one starts.
func stubsARM64(b []byte, addr uint64) []stub {
	var out []stub
	for at := 0; at+8 <= len(b); at += 4 {
		adrp, ldr := binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:])
		if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 {
			continue
		}
		imm := int64(adrp>>5&0x7ffff)<<2 | int64(adrp>>29&3)
		imm = imm << 43 >> 43 // 21 bits, signed
		page := (addr + uint64(at)) &^ 0xfff
		slot := page + uint64(imm<<12) + uint64(ldr>>10&0xfff)*8
		lo := addr + uint64(at)
		if at >= 4 && binary.LittleEndian.Uint32(b[at-4:]) == 0xd503245f {
			lo -= 4
		}
		if n := len(out); n > 0 {
			out[n-1].hi = lo
		}
		out = append(out, stub{lo, addr + uint64(len(b)), slot})
	}
	// The last entry is as long as the one before it.
	if n := len(out); n > 1 {
		out[n-1].hi = min(out[n-1].hi, out[n-1].lo+out[n-1].lo-out[n-2].lo)
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
