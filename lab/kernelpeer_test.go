package lab

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The peer of the kernel's walk: peer/peer.bpf.c.

// A peerKind is how the peer keeps the rows of files.
type peerKind int

const (
	peerSized peerKind = iota // arrays of one length: their lookups are inlined, as those of the profilers that sort files by length
	peerAny                   // BPF_F_INNER_MAP, arrays of any length: each lookup is a call
	numPeers
)

func (k peerKind) String() string { return [...]string{"peer", "peer, arrays of any length"}[k] }

// peerRows is how long the arrays of one length are.
const peerRows = 1 << 16

// These are peer.bpf.c's.
const (
	peerPageBits = 16
	peerEnd      = 1 // how a whole stack ends
	peerHead     = 48
	peerReads    = 1000

	peerCFARSP = 1
	peerCFARBP = 2
	peerCFAEnd = 3
	peerSaved  = 1
)

type peerRule struct {
	CFAOff, RBPOff int32
	CFA, RBP       uint16
}

type peerRow struct{ PC, Rule uint16 }

// A bpfPeer is the peer's program in the kernel, with the tables that it was given.
type bpfPeer struct {
	kind  peerKind
	coll  *bpf.Collection
	ring  *ringbuf.Reader
	files map[string]uint32
	rules map[peerRule]uint16
}

// buildPeer compiles the peer's program.
func buildPeer(t testing.TB) *bpf.CollectionSpec {
	oracle.Need(t, "clang-19")
	object := filepath.Join(t.TempDir(), "peer.o")
	cmd := exec.Command("clang-19", "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I/usr/include/x86_64-linux-gnu", "-c", "peer/peer.bpf.c", "-o", object)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	spec, err := bpf.LoadCollectionSpec(object)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// loadPeer loads the program.
func loadPeer(t testing.TB, spec *bpf.CollectionSpec, kind peerKind) *bpfPeer {
	spec = spec.Copy()
	inner := spec.Maps["files"].InnerMap
	inner.MaxEntries = peerRows
	if kind == peerAny {
		inner.Flags |= unix.BPF_F_INNER_MAP
	}
	coll, err := bpf.NewCollection(spec)
	if errors.Is(err, os.ErrPermission) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &bpfPeer{kind: kind, coll: coll, files: map[string]uint32{}, rules: map[peerRule]uint16{{}: 0}}
	if p.ring, err = ringbuf.NewReader(coll.Maps["stacks"]); err != nil {
		t.Fatal(err)
	}
	p.ring.SetDeadline(time.Unix(1, 0)) // reads never wait
	t.Cleanup(func() {
		p.ring.Close()
		coll.Close()
	})
	return p
}

// loadPeers loads one of each kind.
func loadPeers(t testing.TB, spec *bpf.CollectionSpec) (out []*bpfPeer) {
	for k := range numPeers {
		out = append(out, loadPeer(t, spec, k))
	}
	return out
}

// put writes an element of a map.
func (p *bpfPeer) put(t testing.TB, name string, k, v any) {
	if err := p.coll.Maps[name].Put(k, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// rule returns the number of what the peer can say of a row: 0 is nothing.
func (p *bpfPeer) rule(t testing.TB, s *rows.Set) uint16 {
	const rbp, rsp = 6, 7
	var r peerRule
	ra, _ := s.Rule(s.RA)
	fp, saved := s.Rule(rbp)
	switch {
	case s.Outermost():
		r.CFA = peerCFAEnd
	case s.CFA.Kind != rows.CFAReg || s.CFA.Reg != rbp && s.CFA.Reg != rsp || ra.Kind != rows.Offset || ra.Off != -8:
	case saved && fp.Kind != rows.Offset && fp.Kind != rows.SameValue:
	default:
		r.CFA, r.CFAOff = peerCFARSP, int32(s.CFA.Off)
		if s.CFA.Reg == rbp {
			r.CFA = peerCFARBP
		}
		if saved && fp.Kind == rows.Offset {
			r.RBP, r.RBPOff = peerSaved, int32(fp.Off)
		}
	}
	n, ok := p.rules[r]
	if !ok {
		n = uint16(len(p.rules))
		p.rules[r] = n
		p.put(t, "rules", uint32(n), r)
	}
	return n
}

// file brings the rows of a file into the kernel, and returns its number and image.
func (p *bpfPeer) file(t testing.TB, path string) uint32 {
	if id, ok := p.files[path]; ok {
		return id
	}
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	table, _ := f.Build(dwarf.EHFrame)
	id := uint32(len(p.files)) + 1
	p.files[path] = id
	var all []peerRow
	var last uint16 // the rule that holds
	page, first := uint64(0), 0
	flush := func() {
		if n := len(all) - first; n > 0 {
			p.put(t, "pages", [2]uint32{id, uint32(page)}, [2]uint32{uint32(first), uint32(n)})
		}
	}
	for i := range table.Rows {
		lo, set := uint64(table.Rows[i].Lo), p.rule(t, &table.Sets[table.Rows[i].Set])
		for at := lo >> peerPageBits; page < at || len(all) == 0; {
			flush()
			if page++; len(all) == 0 || last == 0 {
				page = at // nothing holds before
			}
			first = len(all)
			if page<<peerPageBits < lo || page < at {
				all = append(all, peerRow{0, last})
			}
			if page == at {
				break
			}
		}
		all = append(all, peerRow{uint16(lo), set})
		last = set
	}
	flush()
	m := p.coll.Maps["files"]
	inner := &bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: peerRows}
	if p.kind == peerAny {
		inner.Flags, inner.MaxEntries = unix.BPF_F_INNER_MAP, uint32(len(all))
	}
	if len(all) > int(inner.MaxEntries) {
		t.Fatalf("%s has %d rows, more than there is room for", path, len(all))
	}
	in, err := bpf.NewMap(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	keys := make([]uint32, len(all))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := in.BatchUpdate(keys, all, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.Put(id, in); err != nil {
		t.Fatal(err)
	}
	return id
}

// process tells the program what a process has mapped.
func (p *bpfPeer) process(t testing.TB, pid int) {
	for _, m := range mapsOf(t, pid) {
		if !m.exec || m.path == "" || m.path[0] != '/' {
			continue
		}
		id := p.file(t, m.path)
		img, err := module.Open(m.path)
		if err != nil {
			t.Fatal(err)
		}
		v, ok := img.OffToVaddr(m.off)
		img.Close()
		if !ok {
			t.Fatalf("%s: nothing is at offset %#x", m.path, m.off)
		}
		value := struct {
			Bias      uint64
			File, Pad uint32
		}{m.lo - uint64(v), id, 0}
		for lo := m.lo; lo < m.hi; {
			size := min(bits.TrailingZeros64(lo), bits.Len64(m.hi-lo)-1)
			var k [16]byte
			binary.LittleEndian.PutUint32(k[:], uint32(32+64-size))
			binary.BigEndian.PutUint32(k[4:], uint32(pid))
			binary.BigEndian.PutUint64(k[8:], lo)
			p.put(t, "mappings", k[:], value)
			lo += 1 << size
		}
	}
}

// A part is what some runs of a program came to.
type part struct {
	runs, frames uint64
	time         time.Duration
}

func (x part) perSample() float64 { return float64(x.time) / float64(x.runs) }
func (x part) perFrame() float64  { return float64(x.time) / float64(x.frames) }

// attached runs f while a program handles the CPU clock of a process in user space.
func attached(t testing.TB, prog *bpf.Program, pid int, frequency uint64, f func()) (x part) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Sample: frequency,
		Bits: unix.PerfBitDisabled | unix.PerfBitFreq | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	attr.Size = uint32(binary.Size(attr))
	before, err := prog.Stats()
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for cpu := range runtime.NumCPU() {
		fd, err := unix.PerfEventOpen(&attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, prog.FD()); err != nil {
			t.Fatal(err)
		}
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			t.Fatal(err)
		}
	}
	f()
	for _, fd := range fds {
		unix.Close(fd)
	}
	after, err := prog.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return part{runs: after.RunCount - before.RunCount, time: after.Runtime - before.Runtime}
}

// counter returns the sum of a counter over all processors.
func (p *bpfPeer) counter(t testing.TB, i uint32) (sum uint64) {
	var per []uint64
	if err := p.coll.Maps["counters"].Lookup(i, &per); err != nil {
		t.Fatal(err)
	}
	for _, n := range per {
		sum += n
	}
	return sum
}

// walk has the peer walk a process's stacks for a while. each is called with the lookup addresses of every stack, and
// whether it is whole.
func (p *bpfPeer) walk(t testing.TB, pid int, frequency uint64, d time.Duration, each func(stack []uint64, whole bool)) part {
	before, lost := p.counter(t, 0), p.counter(t, 1)
	samples := uint64(0)
	drain := func() {
		var rec ringbuf.Record
		var stack []uint64
		for p.ring.AvailableBytes() > 0 && p.ring.ReadInto(&rec) == nil {
			b := rec.RawSample
			n := int(binary.LittleEndian.Uint32(b[40:]))
			stack = stack[:0]
			for i := range n {
				addr := binary.LittleEndian.Uint64(b[peerHead+8*i:])
				if i > 0 {
					addr-- // a return address is behind its call
				}
				stack = append(stack, addr)
			}
			samples++
			each(slices.Clip(stack), binary.LittleEndian.Uint32(b[36:]) == peerEnd)
		}
	}
	x := attached(t, p.coll.Programs["peer"], pid, frequency, func() {
		for end := time.Now().Add(d); time.Now().Before(end); drain() {
			time.Sleep(20 * time.Millisecond)
		}
	})
	drain()
	if n := p.counter(t, 1) - lost; n > 0 || samples != x.runs {
		t.Errorf("%v: of %d samples, %d came and %d were lost", p.kind, x.runs, samples, n)
	}
	x.frames = p.counter(t, 0) - before
	return x
}
