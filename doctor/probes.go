package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/symbol"
)

// setcap returns the command that gives this program capabilities.
func setcap(names ...string) string {
	exe, err := os.Executable()
	if err != nil {
		exe = "unspool"
	}
	return fmt.Sprintf("sudo setcap %s=ep %s", strings.Join(names, ","), exe)
}

func setcapOurs() string {
	return setcap(caps.Set(0).Lacks()...)
}

// tryEvent opens a sampling event and closes it.
func tryEvent(typ uint32, config uint64, bits uint64, pid, cpu int) error {
	a := unix.PerfEventAttr{
		Type: typ, Config: config, Size: unix.PERF_ATTR_SIZE_VER1, Sample: 99, Bits: bits | unix.PerfBitFreq | unix.PerfBitDisabled,
		Sample_type: unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID,
	}
	fd, err := unix.PerfEventOpen(&a, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// walkKernel is what to change where the kernel cannot walk stacks: 5.10 is the oldest long-term kernel that does.
const walkKernel = "Linux 5.10 or later; until then, stacks are copied and walked here"

const userOnly = unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv

// ways tries each way of working.
func ways(needs []Finding) []Finding {
	byName := map[string]*Finding{}
	for i := range needs {
		byName[needs[i].Name] = &needs[i]
	}
	clock := func(bits uint64, pid, cpu int) error {
		return tryEvent(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_CLOCK, bits, pid, cpu)
	}
	list := []Finding{
		event("record-user", "record own processes by copies of stacks, user space", clock(userOnly, 0, -1), 2),
		event("record-kernel", "record own processes by copies, with kernel frames", clock(0, 0, -1), 1),
		event("record-all", "record the whole machine (-a) by copies", clock(0, -1, 0), 0),
	}
	inKernel := Finding{Name: "record-ebpf", What: "record with stacks walked in the kernel (--source ebpf)"}
	prog, err := ebpf.Load(ebpf.Options{})
	if err == nil {
		err = prog.Close()
	}
	if inKernel.OK = err == nil; err != nil {
		inKernel.Reason = err.Error()
	}
	have, _ := caps.Own()
	lacks := have.Lacks()
	switch {
	case errors.As(err, new(*ebpf.VerifierError)):
		inKernel.Change = walkKernel
	case err != nil && len(lacks) > 0:
		inKernel.Change = setcapOurs()
	case err != nil:
		for _, name := range []string{"bpf-jit", "btf", "bpf-program", "bpf-tracing", "bpf-ring-buffer", "lockdown"} {
			if f := byName[name]; !f.OK && f.Change != "" {
				inKernel.Change = f.Change
				break
			}
		}
	case len(lacks) > 0:
		inKernel.Reason = "but not other users' processes: " + strings.Join(lacks, " and ") + " is missing"
		inKernel.Change = setcapOurs()
	}
	list = append(list, inKernel)

	names := Finding{Name: "kernel-names", What: "names of kernel functions"}
	r := symbol.New(symbol.Options{})
	defer r.Close()
	if _, _, names.OK = r.KernelText(); !names.OK {
		names.Reason = r.KernelNote()
		names.Change = "sudo sysctl kernel.kptr_restrict=0 kernel.perf_event_paranoid=1"
	}
	run := Finding{Name: "run", What: "unspool run: stock perf on compiled tables"}
	if _, run.Reason, run.Change = findDropin("", programDir()); run.Reason == "" {
		run.OK, run.Change = true, ""
	}
	exceptions := Finding{Name: "exceptions", What: "unspool run --exceptions: C++ exceptions and backtraces on compiled rules"}
	if _, exceptions.Reason, exceptions.Change = findExceptions("", programDir()); exceptions.Reason == "" {
		exceptions.OK, exceptions.Change = true, ""
	}
	heap := Finding{Name: "heap", What: "unspool record --heap: where unmodified programs allocate memory"}
	if _, heap.Reason, heap.Change = findPreload("", programDir(), Heap); heap.Reason == "" {
		heap.OK, heap.Change = true, ""
	}
	cache := Finding{Name: "cache", What: "compiled tables are kept in the cache", OK: true}
	mods := modules.New()
	defer mods.Close()
	if err := mods.CacheErr(); err != nil {
		cache.OK, cache.Reason, cache.Change = false, err.Error(), "set UNSPOOL_CACHE to a directory of your own"
	}
	return append(list, names, run, exceptions, heap, cache)
}

// event says what became of trying an event that takes a kernel.perf_event_paranoid of at most level.
func event(name, what string, err error, level int) Finding {
	f := Finding{Name: name, What: what, OK: err == nil}
	if f.OK {
		return f
	}
	has, _ := caps.Own()
	have, known := procfs.Setting("kernel/perf_event_paranoid")
	switch {
	case !known:
		f.Reason, f.Change = "this kernel has no perf events", "a kernel with CONFIG_PERF_EVENTS"
	case (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && have > caps.MaxParanoid && !has.Has(unix.CAP_SYS_ADMIN):
		f.Reason = fmt.Sprintf("kernel.perf_event_paranoid is %d, which takes CAP_SYS_ADMIN", have)
		f.Change = fmt.Sprintf("sudo sysctl kernel.perf_event_paranoid=%d", level)
		if has.Has(unix.CAP_PERFMON) {
			f.Change = fmt.Sprintf("sudo sysctl kernel.perf_event_paranoid=%d", caps.MaxParanoid)
		}
	case (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) && have > level && !has.Has(unix.CAP_PERFMON):
		f.Reason = fmt.Sprintf("kernel.perf_event_paranoid is %d", have)
		f.Change = fmt.Sprintf("sudo sysctl kernel.perf_event_paranoid=%d, or %s", level, setcap("cap_perfmon"))
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		f.Reason = fmt.Sprintf("%v, although the settings allow it: a container's seccomp filter, most likely", err)
		f.Change = "run it outside of the container, or with a filter that allows perf_event_open"
	default:
		f.Reason = err.Error()
	}
	return f
}

// needs looks at what the ways of working stand on.
func needs() []Finding {
	c, _ := caps.Own()
	var list []Finding
	add := func(name, what string, ok bool, value, reason, change string) {
		f := Finding{Name: name, What: what, OK: ok, Value: value}
		if !ok {
			f.Reason, f.Change = reason, change
		}
		list = append(list, f)
	}
	lacks := c.Lacks()
	add("capabilities", "capabilities to walk in the kernel", len(lacks) == 0, "", "missing: "+strings.Join(lacks, " "), setcapOurs())
	add("gives-up-capabilities", "recordings give up all other capabilities once they run", caps.CanDrop() == nil, "",
		"this program was built with cgo, whose threads keep them", "build it with CGO_ENABLED=0")
	level, ok := procfs.Setting("kernel/perf_event_paranoid")
	permits := []string{"", "own processes, with kernel frames", "user space of own processes"}
	allowed, lower := "nothing without CAP_SYS_ADMIN", 0
	if level >= 0 && level < len(permits) {
		allowed = permits[level]
	}
	perfmon := c.Has(unix.CAP_PERFMON)
	if perfmon {
		lower = caps.MaxParanoid
	}
	add("perf-event-paranoid", "kernel.perf_event_paranoid", ok && (level <= 0 || level <= caps.MaxParanoid && perfmon || c.Has(unix.CAP_SYS_ADMIN)), value(level, ok),
		"it allows "+allowed, fmt.Sprintf("sudo sysctl kernel.perf_event_paranoid=%d", lower))
	level, ok = procfs.Setting("kernel/kptr_restrict")
	add("kptr-restrict", "kernel.kptr_restrict", ok && (level == 0 || level == 1 && c.Has(unix.CAP_SYSLOG)), value(level, ok),
		"it hides the kernel's addresses", "sudo sysctl kernel.kptr_restrict=0")
	locked, ok := procfs.Setting("kernel/perf_event_mlock_kb")
	var limit unix.Rlimit
	memlock := "unlimited"
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		memlock = err.Error()
	} else if limit.Cur != unix.RLIM_INFINITY {
		memlock = fmt.Sprintf("%d KiB", limit.Cur>>10)
	}
	add("locked-memory", "memory for ring buffers", c.Has(unix.CAP_IPC_LOCK) || ok && locked >= 132 || limit.Cur >= 1<<20,
		fmt.Sprintf("kernel.perf_event_mlock_kb %s, limit of locked memory %s", value(locked, ok), memlock),
		"too little for a ring on each processor", "sudo sysctl kernel.perf_event_mlock_kb=516")
	err := tryEvent(unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES, userOnly, 0, -1)
	why := "this machine has none: samples are taken by the processors' clock"
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		why = err.Error()
	}
	add("hardware-counters", "hardware counters", err == nil, "", why, "")
	list[len(list)-1].Unknown = errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
	lock := lockdown()
	add("lockdown", "kernel lockdown allows reading memory", lock != "confidentiality", lock, "perf and BPF programs cannot read it", "boot without lockdown=confidentiality")
	_, err = os.Stat("/sys/kernel/btf/vmlinux")
	add("btf", "kernel types (BTF)", err == nil, "", "/sys/kernel/btf/vmlinux is not there", "a kernel with CONFIG_DEBUG_INFO_BTF")
	for _, p := range []struct {
		name, what string
		err        error
	}{
		{"bpf-program", "BPF programs on perf events", features.HaveProgramType(bpf.PerfEvent)},
		{"bpf-tracing", "BPF programs on the scheduler's tracepoints", tryTracepoint()},
		{"bpf-ring-buffer", "BPF ring buffers", features.HaveMapType(bpf.RingBuf)},
		{"bpf-inner-maps", "maps of arrays of different lengths", features.HaveMapFlag(features.BPF_F_INNER_MAP)},
	} {
		why, change := "this kernel lacks it", walkKernel
		if p.err != nil && !errors.Is(p.err, bpf.ErrNotSupported) {
			if why, change = p.err.Error(), ""; errors.Is(p.err, os.ErrPermission) || errors.Is(p.err, unix.EPERM) {
				why = "not known: the kernel refuses to try"
			}
		}
		add(p.name, p.what, p.err == nil, "", why, change)
		list[len(list)-1].Unknown = p.err != nil && !errors.Is(p.err, bpf.ErrNotSupported)
	}
	on, ok := procfs.Setting("net/core/bpf_jit_enable")
	jit := value(on, ok)
	if !ok {
		jit = "this user cannot read it"
	}
	add("bpf-jit", "net.core.bpf_jit_enable", !ok || on > 0, jit, "this kernel cannot run programs with functions otherwise", "sudo sysctl net.core.bpf_jit_enable=1")
	add("pid-namespace", "in the first PID namespace", procfs.FirstPIDs(), "", "processes outside of this namespace have no numbers here: they are not recorded, or not named", "run it outside of the container, or start the container with --pid=host")
	at := procfs.Mounted("cgroup2")
	add("cgroup2", "cgroup v2, for --cgroup", at != "", at, "not mounted", "sudo mount -t cgroup2 none /sys/fs/cgroup")
	tracing, err := perfevent.Tracefs()
	why = ""
	if err != nil {
		why = err.Error()
	}
	if err != nil {
		tracing = ""
	} else if tracing = filepath.Dir(tracing); strings.HasPrefix(tracing, "/proc/self/fd/") {
		tracing = "mounted for this process"
	}
	add("tracefs", "tracefs, for tracepoints", err == nil, tracing, why, "run it as root")
	return list
}

// tryTracepoint loads a program for a tracepoint of the scheduler, as recordings do. features.HaveProgramType loads one for a function:
// Linux 5.10 on AArch64 refuses that one.
func tryTracepoint() error {
	p, err := bpf.NewProgramWithOptions(&bpf.ProgramSpec{
		Type: bpf.Tracing, AttachType: bpf.AttachTraceRawTp, AttachTo: "sched_process_exec", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	}, bpf.ProgramOptions{LogDisabled: true})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG) { // it does not know the type
		return bpf.ErrNotSupported
	} else if err != nil {
		return err
	}
	return p.Close()
}

func value(n int, ok bool) string {
	if !ok {
		return "?"
	}
	return strconv.Itoa(n)
}

// lockdown returns the mode of kernel lockdown: none, integrity or confidentiality.
func lockdown() string {
	b, err := os.ReadFile("/sys/kernel/security/lockdown")
	if err != nil {
		return "none"
	}
	_, s, _ := strings.Cut(string(b), "[")
	s, _, _ = strings.Cut(s, "]")
	return s
}
