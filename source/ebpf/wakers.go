package ebpf

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// An interrupts knows where the kernel's code is that interrupts begin with.
type interrupts struct {
	ranges [][2]uint64 // sorted
}

// loadInterrupts reads the symbols of a machine's kernel (/proc/kallsyms).
func loadInterrupts(r io.Reader, m *arch.Machine) (*interrupts, error) {
	type symbol struct {
		addr  uint64
		entry bool
	}
	var all []symbol
	for lines := bufio.NewScanner(r); lines.Scan(); {
		f := bytes.Fields(lines.Bytes())
		if len(f) < 3 || f[1][0] != 't' && f[1][0] != 'T' {
			continue
		}
		if addr, err := strconv.ParseUint(string(f[0]), 16, 64); err == nil && addr != 0 {
			all = append(all, symbol{addr, entersInterrupt(string(f[2]), m)})
		}
	}
	slices.SortFunc(all, func(a, b symbol) int { return cmp.Compare(a.addr, b.addr) })
	k := &interrupts{}
	for i := range all {
		if !all[i].entry {
			continue
		}
		end := all[i].addr + 1<<10
		for j := i + 1; j < len(all); j++ {
			if all[j].addr > all[i].addr {
				end = min(end, all[j].addr)
				break
			}
		}
		k.ranges = append(k.ranges, [2]uint64{all[i].addr, end})
	}
	if len(k.ranges) == 0 {
		return nil, errors.New("the kernel's symbols are hidden")
	}
	return k, nil
}

func openInterrupts() (*interrupts, error) {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return loadInterrupts(f, Machine)
}

// interruptPrefixes begin the names of Linux's functions that an interrupt of a device, a timer or another processor begins with: of x86-64,
// arch/x86/include/asm/idtentry.h and entry_fred.c; of AArch64, arch/arm64/kernel/entry.S, before Linux 5.13 the last two.
var interruptPrefixes = map[*arch.Machine][]string{
	arch.AMD64: {"asm_sysvec_", "sysvec_", "asm_common_interrupt", "common_interrupt", "asm_spurious_interrupt", "fred_extint"},
	arch.ARM64: {"el1h_64_irq", "el1h_64_fiq", "el0t_64_irq", "el0t_64_fiq", "el0t_32_irq", "el0t_32_fiq", "el1_irq", "el0_irq"},
}

// entersInterrupt says whether an interrupt begins with a function. Softirqs that a system call runs on its way are part of the call.
func entersInterrupt(name string, m *arch.Machine) bool {
	return slices.ContainsFunc(interruptPrefixes[m], func(p string) bool { return strings.HasPrefix(name, p) })
}

// cut returns the part of a kernel's stack, in words, innermost first, that is an interrupt's; nil where there was none.
func (k *interrupts) cut(words []byte) []byte {
	end := 0
	for i := 0; i+8 <= len(words); i += 8 {
		a := binary.LittleEndian.Uint64(words[i:]) - 1
		n, _ := slices.BinarySearchFunc(k.ranges, a, func(r [2]uint64, a uint64) int {
			if r[1] <= a {
				return -1
			}
			return 1
		})
		switch in := n < len(k.ranges) && k.ranges[n][0] <= a; {
		case in:
			end = i + 8
		case end > 0:
			return words[:end]
		}
	}
	if end > 0 {
		return words[:end]
	}
	return nil
}

// waker makes of s, the stack of who woke a thread, what its record is to say.
func (k *stacks) waker(s *sample, r *source.Record) {
	w := source.Waker{}
	if k.interrupts == nil {
		w.Flags = source.WakerUnsure
	} else if in := k.interrupts.cut(s.kernel); in != nil {
		w.Flags = source.WakerInterrupt
		s.kernel = in
	}
	switch {
	case s.what == sampleCopy && w.Flags == 0:
		return // which names who it is by its thread
	case s.what == sampleCopy || w.Flags == source.WakerInterrupt:
		s.what, s.user, s.stop = sampleStack, nil, unwind.NoUserStack
	}
	r.Tracepoint = w.Append(nil)
}

// wakerAgain returns the record of who woke a thread, before that of its wait.
func (k *stacks) wakerAgain(s *sample) []byte {
	b := k.find(s.id)
	if b == nil {
		k.missed.time, k.missed.cpu = s.time, s.cpu
		return nil
	}
	le := binary.LittleEndian
	pid, tid := s.pid, s.tid
	if !source.Walks(le.Uint64(b[atID:])) { // a copy is of one sample
		k.drop(s.id)
	} else if k.named(b, s) {
		pid, tid = 0, 0
	}
	le.PutUint16(b[atMisc:], le.Uint16(b[atMisc:])&source.MiscCPUModeMask|source.MiscWaker)
	le.PutUint32(b[atPID:], uint32(pid))
	le.PutUint32(b[atTID:], uint32(tid))
	le.PutUint64(b[atTime:], s.time)
	le.PutUint32(b[atCPU:], s.cpu)
	le.PutUint64(b[atPeriod:], 0)
	return b
}

// named puts a waker's name into its record, b. It returns whether that is an interrupt's instead.
func (k *stacks) named(b []byte, s *sample) (interrupt bool) {
	le := binary.LittleEndian
	at := atPeriod + 16 + 8*int(le.Uint64(b[atPeriod+8:])) + 4
	w, _ := source.ParseWaker(b[at:])
	le.PutUint64(b[at:], s.ip) // the name, in two parts
	le.PutUint64(b[at+8:], s.period)
	if w.Flags&source.WakerInterrupt != 0 {
		clear(b[at : at+16])
		return true
	}
	return false
}
