//go:build ignore

// Goroutines that recurse, sort, allocate and talk: goroutines SECONDS.
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

func fib(n int) int {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

// deep grows the goroutine's stack, which moves.
func deep(n int) int {
	var frame [64]int
	frame[n%64] = n
	if n == 0 {
		return fib(18)
	}
	return deep(n-1) + frame[n%64]
}

var keys = make([]int, 8000) // their number is not known to the compiler: no frame has all of them

type node struct {
	left, right *node
	key         string
}

func (t *node) insert(key string) *node {
	if t == nil {
		return &node{key: key}
	}
	if key < t.key {
		t.left = t.left.insert(key)
	} else {
		t.right = t.right.insert(key)
	}
	return t
}

func work(until time.Time, in, out chan int) (sum int) {
	for n := range in {
		if time.Now().After(until) {
			break
		}
		var tree *node
		for i := range keys {
			tree = tree.insert(strconv.Itoa(i * 7919 % 8009))
		}
		v := make([]string, 0, len(keys))
		for i := range keys {
			v = append(v, fmt.Sprint(i*7919%2003, tree.key))
		}
		slices.SortFunc(v, func(a, b string) int {
			switch {
			case a < b:
				return -1
			case a > b:
				return 1
			}
			return 0
		})
		sum += deep(100+n%100) + len(v)
		out <- n + 1
	}
	return sum
}

func main() {
	s, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	until := time.Now().Add(time.Duration(s * 1e9))
	ring := make(chan int, 8)
	var wg sync.WaitGroup
	for i := range 4 {
		ring <- i
		wg.Go(func() {
			work(until, ring, ring)
			select {
			case ring <- 0: // for those that still wait
			default:
			}
		})
	}
	wg.Wait()
}
