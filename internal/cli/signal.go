package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// once is how long after the first signal others are the same wish: timeout(1) sends one to the program and one to its group.
const once = 250 * time.Millisecond

// UntilSignal returns a context that ends with the first signal that asks for the end: what there is is written then. A second Ctrl-C is for
// those who do not want to wait for that: after discard, it ends the process.
func UntilSignal(discard func()) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(c, syscall.SIGHUP)
	}
	go func() {
		<-c
		cancel()
		first := time.Now()
		for s := range c {
			if s == syscall.SIGHUP || time.Since(first) < once { // a terminal that goes away can send it twice, too
				continue
			}
			discard()
			signal.Reset(s)
			syscall.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}()
	return ctx
}

// OnHangup calls f for each SIGHUP, one after another, instead of ending the program. After stop, SIGHUP does nothing.
func OnHangup(f func()) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Reset(syscall.SIGHUP)
	signal.Notify(c, syscall.SIGHUP)
	go func() {
		for range c {
			f()
		}
	}()
	return func() {
		signal.Ignore(syscall.SIGHUP)
		close(c)
	}
}
