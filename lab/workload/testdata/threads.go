// Threads makes threads that end at once. Its argument is for how many milliseconds.
package main

import (
	"os"
	"runtime"
	"strconv"
	"time"
)

func main() {
	ms, _ := strconv.Atoi(os.Args[1])
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); {
		done := make(chan bool)
		for range 8 {
			go func() {
				runtime.LockOSThread() // its thread ends with the goroutine
				done <- true
			}()
		}
		for range 8 {
			<-done
		}
	}
}
