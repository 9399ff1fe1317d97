package names

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
)

// kernelCode names code that the kernel makes while it runs: BPF programs, trampolines, copies of instructions. Records tell when it comes and
// goes; later, other code may have its address. Code that comes where other code was gets a key of its own for each of its addresses; all other
// code has its addresses for keys. See profile.Sample.KernelKey.
//
// Code keeps its addresses until other code comes there: it is reported gone before the last processor has left it.
type kernelCode struct {
	mu      sync.RWMutex
	codes   []ksymbol
	known   map[ksymbol]int32 // where in codes
	first   []int32           // those whose keys are their addresses, by address; no two overlap
	now     []int32           // those that are there now, by address; no two overlap
	late    atomic.Bool       // one has keys of its own
	dropped uint64
}

// A ksymbol is code of the kernel, as a KSYMBOL record describes it.
type ksymbol struct {
	lo, hi uint64
	typ    uint16
	name   string
}

// Bounds of what is remembered, and the keys: no kernel has addresses at lateKeys, whose upper half is the number of the code, and whose lower
// half is the offset in it. noKeys are those that nothing names: the rest is the address.
const (
	maxKernelCodes = 1 << 16
	maxKernelName  = 512      // KSYM_NAME_LEN
	maxKernelCode  = 64 << 20 // bytes; a program of a million instructions has 20 MiB
	lateKeys       = 1 << 62
	noKeys         = lateKeys | 1<<61
)

// observe takes a KSYMBOL record.
func (k *kernelCode) observe(r *source.Record) {
	lo, hi := r.Addr, r.Addr+r.Len
	if hi <= lo || r.Len > maxKernelCode || lo>>63 == 0 || len(r.Symbol) == 0 || len(r.Symbol) > maxKernelName {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	s := ksymbol{lo, hi, r.SymbolType, string(r.Symbol)}
	id, ok := k.known[s]
	if r.SymbolFlags&source.SymbolUnregister != 0 {
		if from, to := k.overlap(k.first, lo, hi); !ok && from == to { // it was there before all records
			if id, ok = k.add(s); ok {
				k.first = slices.Insert(k.first, from, id)
				k.come(id)
			}
		}
		return
	}
	if !ok {
		if id, ok = k.add(s); !ok {
			if from, to := k.overlap(k.now, lo, hi); from < to { // what was there is there no more, and what is has no name
				k.now = slices.Delete(k.now, from, to)
				k.late.Store(true)
			}
			return
		}
		if from, to := k.overlap(k.first, lo, hi); from == to {
			k.first = slices.Insert(k.first, from, id)
		} else {
			k.late.Store(true)
		}
	}
	k.come(id)
}

// add enters code that was not known.
func (k *kernelCode) add(s ksymbol) (id int32, ok bool) {
	if len(k.codes) >= maxKernelCodes {
		k.dropped++
		return 0, false
	}
	if k.known == nil {
		k.known = map[ksymbol]int32{}
	}
	id = int32(len(k.codes))
	k.codes = append(k.codes, s)
	k.known[s] = id
	return id, true
}

// come puts code where it is now, in place of what was there.
func (k *kernelCode) come(id int32) {
	from, to := k.overlap(k.now, k.codes[id].lo, k.codes[id].hi)
	k.now = slices.Replace(k.now, from, to, id)
}

// overlap returns which of a sorted list overlap a range.
func (k *kernelCode) overlap(list []int32, lo, hi uint64) (from, to int) {
	from = sort.Search(len(list), func(i int) bool { return k.codes[list[i]].hi > lo })
	to = from + sort.Search(len(list)-from, func(i int) bool { return k.codes[list[from+i]].lo >= hi })
	return from, to
}

// at returns which of a sorted list has an address.
func (k *kernelCode) at(list []int32, addr uint64) (id int32, ok bool) {
	if from, to := k.overlap(list, addr, addr+1); from < to {
		return list[from], true
	}
	return 0, false
}

// key returns what stands for an address now.
func (k *kernelCode) key(addr uint64) uint64 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	id, there := k.at(k.now, addr)
	first, ok := k.at(k.first, addr)
	switch {
	case !there && ok && k.dropped > 0: // what is there may be one of those that are not known
		return noKeys | addr<<3>>3
	case !there || ok && first == id:
		return addr
	}
	return lateKeys | uint64(id)<<32 | (addr - k.codes[id].lo)
}

// name names keys of code that records have told of.
func (k *kernelCode) name(keys []uint64, names []profile.Name) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if len(k.codes) == 0 {
		return
	}
	for i, key := range keys {
		id, ok := k.at(k.first, key)
		if key>>62 == lateKeys>>62 {
			id = int32(key >> 32 &^ (lateKeys >> 32))
			ok = uint64(id) < uint64(len(k.codes))
		}
		if !ok {
			continue
		}
		s := &k.codes[id]
		names[i] = profile.Name{Func: s.name, Linkage: s.name, Start: s.lo, Module: s.module()}
	}
}

// module is the name that /proc/kallsyms has for the module of s.
func (s *ksymbol) module() string {
	switch {
	case s.typ == source.SymbolBPF:
		return "[bpf]"
	case strings.HasPrefix(s.name, "ftrace_"):
		return "[__builtin__ftrace]"
	case strings.HasPrefix(s.name, "kprobe_"):
		return "[__builtin__kprobes]"
	}
	return ""
}

func (k *kernelCode) notes() []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.dropped == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d programs in the kernel have no names: the recording has more than %d", k.dropped, maxKernelCodes)}
}

// KernelKey returns profile.Sample.KernelKey for samples of now, between the records that were observed and those that follow; nil where each
// address has had only one code so far.
func (n *Namer) KernelKey() func(addr uint64) uint64 {
	if n.code.late.Load() {
		return n.code.key
	}
	return nil
}
