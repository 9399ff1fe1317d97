package oracle

import (
	"syscall"
	"time"
)

// CPUTime is the processor time that this process has used, on all cores: unlike the clock, it does not count what
// others did.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
