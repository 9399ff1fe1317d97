// Goroutines whose stacks grow, a panic, a signal, and the time.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func deep(n int) int {
	if n == 0 {
		return 0
	}
	var room [100]int
	room[n%100] = n
	return deep(n-1) + room[n%100]
}

func main() {
	start := time.Now()
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { deep(30 * i) })
	}
	wg.Wait()
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	<-c
	func() {
		defer func() { fmt.Println(recover()) }()
		var p *int
		*p = 1
	}()
	fmt.Println(time.Since(start) > 0)
}
