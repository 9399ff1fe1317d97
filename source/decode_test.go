package source

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/unwind"
)

// TestAttrSizes reads attrs of all published sizes, and of sizes between and beyond.
func TestAttrSizes(t *testing.T) {
	full := make([]byte, 200)
	for i := range full {
		full[i] = byte(i + 1)
	}
	fields := []struct {
		size int
		zero func(*Attr) bool
	}{
		{AttrSizeVer1, func(a *Attr) bool { return a.Config2 == 0 }},
		{AttrSizeVer2, func(a *Attr) bool { return a.BranchSampleType == 0 }},
		{AttrSizeVer3, func(a *Attr) bool { return a.SampleRegsUser == 0 && a.SampleStackUser == 0 && a.ClockID == 0 }},
		{AttrSizeVer4, func(a *Attr) bool { return a.SampleRegsIntr == 0 }},
		{AttrSizeVer5, func(a *Attr) bool { return a.AuxWatermark == 0 && a.SampleMaxStack == 0 }},
		{AttrSizeVer6, func(a *Attr) bool { return a.AuxSampleSize == 0 && a.AuxAction == 0 }},
		{AttrSizeVer7, func(a *Attr) bool { return a.SigData == 0 }},
		{AttrSizeVer8, func(a *Attr) bool { return a.Config3 == 0 }},
		{AttrSizeVer9, func(a *Attr) bool { return a.Config4 == 0 }},
	}
	for _, size := range []int{0, 64, 72, 80, 96, 104, 112, 120, 128, 136, 144, 152, 200} {
		b := bytes.Clone(full[:max(size, AttrSizeVer0)])
		binary.LittleEndian.PutUint32(b[4:], uint32(size))
		a, err := ParseAttr(b)
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if a.Type != 0x04030201 || a.Config != 0x100f0e0d0c0b0a09 || a.Flags == 0 {
			t.Errorf("size %d: %+v", size, a)
		}
		for _, f := range fields {
			if f.zero(&a) != (f.size > max(size, AttrSizeVer0)) {
				t.Errorf("size %d: fields of size %d: %+v", size, f.size, a)
			}
		}
		back, err := ParseAttr(a.Append(nil))
		if err != nil || back != a {
			t.Errorf("size %d: written and read again: %v\n got %+v\nwant %+v", size, err, back, a)
		}
	}
	if _, err := ParseAttr(full[:63]); !errors.Is(err, ErrTruncated) {
		t.Errorf("63 bytes: %v", err)
	}
	binary.LittleEndian.PutUint32(full[4:], 63)
	if _, err := ParseAttr(full); !errors.Is(err, ErrMalformed) {
		t.Errorf("a size of 63: %v", err)
	}
}

func FuzzParseAttr(f *testing.F) {
	f.Add((&Attr{SampleType: SampleIP, Flags: FlagSampleIDAll}).Append(nil))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAttr(b)
		if err != nil {
			return
		}
		if back, err := ParseAttr(a.Append(nil)); err != nil || back != a {
			t.Errorf("%v\n got %+v\nwant %+v", err, back, a)
		}
		_ = a.Name()
	})
}

// TestSampleBytes pairs a sample's bytes with their meaning (perf_event_open(2), PERF_RECORD_SAMPLE).
func TestSampleBytes(t *testing.T) {
	text := `
		09000000 0200 e000  # SAMPLE, user mode, size
		1100000000000000    # identifier
		2222000000000000    # ip
		03000000 04000000   # pid, tid
		5500000000000000    # time
		6600000000000000    # addr
		1100000000000000    # id
		7700000000000000    # stream id
		08000000 00000000   # cpu
		9900000000000000    # period
		0200000000000000 0000000000000000 0000000000000000 # read: value, id, lost
		0200000000000000 00feffffffffffff 2222000000000000 # callchain
		0c000000 aabbccdd eeff0011 22334455               # raw
		0200000000000000 a100000000000000 a200000000000000 # user regs: abi, two
		0800000000000000 c1c2c3c4c5c6c7c8 0500000000000000 # stack: size, bytes, captured
		0000000000000000    # intr regs: none
		`
	text = text[:strings.LastIndex(text, "0000000000000000    # intr")]
	var b []byte
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		x, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, x...)
	}
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
	a := &Attr{
		SampleType: SampleIdentifier | SampleIP | SampleTID | SampleTime | SampleAddr | SampleID | SampleStreamID | SampleCPU | SamplePeriod |
			SampleRead | SampleCallchain | SampleRaw | SampleRegsUser | SampleStackUser,
		ReadFormat: FormatID | FormatLost, SampleRegsUser: 1<<7 | 1<<8,
	}
	d := NewDecoder()
	d.AddAttr(a, nil, "")
	var r Record
	if err := d.Decode(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.ID != 0x11 || r.IP != 0x2222 || r.PID != 3 || r.TID != 4 || r.Time != 0x55 || r.Addr != 0x66 || r.StreamID != 0x77 || r.CPU != 8 ||
		r.Period != 0x99 || len(r.Read) != 24 || r.Callchain.Len() != 2 || r.Callchain.At(0) != ContextUser || r.Callchain.At(1) != 0x2222 ||
		len(r.Tracepoint) != 12 || r.UserABI != ABI64 || r.UserRegs.At(0) != 0xa1 || r.UserRegs.At(1) != 0xa2 ||
		len(r.Stack) != 8 || r.StackDyn != 5 || !r.HasTime || r.CPUMode() != MiscUser {
		t.Errorf("%+v", r)
	}
	for n := headerSize; n < len(b); n += 8 { // cut anywhere
		if err := d.Decode(b[:n:n], &r); !errors.Is(err, ErrMalformed) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { d.Decode(b, &r) }); n != 0 {
		t.Errorf("Decode allocates %v times", n)
	}
}

// randomSample returns an event and a sample of it that has any of the fields that Walked keeps.
func randomSample(rnd *rand.Rand) (Attr, *Sample) {
	words := func(n int) Words {
		b := make([]byte, 8*n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	a := Attr{SampleType: rnd.Uint64() & sampleKnown, ReadFormat: rnd.Uint64() & 31, SampleRegsIntr: rnd.Uint64() & 0xff}
	if rnd.IntN(2) == 0 {
		a.BranchSampleType |= BranchHWIndex
	}
	if rnd.IntN(2) == 0 {
		a.BranchSampleType |= BranchCounters
	}
	a = a.Walked()
	has := func(bit uint64) bool { return a.SampleType&bit != 0 }
	u64 := func(bit uint64) uint64 {
		if has(bit) {
			return rnd.Uint64()
		}
		return 0
	}
	r := &Record{
		Type: RecordSample, Misc: uint16(rnd.Uint32()), PID: -1, TID: -1, IP: u64(SampleIP), Addr: u64(SampleAddr), Period: u64(SamplePeriod),
		ID: u64(SampleID | SampleIdentifier), StreamID: u64(SampleStreamID), CPU: uint32(u64(SampleCPU)), Time: u64(SampleTime), HasTime: has(SampleTime),
		Weight: u64(SampleWeight | SampleWeightStruct), DataSrc: u64(SampleDataSrc), Transaction: u64(SampleTransaction),
		PhysAddr: u64(SamplePhysAddr), Cgroup: u64(SampleCgroup), DataPageSize: u64(SampleDataPageSize), CodePageSize: u64(SampleCodePageSize),
	}
	if has(SampleTID) {
		r.PID, r.TID = rnd.Int32(), rnd.Int32()
	}
	if has(SampleRead) {
		n := rnd.IntN(4)
		per, head := 1, 0
		for _, bit := range []uint64{FormatID, FormatLost} {
			if a.ReadFormat&bit != 0 {
				per++
			}
		}
		for _, bit := range []uint64{FormatTotalTimeEnabled, FormatTotalTimeRunning, FormatGroup} {
			if a.ReadFormat&bit != 0 {
				head++
			}
		}
		if a.ReadFormat&FormatGroup == 0 {
			n = 1
		}
		w := words(head + n*per)
		if a.ReadFormat&FormatGroup != 0 {
			binary.LittleEndian.PutUint64(w, uint64(n))
		}
		r.Read = w
	}
	if n := rnd.IntN(3); n > 0 {
		r.Tracepoint = append([]byte(words(n)), 1, 2, 3, 4)
	}
	if has(SampleBranchStack) {
		n := rnd.IntN(3)
		r.Branches = words(3 * n)
		if a.BranchSampleType&BranchHWIndex != 0 {
			r.BranchHWIndex = rnd.Uint64()
		}
		if a.BranchSampleType&BranchCounters != 0 {
			r.BranchCounters = words(n)
		}
	}
	if has(SampleRegsIntr) && rnd.IntN(2) == 0 {
		r.IntrABI, r.IntrRegs = ABI64, words(popcount(a.SampleRegsIntr))
	}
	s := &Sample{Record: r, Time: r.Time, Stop: unwind.Stop(rnd.IntN(int(unwind.NumStops))), From: StackSource(rnd.IntN(int(numSources))), Space: unwind.NewSpace()}
	for range rnd.IntN(5) {
		s.Kernel = append(s.Kernel, 1<<63|rnd.Uint64()>>8)
	}
	for i := range rnd.IntN(40) {
		f := unwind.Frame{PC: 1 + archAddr(rnd.Uint64()>>17), How: unwind.How(rnd.IntN(int(unwind.NumHows))), Exact: i == 0 || rnd.IntN(9) == 0}
		s.User = append(s.User, f)
	}
	return a, s
}

// TestAppendSample writes random samples and reads them again, with their stacks and how those were found.
func TestAppendSample(t *testing.T) {
	oracle.Long(t)
	for seed := range uint64(2000) {
		a, s := randomSample(rand.New(rand.NewPCG(seed, 2)))
		prefix := []byte("12345678")
		b, err := AppendSample(prefix, &a, s)
		if err != nil {
			t.Fatal(err)
		}
		b = b[len(prefix):]
		if len(b)%8 != 0 || int(binary.LittleEndian.Uint16(b[6:])) != len(b) {
			t.Fatalf("seed %d: %d bytes, says %d", seed, len(b), binary.LittleEndian.Uint16(b[6:]))
		}
		d := NewDecoder()
		d.AddAttr(&a, nil, "")
		var r Record
		if err := d.Decode(b, &r); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}

		k := newStacker(d, &Options{Ours: true})
		j := &job{items: make([]item, 1), done: make(chan struct{}, 1)}
		j.items[0].raw, j.items[0].space, j.items[0].comm = b, s.Space, "x"
		if err := k.walk(j, nil); err != nil || j.stats.Bad > 0 {
			t.Fatalf("seed %d: %v %+v", seed, err, j.stats)
		}
		got := &j.items[0].sample
		if len(got.Kernel) != len(s.Kernel) || len(got.User) != len(s.User) || got.Stop != s.Stop || got.From != s.From {
			t.Fatalf("seed %d: %+v, want %+v", seed, got, s)
		}
		for i, v := range s.Kernel {
			if got.Kernel[i] != v {
				t.Errorf("seed %d: kernel frame %d: %#x, want %#x", seed, i, got.Kernel[i], v)
			}
		}
		for i, f := range s.User {
			if got.User[i] != f {
				t.Errorf("seed %d: frame %d: %+v, want %+v", seed, i, got.User[i], f)
			}
		}
		want := *s.Record
		have := *got.Record
		have.Raw, have.Callchain, have.Event = nil, nil, 0
		for _, x := range []*Record{&have, &want} { // nothing and none are the same
			for _, f := range []*Words{&x.Branches, &x.BranchCounters, &x.IntrRegs} {
				if len(*f) == 0 {
					*f = nil
				}
			}
			if len(x.Tracepoint) == 0 {
				x.Tracepoint = nil
			}
		}
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("seed %d, type %#x:\n got %+v\nwant %+v", seed, a.SampleType, have, want)
		}
	}
}

// TestAppendSampleCut writes stacks that do not fit a record.
func TestAppendSampleCut(t *testing.T) {
	a := (&Attr{SampleType: SampleIP}).Walked()
	d := NewDecoder()
	d.AddAttr(&a, nil, "")
	s := &Sample{Record: &Record{}, Space: unwind.NewSpace(), From: Walked}
	for i := range 10000 {
		s.User = append(s.User, unwind.Frame{PC: archAddr(0x1000 + i), How: unwind.How(i % 3), Exact: i == 0})
	}
	b, err := AppendSample(nil, &a, s)
	if err != nil || len(b) > maxRecord {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	var r Record
	if err := d.Decode(b, &r); err != nil {
		t.Fatal(err)
	}
	p, _, ok := parseProvenance(r.Tracepoint)
	if n := r.Callchain.Len() - 1; !ok || n < 6000 || p.stop != unwind.DepthLimit {
		t.Errorf("%d frames, %+v, %v", n, p, ok)
	}
	s.Record.Tracepoint = make([]byte, 1<<16-100)
	if b, err := AppendSample(nil, &a, s); !errors.Is(err, ErrUnsupported) || len(b) != 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// FuzzDecode reads any record of any event. What it can read of a walked sample can be written again.
func FuzzDecode(f *testing.F) {
	oracle.Long(f)
	for seed := range uint64(40) {
		a, s := randomSample(rand.New(rand.NewPCG(seed, 3)))
		b, _ := AppendSample(nil, &a, s)
		f.Add(a.Append(nil), b)
		for typ := range uint32(23) {
			x := bytes.Clone(b[:min(len(b), 120)])
			binary.LittleEndian.PutUint32(x, typ)
			f.Add(a.Append(nil), x)
		}
	}
	f.Fuzz(func(t *testing.T, attr, raw []byte) {
		a, err := ParseAttr(attr)
		if err != nil || len(raw) < headerSize || len(raw) > 1<<16-1 {
			return
		}
		d := NewDecoder()
		d.AddAttr(&a, []uint64{1}, "")
		second := a
		second.SampleType ^= SampleCPU
		d.AddAttr(&second, []uint64{2}, "")
		d.when(raw)
		var r Record
		err = d.Decode(raw, &r)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("%v", err)
			}
			return
		}
		k := newStacker(d, &Options{Ours: true})
		j := &job{items: make([]item, 1)}
		j.items[0].raw, j.items[0].space = raw, unwind.NewSpace()
		if r.Type != RecordSample {
			NewWorld(nil).Apply(&r)
			if e := r.Event; e >= 0 && r.Raw != nil {
				d.Append(nil, e, &r)
			}
			return
		}
		if err := k.walk(j, nil); err != nil {
			t.Fatal(err)
		}
		s := &j.items[0].sample
		w := d.Events()[s.Event].Attr.Walked()
		b, err := AppendSample(nil, &w, s)
		if err != nil {
			return
		}
		d = NewDecoder()
		d.AddAttr(&w, nil, "")
		if err := d.Decode(b, &r); err != nil {
			t.Errorf("written again: %v", err)
		}
	})
}

func FuzzProvenance(f *testing.F) {
	f.Add([]byte("\x80\x01\x01\x05\x00\x01\x04\x00unsp"), 4)
	f.Add([]byte("\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x01\x0b\x00unsp"), 100)
	f.Fuzz(func(t *testing.T, raw []byte, n int) {
		p, rest, ok := parseProvenance(raw)
		if len(rest) > len(raw) || !ok && len(rest) != len(raw) {
			t.Errorf("%d bytes of %d are left, %v", len(rest), len(raw), ok)
		}
		n &= 0xfff
		if frames := p.appendFrames(nil, make([]uint64, n), unwind.NewSpace()); len(frames) != n {
			t.Errorf("%d addresses make %d frames with the provenance %+v", n, len(frames), p)
		}
	})
}

// TestEvents holds which event a record belongs to.
func TestEvents(t *testing.T) {
	d := NewDecoder()
	rec := func(typ uint32, words ...uint64) []byte {
		b := appendHeader(nil, typ, 0)
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return finishRecord(b, 0)
	}
	var r Record
	if err := d.Decode(rec(RecordSample), &r); !errors.Is(err, ErrMalformed) {
		t.Errorf("no events: %v", err)
	}
	a := Attr{SampleType: SampleIdentifier | SampleIP, Flags: FlagSampleIDAll}
	d.AddAttr(&a, []uint64{5}, "one")
	if err := d.Decode(rec(RecordSample, 99, 1), &r); err != nil || r.Event != 0 {
		t.Errorf("a single event has all records: %d, %v", r.Event, err)
	}
	b := a
	b.SampleType |= SamplePeriod
	if i := d.AddAttr(&b, []uint64{6, 7}, ""); i != 1 {
		t.Errorf("event %d", i)
	}
	for id, want := range map[uint64]int{5: 0, 6: 1, 7: 1, 0: 0} {
		if err := d.Decode(rec(RecordSample, id, 1, 2), &r); err != nil || r.Event != want {
			t.Errorf("ID %d: event %d, %v; want %d", id, r.Event, err, want)
		}
		if err := d.Decode(rec(RecordLostSamples, 3, id), &r); err != nil || r.Event != want || r.Lost != 3 {
			t.Errorf("LOST_SAMPLES of ID %d: event %d, %v; want %d", id, r.Event, err, want)
		}
	}
	if err := d.Decode(rec(RecordSample, 8, 1, 2), &r); !errors.Is(err, ErrMalformed) {
		t.Errorf("an unknown ID: %v", err)
	}
	if err := d.Decode(rec(RecordLostSamples, 3, 8), &r); err != nil || r.Event != -1 {
		t.Errorf("LOST_SAMPLES of an unknown ID: event %d, %v", r.Event, err)
	}
	c := Attr{SampleType: SampleIP | 1<<40}
	d = NewDecoder()
	d.AddAttr(&c, nil, "")
	if err := d.Decode(rec(RecordSample, 8, 1, 2), &r); !errors.Is(err, ErrUnsupported) || r.IP != 8 {
		t.Errorf("fields of a newer kernel: %v, %+v", err, r)
	}
}

// TestAppend writes records that recorders synthesise, and reads them.
func TestAppend(t *testing.T) {
	d := NewDecoder()
	d.AddAttr(&Attr{SampleType: SampleTID | SampleTime | SampleCPU | SampleIdentifier, Flags: FlagSampleIDAll}, []uint64{9}, "")
	for _, want := range []Record{
		{Type: RecordMmap, PID: 1, TID: 2, Addr: 3, Len: 4, Pgoff: 5, Filename: []byte("/a"), Misc: MiscMmapData},
		{Type: RecordMmap2, PID: 1, TID: 2, Addr: 3, Len: 4, Pgoff: 5, Maj: 6, Min: 7, Inode: 8, InodeGen: 9, Prot: 5, MapFlags: 2, Filename: []byte("/lib/eight")},
		{Type: RecordMmap2, PID: 1, TID: 2, Addr: 3, Len: 4, Prot: 5, Misc: MiscMmapBuildID, BuildID: []byte("0123456789abcdefghij"), Filename: []byte("[vdso]")},
		{Type: RecordComm, PID: 1, TID: 1, Misc: MiscCommExec, Comm: []byte("program")},
		{Type: RecordFork, PID: 1, TID: 2, PPID: 3, PTID: 4},
		{Type: RecordExit, PID: 1, TID: 2, PPID: 3, PTID: 4},
		{Type: RecordLost, PID: 1, TID: 1, Lost: 77},
		{Type: RecordKsymbol, PID: 1, TID: 1, Addr: 0xffffffffc0001234, Len: 0x80000001, SymbolType: SymbolBPF, SymbolFlags: SymbolUnregister, Symbol: []byte("bpf_prog_1234")},
	} {
		want.Time, want.HasTime, want.CPU, want.ID, want.Trailer = 1234, true, 3, 9, 32
		raw := d.Append(nil, 0, &want)
		var r Record
		if err := d.Decode(raw, &r); err != nil || len(raw)%8 != 0 {
			t.Errorf("%d bytes: %v", len(raw), err)
		}
		r.Raw = nil
		if !reflect.DeepEqual(r, want) {
			t.Errorf(" got %+v\nwant %+v", r, want)
		}
	}
	long := d.Append(nil, 0, &Record{Type: RecordComm, Comm: bytes.Repeat([]byte("x"), 1<<17)})
	var r Record
	if err := d.Decode(long, &r); err != nil || len(r.Comm) != maxName {
		t.Errorf("a long name: %d bytes, %v", len(r.Comm), err)
	}
}

// TestSpoiltMark holds that a record which is marked as if it had a build ID, because another recorder asked for them, is read
// as what it is.
func TestSpoiltMark(t *testing.T) {
	plain, asked := NewDecoder(), NewDecoder()
	a := Attr{SampleType: SampleTID}
	plain.AddAttr(&a, nil, "")
	a.Flags |= FlagBuildID
	asked.AddAttr(&a, nil, "")
	rec := Record{Type: RecordMmap2, PID: 1, TID: 1, Len: 4096, Prot: ProtExec, Maj: 8, Min: 1, Inode: 99, InodeGen: 7, Filename: []byte("/a")}
	raw := plain.Append(nil, 0, &rec)
	binary.LittleEndian.PutUint16(raw[4:], rec.Misc|MiscMmapBuildID)
	var r Record
	if err := plain.Decode(raw, &r); err != nil || r.BuildID != nil || r.Misc&MiscMmapBuildID != 0 || r.Maj != 8 || r.Min != 1 || r.Inode != 99 || r.InodeGen != 7 {
		t.Errorf("not asked for: %v: %+v", err, r)
	}
	if err := asked.Decode(raw, &r); err != nil || len(r.BuildID) != 8 {
		t.Errorf("asked for: %v: %+v", err, r)
	}
	rec.Misc, rec.BuildID = MiscMmapBuildID, []byte("0123456789abcdefghij")
	raw = plain.Append(nil, 0, &rec)
	if err := plain.Decode(raw, &r); err != nil || string(r.BuildID) != string(rec.BuildID) {
		t.Errorf("of 20 bytes: %v: %+v", err, r)
	}
}
