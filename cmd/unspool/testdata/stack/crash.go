// A program whose goroutine follows a nil pointer while others wait. With GOTRACEBACK=crash it ends by SIGABRT.
package main

import "sync"

type node struct{ next *node }

//go:noinline
func last(n *node, depth int) *node {
	if depth > 0 {
		return last(n, depth-1).next
	}
	return n.next
}

func main() {
	var wg sync.WaitGroup
	block := make(chan int)
	for range 3 {
		wg.Go(func() { <-block })
	}
	wg.Go(func() { last(nil, 4) })
	wg.Wait()
}
