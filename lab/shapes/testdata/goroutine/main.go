// chain: LIB* vdso? LIB* s_spin s_mid main LIB{2}
// chain: LIB* vdso* LIB+
// A goroutine; the runtime's other threads wait.
package main

import "os"

var forever = true

//go:noinline
func s_spin(n int) int {
	os.Stdout.WriteString("ready\n")
	for forever {
		n = n*5 + 1
	}
	return n
}

//go:noinline
func s_mid(n int) int {
	var local [100]int
	local[n] = s_spin(n + 1)
	return local[n] + 1
}

func main() {
	println(s_mid(len(os.Args)))
}
