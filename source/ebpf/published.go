package ebpf

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/source/usdt"
)

// OpenTelemetry's probes of memory, by which processes say themselves what they sample: alloc(pointer, bytes, the bytes that they stand for), and
// free(pointer) of a sampled allocation.
const (
	memoryProvider = "otel_memory"
	memoryAlloc    = "alloc"
	memoryFree     = "free"
)

const maxProbes = 1024 // MAX_PROBES of c/heap.h

// An argument is struct argument of c/heap.h, arguments struct arguments.
type argument struct {
	Value         int64
	Reg, Index    uint32
	Kind, Size    uint32
	Signed, Scale uint32
}

type arguments [3]argument

const noRegister = 0xffff

// argumentOf says where an argument is in a probe's context, struct pt_regs: it begins as struct user_regs_struct on x86-64, and as struct
// user_pt_regs on AArch64.
func argumentOf(a usdt.Argument) argument {
	at := func(r arch.Reg) uint32 {
		if r == usdt.NoReg {
			return noRegister
		}
		return uint32(8 * slices.Index(Machine.UserRegs.Slots, Machine.Slot(r)))
	}
	out := argument{Value: a.Value, Reg: at(a.Reg), Index: at(a.Index), Kind: uint32(a.Kind), Size: uint32(a.Size), Scale: uint32(a.Scale)}
	if a.High {
		out.Reg++
	}
	if a.Signed {
		out.Signed = 1
	}
	return out
}

// A publisher is a file with probes of memory.
type publisher struct {
	path        string
	file        *os.File // of it, open
	alloc, free []probeAt
}

// A probeAt is a place of a probe.
type probeAt struct {
	off, semaphore uint64
	args           arguments
}

// findPublishers returns the files of a process that have probes of memory, and are open; err says why others are not among them.
func findPublishers(pid int) (all []*publisher, err error) {
	files, err := executables(pid)
	if err != nil {
		return nil, err
	}
	for i := range files {
		p, perr := openPublisher(pid, &files[i])
		switch {
		case perr != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", files[i].Name, perr))
		case p != nil:
			p.path = files[i].Name
			all = append(all, p)
		}
	}
	return all, err
}

// openPublisher returns the publisher that a file is; nil if it has no probe that says what is allocated. An error says that it has some that cannot be
// understood: then none is taken, as sums would be wrong.
func openPublisher(pid int, m *procfs.Mapping) (*publisher, error) {
	var err error
	p, f, _ := openAs(pid, m, func(img *module.Image) (p *publisher, _ error) { // of a file that cannot be read, nobody knows of probes
		p, err = publisherOf(img)
		return p, nil
	})
	if p != nil {
		p.file = f
	}
	return p, err
}

// publisherOf returns the publisher that an image is; nil for none.
func publisherOf(img *module.Image) (*publisher, error) {
	p := &publisher{}
	list, err := usdt.Read(img, memoryProvider)
	if err != nil {
		return nil, err
	}
	for i := range list {
		one := &list[i]
		t := probeAt{off: one.Off, semaphore: one.Semaphore}
		takes := 0
		switch one.Name {
		case memoryAlloc:
			takes = 3
		case memoryFree:
			takes = 1
		default:
			continue
		}
		if img.Machine() != Machine {
			return nil, fmt.Errorf("its probes are for %s, not for %s", img.Machine().Name, Machine.Name)
		}
		args, err := one.Arguments(Machine)
		if err != nil {
			return nil, err
		}
		if len(args) < takes {
			return nil, fmt.Errorf("probe %s:%s has %d arguments, not %d", memoryProvider, one.Name, len(args), takes)
		}
		for k := range takes {
			t.args[k] = argumentOf(args[k])
		}
		if takes == 1 {
			p.free = append(p.free, t)
		} else {
			p.alloc = append(p.alloc, t)
		}
	}
	if len(p.alloc) == 0 {
		return nil, nil
	}
	return p, nil
}

// attachPublisher has the programs run at a file's probes of memory, in a process.
func (p *Program) attachPublisher(pub *publisher, pid int) error {
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", pub.file.Fd()))
	if err != nil {
		return err
	}
	attach := func(name, program string, all []probeAt) error {
		for i := range all {
			number := uint32(p.probes)
			if number == maxProbes {
				return fmt.Errorf("there are more than %d", maxProbes)
			}
			if all[i].semaphore > math.MaxUint32 { // the kernel's interface has 32 bits of it, and would count elsewhere
				return fmt.Errorf("its semaphore lies at %#x of the file", all[i].semaphore)
			}
			p.probes++
			if err := p.more.Maps["probes"].Put(number, &all[i].args); err != nil {
				return err
			}
			l, err := exe.Uprobe(name, p.more.Programs[program], &link.UprobeOptions{
				Address: all[i].off, RefCtrOffset: all[i].semaphore, PID: pid, Cookie: uint64(number),
			})
			if err != nil {
				return err
			}
			p.links = append(p.links, l)
		}
		return nil
	}
	// What ends comes first: nothing that is seen to begin is missed then.
	if err := attach(memoryFree, "on_published_free", pub.free); err != nil {
		return err
	}
	return attach(memoryAlloc, "on_published", pub.alloc)
}
