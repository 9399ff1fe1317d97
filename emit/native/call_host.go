//go:build amd64 || arm64

package native

import "unsafe"

// hostCalls says that this program can call code.
const hostCalls = true

// call calls fn(s, mem, arg), code that Emit wrote. A goroutine is not interrupted there, so nothing moves meanwhile.
//
//go:noescape
func call(fn uintptr, s, mem unsafe.Pointer, arg uintptr) uintptr

// callFind calls fn(pc), a search that Emit wrote.
//
//go:noescape
func callFind(fn, pc uintptr) uintptr

// readSlicePC returns the address of a function for code of kind Callback, which reads as code of kind Slice does.
func readSlicePC() uintptr
