package ebpf

import (
	"math/bits"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
)

// sizes are how many entries the maps have that are sized to the machine. Each is a power of two.
type sizes struct {
	ring      uint32 // bytes of the ring buffer, at least 8 MiB: up to 8 processors, a late reader finds two seconds of new stacks, 8 KB each, at 99 a second and processor
	spaces    uint32 // blocks of 32 ranges
	processes uint32
	threads   uint32 // that are blocked, or woken
	caches    uint32 // one for each processor
}

// sizesOf returns the sizes for a machine with processors and bytes of memory. What grows with need has 16 bytes for each entry from the
// start; where a kernel fills maps before they are used (fixed), there are fewer. Who needs more is counted: a process that does not fit is
// copied, a thread is lost.
func sizesOf(cpus int, memory uint64, fixed bool) sizes {
	per := func(bytes, least, most uint64) uint32 {
		n := min(max(memory/bytes, least), most)
		return 1 << (bits.Len64(n) - 1)
	}
	s := sizes{
		ring:      1 << bits.Len(uint(min(max(cpus, 4), 8)<<21-1)),
		spaces:    per(128<<10, 1<<14, 1<<18),
		processes: per(256<<10, 1<<14, 1<<17),
		threads:   per(128<<10, 1<<15, 1<<18),
		caches:    uint32(max(cpus, 1)),
	}
	if fixed {
		s.spaces, s.processes, s.threads = per(2<<20, 1<<12, 1<<13), 1<<13, 1<<14
	}
	return s
}

// Where a control group limits memory, the maps are those of a machine with so many times the limit, and the ring buffer is a part of it.
const (
	limitShare  = 16
	tablesShare = 16
	ringShare   = 64
)

// ringOf returns how large the ring buffer is at most, where a control group limits memory.
func ringOf(limit uint64) uint32 {
	return 1 << (bits.Len64(min(max(limit/ringShare, 1<<19), 1<<30)) - 1)
}

// fit makes the specification's maps as large as this machine needs them.
func fit(spec *ebpf.CollectionSpec) error {
	cpus, err := processors()
	if err != nil {
		return err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return os.NewSyscallError("sysinfo", err)
	}
	fixed := !growingHashes()
	memory := info.Totalram * uint64(info.Unit)
	limit, limited := procfs.MemoryLimit()
	if limited {
		memory = min(memory, limit*limitShare)
	}
	s := sizesOf(cpus, memory, fixed)
	if limited {
		s.ring = min(s.ring, ringOf(limit))
	}
	for name, n := range map[string]uint32{
		"samples": s.ring, "spaces": s.spaces, "processes": s.processes, "blocked": s.threads, "wakers": s.threads, "caches": s.caches,
	} {
		spec.Maps[name].MaxEntries = n
	}
	if fixed {
		for _, m := range spec.Maps {
			m.Flags &^= noPrealloc
		}
	}
	return spec.Variables["ring_size"].Set(s.ring)
}

// processors returns the greatest number of a processor that is there, plus one. Those that are offline may come online. Many machines could have a
// hundred processors more, which never come: a sample of one that comes is counted as lost.
func processors() (int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/present")
	if err != nil {
		return ebpf.PossibleCPU()
	}
	s := strings.TrimSpace(string(b))
	last, err := strconv.ParseUint(s[strings.LastIndexAny(s, ",-")+1:], 10, 16)
	if err != nil {
		return ebpf.PossibleCPU()
	}
	return int(last) + 1, nil
}
