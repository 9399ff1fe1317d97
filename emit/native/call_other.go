//go:build !amd64 && !arm64

package native

import "unsafe"

const hostCalls = false

func call(uintptr, unsafe.Pointer, unsafe.Pointer, uintptr) uintptr { panic(ErrHost) }

func callFind(uintptr, uintptr) uintptr { panic(ErrHost) }

func readSlicePC() uintptr { panic(ErrHost) }
