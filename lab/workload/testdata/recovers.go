// Recovers reads through a null pointer, again and again, at a function's first instruction. Its argument is for how many milliseconds.
package main

import (
	"os"
	"strconv"
	"time"
)

//go:noinline
func deref(p *int) int { return *p }

//go:noinline
func try() {
	defer func() { recover() }()
	deref(nil)
}

func main() {
	ms, _ := strconv.Atoi(os.Args[1])
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); {
		try()
	}
}
