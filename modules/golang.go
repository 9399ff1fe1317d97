package modules

import (
	"bytes"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// goFirst are Go's first frames on a stack: of goroutines, of threads, and of what a thread runs on a stack of its own on
// behalf of a goroutine, whose frames are on another stack.
var goFirst = map[string]bool{
	"runtime.goexit": true, "runtime.mstart": true, "runtime.rt0_go": true,
	"runtime.mcall": true, "runtime.systemstack": true, "runtime.morestack": true, "runtime.asmcgocall": true,
}

// goEntry says whether a Go program of Linux begins with a function. Those for libraries (_lib, _lib_go) are called.
func goEntry(name string, img *module.Image) bool {
	return strings.HasPrefix(name, "_rt0_") && !strings.Contains(name, "_lib") && img.Format() == "ELF"
}

// goInjected are what Go calls on behalf of code that a signal has interrupted (runtime/traceback.go: isInjectedCall), and what leads there.
var goInjected = map[string]bool{
	"runtime.sigpanic": true, "runtime.sigpanic0": true, "runtime.asyncPreempt": true, "runtime.debugCallV2": true,
}

// goMoves are Go's functions that call the vDSO on the thread's own stack, which is bigger than a goroutine's (runtime/sys_linux_amd64.s,
// time_linux_amd64.s, sys_linux_arm64.s). The stack pointer that they had is in a register meanwhile, and their rules do not know.
var goMoves = map[string]bool{
	"runtime.nanotime1": true, "runtime.walltime": true, "time.now": true, "runtime.vgetrandom1": true,
}

// goRanges adds to c where stacks of a Go program begin, goInjected, and goMoves: by its symbols, or, where it is stripped, by the
// table of functions that every Go program keeps.
func goRanges(c *unwind.Code, img *module.Image) {
	if !format.IsGo(img) {
		return
	}
	add := func(name string, lo, hi arch.Vaddr) {
		switch name = strings.TrimSuffix(name, ".abi0"); {
		case goInjected[name]:
			c.Injected = append(c.Injected, unwind.Range{Lo: lo, Hi: hi})
		case goFirst[name] || goEntry(name, img):
			c.Terminal = append(c.Terminal, unwind.Range{Lo: lo, Hi: hi})
		case name == "runtime.clone":
			if both, child, ok := clone(c.Machine, img, lo, hi); ok {
				c.Forks, c.Terminal = append(c.Forks, both), append(c.Terminal, child)
			}
		case goMoves[name]:
			c.Moved = append(c.Moved, moved(c, img, lo, hi)...)
		}
	}
	img.Symbols(func(s module.Symbol) bool {
		if s.Size > 0 {
			add(s.Name, s.Value, s.Value+arch.Vaddr(s.Size))
		}
		return true
	})
	if len(c.Terminal) > 0 {
		return
	}
	if funcs := format.Functions(img); funcs != nil {
		c.Injected, c.Moved, c.Forks = nil, nil, nil
		funcs(add)
	}
}

// clone returns two parts of runtime.clone (runtime/sys_linux_amd64.s, sys_linux_arm64.s). Both threads execute the first one, which begins
// behind the system call and ends with the return of the thread that made it. What follows is the new thread's, up to its first call.
func clone(m *arch.Machine, img *module.Image, lo, hi arch.Vaddr) (both, child unwind.Range, ok bool) {
	text := img.Tail(lo)
	if hi <= lo || hi-lo > maxMoved || uint64(len(text)) < uint64(hi-lo) || len(m.Return) == 0 {
		return both, child, false
	}
	text = text[:hi-lo]
	call := bytes.Index(text, m.Syscall.Code)
	if call < 0 {
		return both, child, false
	}
	call += len(m.Syscall.Code)
	ret := bytes.Index(text[call:], m.Return)
	if ret < 0 {
		return both, child, false
	}
	end := lo + arch.Vaddr(call+ret+len(m.Return))
	return unwind.Range{Lo: lo + arch.Vaddr(call), Hi: end}, unwind.Range{Lo: end, Hi: hi}, true
}

// maxMoved bounds the size of a function whose code is read, in bytes: real ones have 200.
const maxMoved = 1 << 10

// moved returns the code of a function in which a register has the stack pointer: behind the instruction that copies it there, wherever
// the frame has the size that it has there. The register is not changed before the function returns.
func moved(c *unwind.Code, img *module.Image, lo, hi arch.Vaddr) (out []unwind.Moved) {
	copies, reg := c.Machine.GoMove.Code, c.Machine.GoMove.To
	text := img.Tail(lo)
	if hi <= lo || hi-lo > maxMoved || uint64(len(text)) < uint64(hi-lo) || c.Stepper == nil || len(copies) == 0 {
		return nil
	}
	at := bytes.Index(text[:hi-lo], copies)
	if at < 0 {
		return nil
	}
	lo += arch.Vaddr(at + len(copies))
	frame, ok := c.Stepper.Find(lo)
	for v := lo; ok && v < hi; v++ {
		if id, in := c.Stepper.Find(v); !in || id != frame {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Hi == v {
			out[n-1].Hi++
		} else {
			out = append(out, unwind.Moved{Range: unwind.Range{Lo: v, Hi: v + 1}, SP: reg})
		}
	}
	return out
}
