package modules

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// goFirst are Go's first frames on a stack: of goroutines, of threads, and of what a thread runs on a stack of its own on
// behalf of a goroutine, whose frames are on another stack.
var goFirst = map[string]bool{
	"runtime.goexit": true, "runtime.mstart": true, "runtime.rt0_go": true,
	"runtime.mcall": true, "runtime.systemstack": true, "runtime.morestack": true, "runtime.asmcgocall": true,
}

// goInjected are what Go calls on behalf of code that a signal has interrupted (runtime/traceback.go: isInjectedCall), and what leads there.
var goInjected = map[string]bool{
	"runtime.sigpanic": true, "runtime.sigpanic0": true, "runtime.asyncPreempt": true, "runtime.debugCallV2": true,
}

// goRanges returns the code of a Go program that has no caller, and goInjected: by its symbols, or, where it is stripped, by the
// table of functions that every Go program keeps.
func goRanges(img *module.Image) (terminal, injected []unwind.Range) {
	tab := img.Section(".gopclntab")
	if tab == nil && img.Section(".note.go.buildid") == nil {
		return nil, nil
	}
	add := func(name string, lo, hi arch.Vaddr) {
		switch name = strings.TrimSuffix(name, ".abi0"); {
		case goInjected[name]:
			injected = append(injected, unwind.Range{Lo: lo, Hi: hi})
		case goFirst[name]:
			terminal = append(terminal, unwind.Range{Lo: lo, Hi: hi})
		}
	}
	img.Symbols(func(s module.Symbol) bool {
		if s.Size > 0 {
			add(s.Name, s.Value, s.Value+arch.Vaddr(s.Size))
		}
		return true
	})
	if len(terminal) > 0 || tab == nil {
		return terminal, injected
	}
	if b, err := img.Data(tab); err == nil {
		goFunctions(img, b, add)
	}
	return terminal, injected
}

// The values of pcHeader.magic (internal/abi/symtab.go): since Go 1.18, and since Go 1.20.
const (
	pcln118 = 0xfffffff0
	pcln120 = 0xfffffff1
)

const (
	maxGoFuncs = 1 << 22
	maxGoName  = 64 // of functions that are of interest
)

// goFunctions calls each with the functions of a program's pclntab whose names are short (runtime/symtab.go: pcHeader, functab
// and _func). It does nothing with tables before Go 1.18, or of 32-bit programs.
func goFunctions(img *module.Image, b []byte, each func(name string, lo, hi arch.Vaddr)) {
	const header = 8 + 8*8
	le := binary.LittleEndian
	if len(b) < header || b[7] != 8 {
		return
	}
	if magic := le.Uint32(b); magic != pcln118 && magic != pcln120 {
		return
	}
	// After the count of functions: of files, the text's start, offsets of names, units, files, numbers, functions.
	n, text, names, funcs := le.Uint64(b[8:]), le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint64(b[64:])
	if text == 0 {
		text = goText(img)
	}
	if n > maxGoFuncs || names > uint64(len(b)) || funcs > uint64(len(b)) || uint64(len(b))-funcs < 8*n+4 {
		return
	}
	nameTab, funcTab := b[names:], b[funcs:]
	for i := range n {
		lo, hi, at := le.Uint32(funcTab[8*i:]), le.Uint32(funcTab[8*i+8:]), uint64(le.Uint32(funcTab[8*i+4:]))
		if at+8 > uint64(len(funcTab)) || hi <= lo {
			continue
		}
		off := uint64(le.Uint32(funcTab[at+4:]))
		if off >= uint64(len(nameTab)) {
			continue
		}
		name := nameTab[off:min(off+maxGoName, uint64(len(nameTab)))]
		if end := bytes.IndexByte(name, 0); end > 0 {
			each(string(name[:end]), arch.Vaddr(text+uint64(lo)), arch.Vaddr(text+uint64(hi)))
		}
	}
}

// goText returns where a program's Go code begins. Since Go 1.26 the table does not say so; the linker's description of the
// module does (runtime.moduledata), or, in a program that is relocated when it is loaded, the section.
func goText(img *module.Image) uint64 {
	s := img.Section(".text")
	if s == nil {
		return 0
	}
	const text = 8 + 6*24 + 3*8 // in a moduledata: a pointer, six slices, the table to find functions by, lowest and highest PC
	if m := img.Section(".go.module"); m != nil {
		if b, err := img.Data(m); err == nil && len(b) >= text+8 {
			if v := binary.LittleEndian.Uint64(b[text:]); v-uint64(s.Addr) < s.Size {
				return v
			}
		}
	}
	return uint64(s.Addr)
}
