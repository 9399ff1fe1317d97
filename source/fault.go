package source

import (
	"fmt"
	"runtime/debug"
)

// Guard returns what f returns. A mapped file that is cut short while it is read faults where it ends: Guard makes that
// an error, in f's own goroutine only. Run guards all that it calls.
func Guard(f func() error) (err error) {
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
