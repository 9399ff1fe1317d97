package source

import (
	"fmt"
	"runtime/debug"
)

// guard returns what f returns. A mapped file that is cut short while it is read faults where it ends; guard makes that an error.
func guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			fault, ok := p.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(p)
			}
			err = fmt.Errorf("%w: a mapped file has become shorter: %v", ErrTruncated, fault)
		}
	}()
	return f()
}
