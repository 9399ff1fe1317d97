//go:build linux && cgo && (amd64 || arm64)

package cgotraceback

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -fvisibility=hidden
#include "traceback.h"
*/
import "C"

import (
	"reflect"
	"runtime"
	"unsafe"
)

func init() {
	lo, hi := text()
	C.us_go_text(C.uintptr_t(lo), C.uintptr_t(hi))
	runtime.SetCgoTraceback(0, unsafe.Pointer(C.us_go_traceback), unsafe.Pointer(C.us_go_context), unsafe.Pointer(C.us_go_symbolizer))
}

// text returns the range of Go's code, which is in one piece: where a walk through C ends. FuncForPC knows code of that range only.
func text() (lo, hi uintptr) {
	here := reflect.ValueOf(text).Pointer()
	edge := func(outside func(distance uintptr) uintptr) uintptr {
		in, out := uintptr(0), uintptr(1)
		for runtime.FuncForPC(outside(out)) != nil {
			in, out = out, 2*out
		}
		for out-in > 1 {
			if mid := in + (out-in)/2; runtime.FuncForPC(outside(mid)) != nil {
				in = mid
			} else {
				out = mid
			}
		}
		return outside(in)
	}
	lo = edge(func(d uintptr) uintptr { return here - d })
	hi = edge(func(d uintptr) uintptr { return here + d })
	return lo, hi + 1
}
