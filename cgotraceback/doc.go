// Package cgotraceback shows C frames in the tracebacks and CPU profiles of Go programs that use cgo. A program imports it for its effect:
//
//	import _ "github.com/unspool/unspool/cgotraceback"
//
// Then runtime/pprof and all that reads its profiles show the C functions below a cgo call, and those between a callback and the Go code that it
// interrupts. So do runtime.Stack, panics, and the report of a signal that arrived in C. Go prints at most 32 C frames of each call.
//
// The package is C, and unwinds by the modules' .eh_frame, without frame pointers. cgo compiles it with the program; nothing is installed.
// It gives runtime.SetCgoTraceback its three functions, so no other package of the program may. All three are async-signal-safe: none takes a lock
// or allocates by malloc, except that the first name in a module maps the module's file. Names are those of .symtab or .dynsym, as they are in the
// file: C++ is not demangled. There are no lines and no inlined calls.
//
// What Go itself does not show: the C frames between a callback and a panic in it that nobody recovers; a sample's C frames where the profiler's signal
// arrives on the way from C to Go or back. Go 1.26 takes seconds to print a traceback of more than a hundred frames with a C frame in its middle.
//
// It works on Linux, on x86-64 and AArch64. Elsewhere, and without cgo, an import has no effect.
package cgotraceback
