package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

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
		for s := range c {
			if s == syscall.SIGHUP { // a terminal that goes away can send it twice
				continue
			}
			discard()
			signal.Reset(s)
			syscall.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}()
	return ctx
}
