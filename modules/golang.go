package modules

import (
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/pclntab"
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
	tab := pclntab.Open(img)
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
	tab.Funcs(add)
	return terminal, injected
}
