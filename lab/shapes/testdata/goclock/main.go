// chain: LIB* vdso* LIB* s_clock main LIB{2}
// chain: LIB* vdso* LIB+
// The time, in Go, which switches to another stack for the code of the kernel's.
package main

import (
	"os"
	"time"
)

var sum int

//go:noinline
func s_clock() {
	os.Stdout.WriteString("ready\n")
	for sum >= 0 {
		sum = time.Now().Nanosecond()
	}
}

func main() {
	s_clock()
	println(sum)
}
