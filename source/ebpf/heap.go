package ebpf

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/module"
)

// Heap asks for the allocations of processes, with source.OnAllocations: probes at the functions of their allocators. A sample's period is the
// bytes of an allocation; that of one with source.MiscFreed the bytes of a sampled allocation that was freed. Of a process that has OpenTelemetry's
// probes of memory, the samples are those that it takes itself: with source.MiscSized, the period is the bytes that the allocation stands for, and IP its
// own. Linux 5.15 and later.
type Heap struct {
	Period uint64 // bytes, on average, between samples that the kernel takes; 0 or 1: every allocation
	PIDs   []int
}

// What c/heap.h says of a function, and what its cookie says of its arguments.
const (
	sizeFirst = iota
	sizeSecond
	sizeProduct
	sizeOut

	frees = 4
)

// allocators are the functions of allocators, with the cookies of those that allocate. reallocarray calls realloc. An operator of C++ counts if it is
// in the same file as malloc: elsewhere, it calls malloc.
var allocators = map[string]uint64{
	"malloc": sizeFirst, "calloc": sizeProduct, "realloc": sizeSecond | frees, "memalign": sizeSecond, "aligned_alloc": sizeSecond,
	"posix_memalign": sizeOut, "valloc": sizeFirst, "pvalloc": sizeFirst,
	"_Znwm": sizeFirst, "_Znam": sizeFirst, "_ZnwmRKSt9nothrow_t": sizeFirst, "_ZnamRKSt9nothrow_t": sizeFirst, "_ZnwmSt11align_val_t": sizeFirst,
	"_ZnamSt11align_val_t": sizeFirst, "_ZnwmSt11align_val_tRKSt9nothrow_t": sizeFirst, "_ZnamSt11align_val_tRKSt9nothrow_t": sizeFirst,
}

// throwing are those that do not return when there is no memory, but throw. An exception does not find its way through a function that has a probe at
// its return: the program would end. So they have no probes. The standard library's call malloc; those of an allocator that does not are not seen.
var throwing = []string{"_Znwm", "_Znam", "_ZnwmSt11align_val_t", "_ZnamSt11align_val_t"}

var deallocators = []string{
	"free", "cfree", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm", "_ZdlPvRKSt9nothrow_t", "_ZdaPvRKSt9nothrow_t", "_ZdlPvSt11align_val_t", "_ZdaPvSt11align_val_t",
	"_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t", "_ZdlPvSt11align_val_tRKSt9nothrow_t", "_ZdaPvSt11align_val_tRKSt9nothrow_t",
}

const numDraws = 4096

// draws are quantiles of the exponential distribution of mean period, which the kernel chooses from: of each 4096th its mean. With a period of 1, each
// allocation is a sample, also of one byte.
func draws(period uint64) []uint64 {
	if period <= 1 {
		return slices.Repeat([]uint64{1}, numDraws)
	}
	out := make([]uint64, numDraws)
	// The integral of -ln(1-u) is (1-u) ln(1-u) - (1-u), up to a constant.
	integral := func(u float64) float64 {
		if u >= 1 {
			return 0
		}
		return (1-u)*math.Log(1-u) - (1 - u)
	}
	for i := range out {
		mean := numDraws * (integral(float64(i+1)/numDraws) - integral(float64(i)/numDraws))
		out[i] = max(uint64(mean*float64(period)+0.5), 1)
	}
	return out
}

// An allocator is a file that a process can allocate by.
type allocator struct {
	path     string
	file     *os.File          // of it, open
	allocate map[uint64]uint64 // cookies by offset in the file
	free     map[uint64]bool
	unseen   bool // it has an operator new of its own that may throw
}

// findAllocators returns the files of a process that have allocators, and are open: the program itself, libraries that are there for nothing else,
// and others. Which of them is called is not known: a library that was loaded later can be for its own calls only. The dynamic linker's is not
// among them, unless it is musl, which is the C library, too.
func findAllocators(pid int) (all []*allocator, err error) {
	files, err := executables(pid)
	if err != nil {
		return nil, err
	}
	var first error
	for i := range files {
		if isLinker(files[i].Name) {
			continue
		}
		a, err := openAllocator(pid, &files[i])
		if err != nil || a == nil {
			first = cmp.Or(first, err)
			continue
		}
		a.path = files[i].Name
		all = append(all, a)
	}
	if len(all) == 0 {
		if first != nil {
			return nil, fmt.Errorf("process %d: no function malloc was found in its files: %w", pid, first)
		}
		return nil, fmt.Errorf("process %d: none of its files has a function malloc", pid)
	}
	return all, nil
}

// executables returns the mappings by which a process has files mapped executable, one of each file.
func executables(pid int) (files []procfs.Mapping, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mappings, err := procfs.Mappings(f)
	if err != nil {
		return nil, err
	}
	for _, m := range mappings {
		if strings.HasPrefix(m.Name, "/") && m.Prot&unix.PROT_EXEC != 0 && m.Inode != 0 &&
			!slices.ContainsFunc(files, func(f procfs.Mapping) bool { return f.Inode == m.Inode && f.Name == m.Name }) {
			files = append(files, m)
		}
	}
	return files, nil
}

// openExecutable opens a file that a process has mapped: through the mapping, as another file may be at its path by now, and a path of a process with
// another root directory can lead nowhere there (proc(5): /proc/PID/map_files takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE).
func openExecutable(pid int, m *procfs.Mapping) (*os.File, error) {
	if f, err := procfs.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.Lo, m.Hi)); err == nil {
		return f, nil
	}
	return procroot.Open(pid, m.Name)
}

// openAs returns what a file of a process is, and the file, open; nil if it is nothing that read knows.
func openAs[T any](pid int, m *procfs.Mapping, read func(*module.Image) (*T, error)) (x *T, f *os.File, err error) {
	f, err = openExecutable(pid, m)
	if err != nil {
		return nil, nil, err
	}
	img, err := module.Map(f)
	if err == nil {
		defer img.Close()
		err = module.Guard(func() (err error) { x, err = read(img); return err }) // the process may be able to cut it short
	}
	if err != nil || x == nil {
		f.Close()
		return nil, nil, err
	}
	return x, f, nil
}

// isLinker says whether a file is a dynamic linker that is no C library: it allocates before there is one.
func isLinker(path string) bool {
	base := filepath.Base(path)
	return (strings.HasPrefix(base, "ld-") || strings.HasPrefix(base, "ld.")) && !strings.HasPrefix(base, "ld-musl-")
}

// openAllocator returns the allocator in a file; nil if it has none.
func openAllocator(pid int, m *procfs.Mapping) (*allocator, error) {
	a, f, err := openAs(pid, m, allocatorOf)
	if a != nil {
		a.file = f
	}
	return a, err
}

// allocatorOf returns the allocator in an image; nil if it has none.
func allocatorOf(img *module.Image) (*allocator, error) {
	if img.Machine() != Machine {
		return nil, fmt.Errorf("%s is for %s, not for %s", img.Name(), img.Machine().Name, Machine.Name)
	}
	a := &allocator{allocate: map[uint64]uint64{}, free: map[uint64]bool{}}
	isMalloc, throws := false, false
	err := img.Symbols(func(s module.Symbol) bool {
		name, _, _ := strings.Cut(s.Name, "@")
		throws = throws || name == "__cxa_throw" && s.Section.Defined()
		cookie, allocates := allocators[name]
		if !allocates && !slices.Contains(deallocators, name) || !s.Section.Defined() || s.Kind != module.Func || s.Bind == module.Local {
			return true
		}
		off, ok := img.VaddrToOff(s.Value)
		switch {
		case !ok:
		case slices.Contains(throwing, name):
			a.unseen = true
		case allocates:
			a.allocate[off] = cookie
			isMalloc = isMalloc || name == "malloc"
		default:
			a.free[off] = true
		}
		return true
	})
	if err != nil || !isMalloc || len(a.free) == 0 {
		return nil, err
	}
	a.unseen = a.unseen && !throws // a file with C++'s exceptions in itself, such as a static program, has the standard library's
	return a, nil
}

// cookies says that the kernel does not tell programs which probe they run at.
func cookies() error {
	if err := features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie); errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: probes at allocators take Linux 5.15 or later (bpf_get_attach_cookie)", errors.ErrUnsupported)
	}
	return nil // of another error, loading says more
}

// attachAllocators has the programs run at the allocators of the processes that are asked for.
func (p *Program) attachAllocators() error {
	period := max(p.heap.Period, 1)
	m := p.more.Maps["draws"]
	for i, n := range draws(period) {
		if err := m.Put(uint32(i), n); err != nil {
			return err
		}
	}
	for i, pid := range p.heap.PIDs {
		if slices.Contains(p.heap.PIDs[:i], pid) {
			continue // two probes would look at each call twice
		}
		if err := p.attachProcess(pid); err != nil {
			return err
		}
	}
	return nil
}

// attachProcess has the programs run at the probes by which a process says itself what it samples, or else at its allocators.
func (p *Program) attachProcess(pid int) error {
	publishers, err := findPublishers(pid)
	if err != nil {
		p.heapStats.Unread = append(p.heapStats.Unread, err)
	}
	own := false
	for _, pub := range publishers {
		before, numbers := len(p.links), p.probes
		err := p.attachPublisher(pub, pid)
		pub.file.Close()
		if err != nil { // a file can say that there are probes where none can be
			for _, l := range p.links[before:] {
				l.Close()
			}
			p.links, p.probes = p.links[:before], numbers
			p.heapStats.Unread = append(p.heapStats.Unread, fmt.Errorf("%s: %w", pub.path, err))
			continue
		}
		own = true
		p.heapStats.Publishers = append(p.heapStats.Publishers, Publisher{Path: pub.path, Frees: len(pub.free) > 0})
	}
	if own {
		p.heapStats.Tellers = append(p.heapStats.Tellers, int32(procfs.Leader(pid)))
		return nil
	}
	all, err := findAllocators(pid)
	if err != nil {
		return err
	}
	for _, a := range all {
		if err == nil {
			if err = p.attachAllocator(a, pid); err != nil {
				err = fmt.Errorf("a probe in %s: %w", a.path, err)
			}
		}
		a.file.Close()
		p.heapStats.Allocators = append(p.heapStats.Allocators, a.path)
		if a.unseen {
			p.heapStats.Unseen = append(p.heapStats.Unseen, a.path)
		}
	}
	return err
}

func (p *Program) attachAllocator(a *allocator, pid int) error {
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", a.file.Fd()))
	if err != nil {
		return err
	}
	var errs error
	keep := func(l link.Link, err error) {
		if err == nil {
			p.links = append(p.links, l)
		}
		errs = errors.Join(errs, err)
	}
	// What ends comes first: nothing that is seen to begin is missed then.
	for off := range a.free {
		keep(exe.Uprobe("free", p.more.Programs["on_free"], &link.UprobeOptions{Address: off, PID: pid}))
	}
	for off := range a.allocate {
		keep(exe.Uretprobe("malloc", p.more.Programs["on_alloc_return"], &link.UprobeOptions{Address: off, PID: pid}))
	}
	for off, cookie := range a.allocate {
		keep(exe.Uprobe("malloc", p.more.Programs["on_alloc"], &link.UprobeOptions{Address: off, PID: pid, Cookie: cookie}))
	}
	return errs
}

// A quota is struct quota of c/heap.h.
type quota struct {
	Left                        int64
	Allocations, Frees, Returns uint64
	Published, PublishedFrees   uint64
}

// HeapStats says what probes of Heap have seen.
type HeapStats struct {
	Allocators                  []string    // the files, by process
	Unseen                      []string    // of these, the ones whose own operator new is not recorded, because it may throw
	Publishers                  []Publisher // the files whose probes say what is sampled, by process
	Tellers                     []int32     // the processes that have them
	Unread                      []error     // why there are probes that are not read
	Allocations, Returns, Frees uint64      // calls, each a trap of the process
	Published, PublishedFrees   uint64      // samples that processes said that they took, and freed; each a trap, too
}

// A Publisher is a file whose probes say what a process samples.
type Publisher struct {
	Path  string
	Frees bool // and what of it is freed
}

// HeapStats returns the counts so far.
func (p *Program) HeapStats() HeapStats {
	s := p.heapStats
	var per []quota
	if p.more != nil && p.more.Maps["quotas"] != nil && p.more.Maps["quotas"].Lookup(uint32(0), &per) == nil {
		for _, q := range per {
			s.Allocations, s.Returns, s.Frees = s.Allocations+q.Allocations, s.Returns+q.Returns, s.Frees+q.Frees
			s.Published, s.PublishedFrees = s.Published+q.Published, s.PublishedFrees+q.PublishedFrees
		}
	}
	return s
}

// An allocation is struct object of c/heap.h, a place struct place, a call struct call.
type allocation struct {
	ID, Size, Weight uint64
	PID, TID         int32
	Published, _     uint32
	Time             uint64
}

type call struct {
	Is, Was       allocation
	SP, Out, From uint64
}

type place struct {
	Address uint64
	PID, _  uint32
}

// inUse calls f with the stack of each sampled object that is in use, or being allocated.
func (p *Program) inUse(f func(id uint64)) error {
	var at place
	var thread uint64
	var o allocation
	it := p.more.Maps["objects"].Iterate()
	for it.Next(&at, &o) {
		f(o.ID)
	}
	var c call
	in := p.more.Maps["allocating"].Iterate()
	for in.Next(&thread, &c) {
		f(c.Is.ID)
		f(c.Was.ID)
	}
	return errors.Join(it.Err(), in.Err())
}
