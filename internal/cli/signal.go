package cli

import (
	"context"
	"errors"
	"net"
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

// hangups takes SIGHUP, which does not end the program from then on. The channel holds one that has come.
func hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Ignore(syscall.SIGHUP) // or it would come to UntilSignal, too
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// Started tells systemd that a service with Type=notify has started, if it has started this program (sd_notify(3)).
func Started() error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	os.Unsetenv("NOTIFY_SOCKET") // it is no matter of what this program starts
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("READY=1"))
	return errors.Join(err, c.Close())
}
