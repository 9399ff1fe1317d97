// Callbacks calls C, which calls Go, which calls C, in ways whose chains of calls are known. Its first argument says what it does.
package main

/*
#cgo CFLAGS: -O2 -fomit-frame-pointer -pthread
#include "callbacks.h"
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// What the callback does, and how much of it.
const (
	spinGo = iota
	spinC
	crash
	abort
	null
	panics
	stack
	stacks
	park
	nest
	recovers
	nothing
	fault
)

var (
	parked  = make(chan bool)
	release = make(chan bool)
	sink    atomic.Int64
)

//go:noinline
func goLeaf(n int) {
	x := sink.Load()
	for i := range n {
		x = x*31 + int64(i)
	}
	sink.Store(x)
}

//export goCallback
func goCallback(what, n C.int) {
	goMiddle(int(what), int(n))
}

//go:noinline
func goMiddle(what, n int) {
	switch what {
	case spinGo:
		goLeaf(n)
	case spinC:
		C.c_inner(C.int(n))
	case crash:
		C.c_crash(nil)
	case abort:
		C.c_abort()
	case null:
		C.c_null()
	case panics:
		panic("from Go")
	case fault:
		*(*int)(nil) = 1
	case stack, stacks:
		b := make([]byte, 1<<20)
		fmt.Printf("%s", b[:runtime.Stack(b, what == stacks)])
	case park:
		parked <- true
		<-release
	case nest:
		if n > 0 {
			C.c_outer(nest, C.int(n-1), 2)
		} else {
			goMiddle(stack, 0)
		}
	case recovers:
		if n > 0 {
			C.c_outer(recovers, C.int(n-1), 2)
		}
		panic("through C")
	}
}

//go:noinline
func outer(what, n, depth int) { C.c_outer(C.int(what), C.int(n), C.int(depth)) }

//go:noinline
func sorted(what, n int) { C.c_sorted(C.int(what), C.int(n)) }

//go:noinline
func only(n int) { C.c_inner(C.int(n)) }

func caught() {
	defer func() { recover() }()
	outer(recovers, 4, 2)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// used is the processor time that this process has used.
func used() time.Duration {
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano())
}

// profile writes a CPU profile of what f does in that much processor time.
func profile(path string, d time.Duration, f func()) {
	out, err := os.Create(path)
	check(err)
	runtime.SetCPUProfileRate(1000)
	pprof.StartCPUProfile(out) // it says that the rate is set
	for end := used() + d; used() < end; {
		f()
	}
	pprof.StopCPUProfile()
	check(out.Close())
}

const some = 2_000_000

func every() {
	outer(spinC, some, 3)
	outer(spinGo, some, 3)
	sorted(spinC, some)
	only(some)
}

func main() {
	n := 0
	if len(os.Args) > 3 {
		var err error
		n, err = strconv.Atoi(os.Args[3])
		check(err)
	}
	switch os.Args[1] {
	case "profile":
		profile(os.Args[2], 3*time.Second, every)
	case "threads":
		profile(os.Args[2], 3*time.Second, func() {
			C.c_start(4, some)
			var w sync.WaitGroup
			for range 4 {
				w.Go(every)
			}
			w.Wait()
			C.c_join()
		})
	case "crash":
		outer(crash, 0, 3)
	case "abort":
		outer(abort, 0, 3)
	case "null":
		outer(null, 0, 3)
	case "panic":
		outer(panics, 0, 3)
	case "fault":
		outer(fault, 0, 3)
	case "stack":
		outer(stack, 0, 3)
	case "nest":
		if n == 0 {
			n = 4
		}
		outer(nest, n, 2)
	case "recover": // more often than there is room for contexts
		if n == 0 {
			n = 3000
		}
		for range n {
			caught()
		}
		outer(nest, 4, 2)
	case "other":
		go outer(park, 0, 3)
		<-parked
		goMiddle(stacks, 0)
		release <- true
	case "exec": // a signal handler's walk in the child of a fork, and names of a program that has no symbols
		for range 20 {
			out, err := exec.Command("true").CombinedOutput()
			check(err)
			sink.Add(int64(len(out)))
		}
	case "signals": // as many to threads that call C, which calls Go, which calls C
		var w sync.WaitGroup
		stop := make(chan bool)
		for range 4 {
			w.Go(func() {
				runtime.LockOSThread()
				C.c_target()
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					outer(spinC, 20_000, 3)
					sorted(spinGo, 20_000)
					C.c_allocate(50)
					if i%20 == 0 {
						caught()
						C.c_load()
					}
				}
			})
		}
		sent := int(C.c_signals(C.int(n)))
		close(stop)
		w.Wait()
		fmt.Println(sent, "signals")
	case "cost": // of a callback, of a traceback by each of two ways
		fmt.Printf("callback %.1f\n", least(func() { C.c_calls(nothing, 20_000) })/20_000)
		for _, f := range []string{"ours", "libgcc"} {
			frames := 0
			ns := least(func() { frames = int(C.c_walks(C.int(strings.Index("ours libgcc", f)), 20, 2_000)) })
			fmt.Printf("%s %.1f %d\n", f, ns/2_000, frames)
		}
	default:
		check(fmt.Errorf("%s?", os.Args[1]))
	}
}

// least returns the shortest time of f, in nanoseconds.
func least(f func()) float64 {
	best := time.Hour
	for range 15 {
		began := time.Now()
		f()
		best = min(best, time.Since(began))
	}
	return float64(best.Nanoseconds())
}
