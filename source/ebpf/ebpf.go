package ebpf

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

//go:embed unspool.bpf.o
var object []byte

// sampleSize is that of struct sample.
const sampleSize = 48

// maxFrames and maxKernel are the most words that follow a sample.
const (
	maxFrames = 1024
	maxKernel = 127
)

// How a frame was found is in the upper bits of its word.
const howShift = 60

// Stats counts what a Program did.
type Stats struct {
	Samples    uint64 // walked in the kernel and read
	RingFull   uint64 // lost: the ring buffer had no room
	Nested     uint64 // lost: the event interrupted the program. Where it interrupts another BPF program, nobody counts
	Unknown    uint64 // in code whose mapping had not come to the kernel yet: the first frame only
	Processes  int    // that are known to the kernel now
	Tables     int    // loaded into the kernel
	TableBytes uint64 // their payload
	MapBytes   uint64 // what the kernel says that their maps take
	Runs       uint64 // of the program, and their time, where the kernel counts (kernel.bpf_stats_enabled)
	RunTime    time.Duration
	Failed     int   // address spaces and tables that could not be brought into the kernel
	Err        error // the first reason
}

// A Program walks stacks in the kernel. It is what perfevent.Options.Program takes.
type Program struct {
	coll   *ebpf.Collection
	pass   bool
	ring   *ringbuf.Reader
	rec    ringbuf.Record
	sample source.Sample
	frames []unwind.Frame
	kernel []uint64
	buf    []byte

	samples atomic.Uint64
	track   tracker
}

// Options are for Load.
type Options struct {
	// Mods gives the modules of address spaces, as source.NewWorld has it. Only compact tables can be used.
	Mods func(path, buildID string) *unwind.Module

	// Pass lets events write the kernel's own samples, too, with a copy of the stack: to compare.
	Pass bool
}

// initialPIDs is the inode of the first PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const initialPIDs = 0xeffffffc

// Load loads the program into the kernel. Close it after the recording.
func Load(o Options) (_ *Program, err error) {
	if st, err := os.Stat("/proc/self/ns/pid"); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Ino != initialPIDs {
			return nil, errors.New("loading the kernel's program: it knows processes by other numbers than this PID namespace does")
		}
	}
	if err := rlimit.RemoveMemlock(); err != nil && !errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("loading the kernel's program: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("loading the kernel's program: BUG: %w", err)
	}
	p := &Program{pass: o.Pass}
	if o.Pass {
		if err := spec.Variables["pass"].Set(uint32(1)); err != nil {
			return nil, fmt.Errorf("loading the kernel's program: BUG: %w", err)
		}
	}
	if p.coll, err = ebpf.NewCollection(spec); errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("loading the kernel's program: %w (it takes root, or CAP_BPF and CAP_PERFMON)", os.ErrPermission)
	} else if err != nil {
		return nil, fmt.Errorf("loading the kernel's program: %w", err)
	}
	if p.ring, err = ringbuf.NewReader(p.coll.Maps["stacks"]); err != nil {
		p.coll.Close()
		return nil, fmt.Errorf("the kernel's ring buffer: %w", err)
	}
	p.ring.SetDeadline(time.Unix(1, 0)) // reads never wait
	p.track.start(p.coll, o.Mods)
	return p, nil
}

// Close unloads the program.
func (p *Program) Close() error {
	p.track.stop()
	err := p.ring.Close()
	p.coll.Close()
	return err
}

// FD implements perfevent.Program.
func (p *Program) FD() int { return p.coll.Programs["on_event"].FD() }

// Pass implements perfevent.Program.
func (p *Program) Pass() bool { return p.pass }

// Ready implements perfevent.Program.
func (p *Program) Ready() int { return p.coll.Maps["stacks"].FD() }

// Begin implements perfevent.Program.
func (p *Program) Begin(records []byte, dec *source.Decoder) { p.track.begin(records, dec) }

// Saw implements perfevent.Program.
func (p *Program) Saw(raw []byte) { p.track.saw(raw) }

// Samples implements perfevent.Program.
func (p *Program) Samples(began uint64, space func(n int) []byte) (again bool) {
	for left := p.ring.AvailableBytes(); left > 0 && p.ring.ReadInto(&p.rec) == nil; {
		left -= min(left, len(p.rec.RawSample)+8)
		if p.parse(p.rec.RawSample) {
			p.samples.Add(1)
			copy(space(len(p.buf)), p.buf)
		}
	}
	return p.track.round(began)
}

// parse makes a record in p.buf of a sample.
func (p *Program) parse(b []byte) bool {
	if len(b) < sampleSize {
		return false
	}
	le := binary.LittleEndian
	user, kernel := int(le.Uint32(b[40:])), int(le.Uint32(b[44:]))
	if user > maxFrames || kernel > maxKernel || len(b) < sampleSize+8*(user+kernel) {
		return false
	}
	r := source.Record{
		Type: source.RecordSample, Misc: source.MiscUser, Time: le.Uint64(b), Period: le.Uint64(b[8:]), IP: le.Uint64(b[16:]),
		PID: int32(le.Uint32(b[24:])), TID: int32(le.Uint32(b[28:])), CPU: le.Uint32(b[32:]),
	}
	if r.IP>>63 != 0 {
		r.Misc = source.MiscKernel
	}
	s := &p.sample
	*s = source.Sample{Record: &r, Stop: unwind.Stop(le.Uint32(b[36:])), From: source.Walked}
	if s.Stop >= unwind.NumStops {
		return false
	}
	if s.Stop == unwind.NoUserStack {
		s.From = source.NoStack
	}
	p.frames, p.kernel = p.frames[:0], p.kernel[:0]
	for i := range user {
		w := le.Uint64(b[sampleSize+8*i:])
		how := unwind.How(w >> howShift)
		p.frames = append(p.frames, unwind.Frame{
			PC: arch.Addr(w & (1<<howShift - 1)), How: how, Exact: how == unwind.HowStart || how == unwind.HowSignal,
		})
	}
	for i := range kernel {
		p.kernel = append(p.kernel, le.Uint64(b[sampleSize+8*(user+i):]))
	}
	s.User, s.Kernel = p.frames, p.kernel
	var err error
	p.buf, err = source.AppendSample(p.buf[:0], &sampleAttr, s)
	return err == nil
}

// sampleAttr is the event's attr as the decoder knows it, as far as samples go.
var sampleAttr = func() source.Attr {
	a := source.Attr{SampleType: source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCPU | source.SamplePeriod}
	return a.Walked()
}()

// Stats returns what there has been so far.
func (p *Program) Stats() Stats {
	s := Stats{Samples: p.samples.Load()}
	p.track.stats(&s)
	if st, err := p.coll.Programs["on_event"].Stats(); err == nil {
		s.Runs, s.RunTime = st.RunCount, st.Runtime
	}
	var per []uint64
	for i, to := range []*uint64{&s.RingFull, &s.Nested, &s.Unknown} {
		if p.coll.Maps["counters"].Lookup(uint32(i), &per) == nil {
			for _, n := range per {
				*to += n
			}
		}
	}
	return s
}
