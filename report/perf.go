package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// perfText is the text of perf script with the fields comm, pid, tid, cpu, time, period, event, ip, sym,
// symoff and dso:
//
//	cc1plus 1234/1234  [003]  4918.072454:     250000 cpu-clock:
//	↹           70831 __sin_fma+0x571 (/usr/lib/x86_64-linux-gnu/libm.so.6)
//
// As there, the number in front of a symbol is an address for the kernel, and an offset in the file for
// user code, and a call that was inlined has "(inlined)" in the place of a module.
type perfText struct{ tails }

func (f *perfText) location(frames []frame) { f.add(frames, f.tail) }

// Perf writes the stacks of p as perf script prints samples, with three differences: one entry stands
// for all samples with that stack, its period is their weight, and its time is 0.
func Perf(w io.Writer, p *profile.Profile, o Options) error {
	f := &perfText{}
	return writeAll(w, p, o, f, func(b []byte, s *profile.Stack, tails [][]byte) []byte {
		b = f.head(b, s.Comm, s.PID, s.TID, profile.NoCPU, 0, o.weight(s), &p.Info, int(s.Event))
		for _, id := range s.Frames {
			b = append(b, tails[id]...)
		}
		return append(b, '\n')
	})
}

func (f *perfText) sample(b []byte, info *profile.Info, s *profile.Sample, ids []uint32) []byte {
	b = f.head(b, s.Comm, s.PID, s.TID, s.CPU, s.Time, s.Period, info, s.Event)
	for _, id := range ids {
		for _, tail := range f.tails[id] {
			b = append(b, tail...)
		}
	}
	return append(b, '\n')
}

func (perfText) head(b []byte, comm string, pid, tid int32, cpu uint32, time, period uint64, info *profile.Info, event int) []byte {
	if comm = printable.String(comm); comm == "" {
		comm = ":" + strconv.Itoa(int(tid))
	}
	b = append(append(b, comm...), ' ')
	b = fmt.Appendf(b, "%5d/%-5d ", pid, tid)
	if cpu != profile.NoCPU {
		b = fmt.Appendf(b, "[%03d] ", cpu)
	}
	name := "samples"
	if event >= 0 && event < len(info.Events) {
		name = printable.String(info.Events[event].Name)
	}
	return fmt.Appendf(b, "%5d.%06d: %10d %s: \n", time/1e9, time%1e9/1e3, period, name)
}

func (perfText) tail(b []byte, f *frame) []byte {
	b = append(b, '\t')
	at := len(b)
	b = appendHex(b, f.off)
	if n := 16 - (len(b) - at); n > 0 {
		b = append(b[:at], strings.Repeat(" ", n)...)
		b = appendHex(b, f.off)
	}
	b = append(b, ' ')
	if f.named {
		b = append(b, printable.String(f.name)...)
		if f.start != 0 && f.off >= f.start {
			b = appendHex(append(b, "+0x"...), f.off-f.start)
		}
	} else {
		b = append(b, profile.Unknown...)
	}
	module := printable.String(f.module)
	if f.inlined {
		module = "inlined"
	}
	switch module {
	case "":
		module = profile.Unknown
	case "[kernel]":
		module = "[kernel.kallsyms]"
	}
	b = append(append(b, " ("...), module...)
	return append(b, ")\n"...)
}

func (perfText) close(b []byte, end *ending) []byte {
	return fmt.Appendf(b, "# %s\n", end.totals.Summary(end.info.Loss))
}
