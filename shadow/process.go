package shadow

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A process is an address space, and the threads in it share what is known of its code and stacks.
type process struct {
	t       *tracer
	pid     int
	mem     reader
	regions []region
	space   *unwind.Space // of them; nil: not made yet
	sites   map[uint64]*site
	stacks  []*stack // those that no thread is on
	stale   bool     // the mappings have changed
	foreign bool     // 32-bit code: it is not followed
	signs   uint64   // the bits that signatures of return addresses use
}

// A region is a mapping of a process's memory.
type region struct {
	span
	exec, write bool
	mapping     unwind.Mapping // Module is nil where there is no file
	mod         *module
}

// A site is an instruction at an address, and the row that holds there.
type site struct {
	inst
	mutable bool // in memory that can be written to, or is of no ELF file
	compare bool // there is a row, and the filters want it
	code    [maxInst]byte
	mod     *module
	vaddr   arch.Vaddr
	stepper rows.Stepper
	rule    uint32
	found   *Finding // what was wrong here before
}

// readMaps reads the mappings of a process (proc_pid_maps(5)).
func (p *process) readMaps() error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		return err
	}
	p.stale = false
	var out []region
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 5 {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		lo, err1 := strconv.ParseUint(from, 16, 64)
		hi, err2 := strconv.ParseUint(to, 16, 64)
		off, err3 := strconv.ParseUint(f[2], 16, 64)
		if err1 != nil || err2 != nil || err3 != nil || len(f[1]) < 3 {
			continue
		}
		r := region{span: span{lo, hi}, exec: f[1][2] == 'x', write: f[1][1] == 'w'}
		if len(f) > 5 && r.exec {
			path := strings.Join(f[5:], " ")
			r.mod = p.t.module(path)
			r.mapping = unwind.Mapping{Lo: arch.Addr(lo), Hi: arch.Addr(hi), Off: off, Module: r.mod.code}
		}
		out = append(out, r)
	}
	if !slices.Equal(executable(p.regions), executable(out)) {
		p.sites = map[uint64]*site{}
	}
	p.regions, p.space = out, nil
	return nil
}

func executable(rs []region) []region {
	return slices.DeleteFunc(slices.Clone(rs), func(r region) bool { return !r.exec })
}

// region returns the mapping that contains a, or nil.
func (p *process) region(a uint64) *region {
	i := sort.Search(len(p.regions), func(i int) bool { return p.regions[i].hi > a })
	if i < len(p.regions) && p.regions[i].has(a) {
		return &p.regions[i]
	}
	return nil
}

// hasGo says whether there is Go code in the process.
func (p *process) hasGo() bool {
	return slices.ContainsFunc(p.regions, func(r region) bool { return r.mod != nil && r.mod.isGo })
}

// holds says whether the word at addr is v.
func (p *process) holds(addr, v uint64) bool {
	x, ok := p.mem.Read8(addr)
	return ok && x == v
}

// unsigned returns what may be a signed return address without its signature.
func (p *process) unsigned(v uint64) uint64 {
	if p.signs == 0 {
		return v
	}
	return v & (p.signs&-p.signs - 1)
}

// afterCall says whether the instruction before pc is a call.
func (p *process) afterCall(pc uint64) bool {
	var b [arch.MaxCall]byte
	n := readMemory(p.pid, pc-uint64(len(b)), b[:])
	return host.AfterCall(b[:n])
}

// site returns what is known of the instruction at pc.
func (p *process) site(pc uint64) *site {
	if p.stale {
		p.readMaps() // a process that is gone says so at the next step
	}
	s := p.sites[pc]
	if s != nil && !s.mutable {
		return s
	}
	var code [maxInst]byte
	n := readMemory(p.pid, pc, code[:host.longest])
	if s != nil && s.code == code {
		return s
	}
	s = &site{inst: host.decode(code[:n]), code: code, mutable: true, mod: p.t.nowhere}
	if r := p.region(pc); r == nil {
		p.stale = true
	} else if r.mod != nil {
		s.mod, s.mutable = r.mod, r.write || !r.mod.file
		p.find(s, r, pc)
	}
	p.sites[pc] = s
	return s
}

// find looks for the row of an instruction.
func (p *process) find(s *site, r *region, pc uint64) {
	v, ok := r.mapping.Vaddr(arch.Addr(pc))
	if !ok {
		return
	}
	s.vaddr = v
	c := r.mapping.Module.Code()
	if slices.ContainsFunc(c.Terminal, func(t unwind.Range) bool { return t.Lo <= v && v < t.Hi }) {
		return // a walk ends here, whatever the row says
	}
	if c.Stepper != nil {
		if id, ok := c.Stepper.Find(v); ok {
			s.stepper, s.rule = c.Stepper, id
			s.compare = p.t.wants(s)
		}
	}
}

// changesMaps says whether a system call that is about to be made may change executable mappings.
func (p *process) changesMaps(r *regs) bool {
	const exec, fixed = unix.PROT_EXEC, unix.MAP_FIXED
	arg := func(i int) uint64 { return r.r[host.Syscall.Args[i]] }
	switch r.call() {
	case unix.SYS_MMAP:
		return arg(2)&exec != 0 || arg(3)&fixed != 0 && p.overlaps(arg(0), arg(1))
	case unix.SYS_MPROTECT, unix.SYS_PKEY_MPROTECT:
		return arg(2)&exec != 0 || p.overlaps(arg(0), arg(1))
	case unix.SYS_MUNMAP, unix.SYS_MREMAP:
		return p.overlaps(arg(0), arg(1))
	case unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_REMAP_FILE_PAGES:
		return true
	}
	return false
}

// overlaps says whether there is executable memory in [lo, lo+n).
func (p *process) overlaps(lo, n uint64) bool {
	for i := range p.regions {
		if r := &p.regions[i]; r.exec && r.lo < lo+n && lo < r.hi {
			return true
		}
	}
	return false
}
