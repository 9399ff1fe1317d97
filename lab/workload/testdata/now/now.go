// Now asks for the time, again and again.
package main

import (
	"fmt"
	"os"
	"time"
)

//go:noinline
func now() (n int64) {
	for i := 0; i < 1000; i++ {
		n += time.Now().UnixNano() + int64(time.Since(start))
	}
	return n
}

var start = time.Now()

func main() {
	n := int64(0)
	for time.Since(start) < 2*time.Second {
		n += now()
	}
	fmt.Fprintln(os.Stderr, n != 0)
}
