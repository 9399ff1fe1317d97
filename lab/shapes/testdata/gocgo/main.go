// chain: LIB* s_cspin LIB+ s_mid main LIB{2}
// chain: LIB+
// gdb: it has no rules for how C's stack goes on to Go's
// C, called from Go, on the stack of the thread.
package main

/*
static volatile int forever = 1;
__attribute__((noinline)) static int s_cspin(int n) { while (forever) n++; return n; }
*/
import "C"
import "os"

//go:noinline
func s_mid(n int) int {
	os.Stdout.WriteString("ready\n")
	return int(C.s_cspin(C.int(n))) + 1
}

func main() {
	println(s_mid(len(os.Args)))
}
