package perfevent

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
)

// sysctl returns a setting below /proc/sys/kernel, or "?".
func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/kernel/" + name)
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(b))
}

func paranoid() string { return sysctl("perf_event_paranoid") }

func isPermission(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// isAbsent says whether err is one of those with which kernels refuse an event that the machine does not have.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENXIO)
}

// explain adds to an error of the kernel what can be done about it. level is the setting of
// kernel.perf_event_paranoid that would permit what was tried.
func explain(err error, doing string, level int) error {
	what := ""
	switch {
	case errors.Is(err, errMap) && isPermission(err):
		what = "the limit of locked memory: raise kernel.perf_event_mlock_kb or RLIMIT_MEMLOCK (ulimit -l)"
	case isPermission(err) && paranoid() == "?":
		what = "this kernel has no perf events"
	case isPermission(err):
		have, e := strconv.Atoi(paranoid())
		own, _ := caps.Own()
		perfmon := own.Has(unix.CAP_PERFMON)
		switch {
		case e == nil && have > caps.MaxParanoid && !own.Has(unix.CAP_SYS_ADMIN) && (perfmon || level >= caps.MaxParanoid):
			what = fmt.Sprintf("kernel.perf_event_paranoid is %d, which takes CAP_SYS_ADMIN: as root, sysctl kernel.perf_event_paranoid=%d", have, caps.MaxParanoid)
		case e == nil && have > level && !perfmon && os.Geteuid() != 0:
			what = fmt.Sprintf("kernel.perf_event_paranoid is %d: as root, sysctl kernel.perf_event_paranoid=%d, or give this program CAP_PERFMON", have, level)
			if have > caps.MaxParanoid {
				what += fmt.Sprintf(" and set it to %d", caps.MaxParanoid)
			}
		default:
			what = "the system refuses perf events here: a container's seccomp filter, or a missing CAP_PERFMON"
		}
	case errors.Is(err, unix.ENOSYS):
		what = "perf events are not to be had here: the kernel has none, or a container's seccomp filter refuses them"
	case errors.Is(err, unix.EMFILE):
		what = "too many descriptors for the number of threads and processors: raise RLIMIT_NOFILE (ulimit -Hn), or record all processors"
	case errors.Is(err, unix.ENFILE):
		what = "too many open files in the system: raise fs.file-max"
	case errors.Is(err, unix.EBUSY):
		what = "another program holds the counters"
	case errors.Is(err, unix.EINVAL):
		what = "the kernel does not take this event with these options"
	}
	if what == "" {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return fmt.Errorf("%s: %w (%s)", doing, err, what)
}
