// Command goroutines has threads that wait in system calls, and others of the runtime's.
package main

import (
	"os"
	"syscall"
)

//go:noinline
func block(n int, ready chan<- int) int {
	if n > 0 {
		return block(n-1, ready) + 1
	}
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil {
		panic(err)
	}
	ready <- n
	b := make([]byte, 1)
	n, _ = syscall.Read(p[0], b)
	return n
}

func main() {
	ready := make(chan int)
	for i := range 8 {
		go block(10*i, ready)
	}
	for range 8 {
		<-ready
	}
	os.Stdout.WriteString("up\n")
	select {}
}
