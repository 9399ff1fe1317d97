package perfevent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/source"
)

// A kernelSide writes to a ring as the kernel does.
type kernelSide struct {
	ring
	h, t uint64
}

func newKernelSide(size int, at uint64) *kernelSide {
	k := &kernelSide{h: at, t: at}
	k.head, k.tail, k.data = &k.h, &k.t, make([]byte, size)
	return k
}

// put writes a record, if there is room.
func (k *kernelSide) put(b []byte) bool {
	if k.h+uint64(len(b))-k.t > uint64(len(k.data)) {
		return false
	}
	for i, c := range b {
		k.data[(k.h+uint64(i))&uint64(len(k.data)-1)] = c
	}
	k.h += uint64(len(b))
	return true
}

func record(typ uint32, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, typ)
	b = append(b, 2, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(recordHeader+len(body)))
	return append(b, body...)
}

// TestRing writes records of all sizes through rings that wrap around, and whose positions do.
func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, at := range []uint64{0, 8, 4096 - 8, ^uint64(0) - 7} {
		k := newKernelSide(4096, at)
		var want, got [][]byte
		drain := func() {
			_, err := k.drain(0, 0, func(n int) []byte { got = append(got, make([]byte, n)); return got[len(got)-1] })
			if err != nil || k.h != k.t {
				t.Fatalf("at %#x: %v, head %#x, tail %#x", at, err, k.h, k.t)
			}
		}
		for range 5000 {
			body := make([]byte, rng.IntN(60)*8)
			for i := range body {
				body[i] = byte(rng.Uint32())
			}
			b := record(1+rng.Uint32N(20), body)
			for !k.put(b) {
				drain()
			}
			want = append(want, b)
		}
		drain()
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("at %#x: record %d\n got %x\nwant %x", at, i, got[i], want[i])
			}
		}
	}
}

// TestRingStacks checks that what a stack copy holds behind the stack's end is left out, and that the rest reads
// the same.
func TestRingStacks(t *testing.T) {
	const size = 512
	dec := source.NewDecoder()
	dec.AddAttr(&source.Attr{SampleType: source.SampleIP | source.SampleStackUser, SampleStackUser: size}, nil, "")
	k := newKernelSide(4096, 4096-64)
	for dyn := uint64(0); dyn <= size; dyn += 4 {
		body := binary.LittleEndian.AppendUint64(nil, 0x1234)
		body = binary.LittleEndian.AppendUint64(body, size)
		for i := range size {
			body = append(body, byte(i)+1)
		}
		body = binary.LittleEndian.AppendUint64(body, dyn)
		k.put(record(source.RecordSample, body))
		var got []byte
		k.drain(size, size, func(n int) []byte { got = make([]byte, n); return got })
		var r source.Record
		if err := dec.Decode(got, &r); err != nil || r.IP != 0x1234 || r.StackDyn != dyn || uint64(len(r.Stack)) < dyn {
			t.Fatalf("%d bytes of stack: %v, %+v", dyn, err, r)
		}
		if !bytes.Equal(r.Stack[:dyn], body[16:16+dyn]) {
			t.Errorf("%d bytes of stack: not the same", dyn)
		}
		if (uint64(len(r.Stack)) > dyn) != (dyn < size) || uint64(len(r.Stack)) > dyn+16 {
			t.Errorf("%d bytes of stack: %d kept", dyn, len(r.Stack))
		}
	}
	// Less than there is.
	for most := uint64(0); most <= size; most += 8 {
		for _, dyn := range []uint64{0, 8, 256, size - 8, size} {
			body := binary.LittleEndian.AppendUint64(nil, 0x1234)
			body = append(binary.LittleEndian.AppendUint64(body, size), bytes.Repeat([]byte{7}, size)...)
			k.put(record(source.RecordSample, binary.LittleEndian.AppendUint64(body, dyn)))
			var got []byte
			shortened := k.shortened
			k.drain(size, uint32(most), func(n int) []byte { got = make([]byte, n); return got })
			if n := k.shortened - shortened; (n == 1) != (dyn > most) || n > 1 {
				t.Errorf("%d bytes of stack, %d to keep: %d copies count as shortened", dyn, most, n)
			}
			var r source.Record
			want := min(dyn, most)
			if err := dec.Decode(got, &r); err != nil || r.StackDyn != want || uint64(len(r.Stack)) < want || uint64(len(r.Stack)) > min(most, dyn+16) {
				t.Fatalf("%d bytes of stack, %d to keep: %v, %d of %d", dyn, most, err, r.StackDyn, len(r.Stack))
			}
		}
	}
	// A sample without a stack has the size 0 and nothing behind it.
	body := make([]byte, 16)
	k.put(record(source.RecordSample, body))
	_, err := k.drain(size, size, func(n int) []byte {
		if n != recordHeader+16 {
			t.Errorf("%d bytes", n)
		}
		return make([]byte, n)
	})
	if err != nil {
		t.Error(err)
	}
}

// A someProgram stands for a program that has no samples.
type someProgram struct{ Program }

func (someProgram) Observe([]byte) {}

// TestCopyLimit: where the kernel walks, copies get smaller as more of them wait, and as large again when they have gone. What else waits changes
// nothing: others' stacks stay whole.
func TestCopyLimit(t *testing.T) {
	r := &Recorder{memory: memoryOf(1 << 62), queue: newBacklog(memoryOf(1 << 62).backlog), program: someProgram{}, shape: Stats{StackSize: programStack}}
	r.out.to = r.queue
	put := func(id uint64) {
		raw := record(source.RecordSample, binary.LittleEndian.AppendUint64(nil, id))
		b := r.space(1 << 14)
		copy(b, raw)
		binary.LittleEndian.PutUint16(b[6:], uint16(len(b)))
		r.flush()
	}
	for range 2560 {
		put(source.WalkedID)
	}
	type at struct {
		waits int64
		limit uint32
	}
	var got []at
	for r.out.copies.Load() < 60<<20 {
		limit := r.copyLimit()
		if len(got) == 0 || got[len(got)-1].limit != limit {
			got = append(got, at{r.out.copies.Load(), limit})
		}
		put(0)
	}
	if want := []at{{0, 60 << 10}, {12 << 20, 30 << 10}, {24 << 20, 15 << 10}, {36 << 20, 7680}, {48 << 20, emptyCopy}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.chosen = true
	if n := r.copyLimit(); n != programStack {
		t.Errorf("%d bytes, where a size was asked for", n)
	}
	r.chosen = false
	r.shape.StackSize, r.memory.none = 8192, 1<<62
	if n := r.copyLimit(); n != 4096 {
		t.Errorf("%d bytes of copies of 8192", n)
	}
	r.out.close()
	for len(r.queue.batches) > 0 {
		b, _ := r.queue.take()
		b.buf.Release()
	}
	if n := r.out.copies.Load(); n != 0 || r.copyLimit() != 8192 {
		t.Errorf("copies of %d bytes wait, and the limit is %d", n, r.copyLimit())
	}
	r.program = nil
	r.out.copies.Store(1 << 30)
	if n := r.copyLimit(); n != 8192 {
		t.Errorf("%d bytes, where copies are all there is", n)
	}
}

// TestRingEarly: while samples come too early, they only leave the ring; all other records come.
func TestRingEarly(t *testing.T) {
	k := newKernelSide(4096, 4096-64)
	var early atomic.Bool
	k.early = &early
	for _, is := range []bool{true, false} {
		early.Store(is)
		k.put(record(source.RecordSample, make([]byte, 640)))
		k.put(record(source.RecordComm, make([]byte, 24)))
		k.put(record(source.RecordSample, make([]byte, 8)))
		want := []int{recordHeader + 640, recordHeader + 24, recordHeader + 8}
		if is {
			want = want[1:2]
		}
		var got []int
		n, err := k.drain(512, 512, func(n int) []byte { got = append(got, n); return make([]byte, n) })
		if err != nil || n != 3*recordHeader+672 || k.h != k.t || !slices.Equal(got, want) {
			t.Errorf("early %v: %v, %d bytes, head %#x, tail %#x, records of %d, want %d", is, err, n, k.h, k.t, got, want)
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add(uint64(0), uint64(64), record(source.RecordSample, make([]byte, 24)))
	f.Add(uint64(1<<63), uint64(8), []byte{9, 0, 0, 0, 0, 0, 8, 0})
	f.Fuzz(func(t *testing.T, tail, n uint64, data []byte) {
		k := newKernelSide(1024, tail&^7)
		copy(k.data, data)
		k.h += n
		var sum uint64
		_, err := k.drain(32, 32, func(n int) []byte { sum += uint64(n); return make([]byte, n) })
		if k.h != k.t || sum > 1024 || err != nil && !errors.Is(err, source.ErrMalformed) {
			t.Fatalf("head %#x, tail %#x, %d bytes, %v", k.h, k.t, sum, err)
		}
	})
}

// TestBacklog sends rounds through the chunks and the queue, with a consumer that keeps some records for later.
func TestBacklog(t *testing.T) {
	r := &Recorder{queue: newBacklog(memoryOf(1 << 62).backlog), direct: map[int32]attached{}}
	r.out.to = r.queue
	sides := []*kernelSide{newKernelSide(1<<17, 0), newKernelSide(1<<17, 0)}
	for _, k := range sides {
		r.rings = append(r.rings, &k.ring)
	}
	const rounds, each = 50, 40
	go func() {
		n := uint64(0)
		for range rounds {
			for _, k := range sides {
				for range each {
					body := binary.LittleEndian.AppendUint64(make([]byte, 0, 1600), n)
					n++
					if !k.put(record(source.RecordThrottle, body[:8+n%200*8])) {
						t.Errorf("no room for record %d", n)
					}
				}
			}
			k := sides[0]
			k.put(record(source.RecordLost, binary.LittleEndian.AppendUint64(make([]byte, 8), 3)))
			r.round()
		}
		r.round()
		r.round()
		r.out.close()
		r.queue.close(nil)
	}()
	type kept struct {
		raw []byte
		buf *source.Buffer
	}
	var held []kept
	check := func(n uint64, raw []byte) {
		if got := binary.LittleEndian.Uint64(raw[8:]); got != n {
			t.Fatalf("record %d is %d", n, got)
		}
	}
	var n, ends uint64
	for {
		raw, buf, err := r.Next()
		if err == io.EOF {
			break
		}
		switch binary.LittleEndian.Uint32(raw) {
		case source.RecordFinishedRound:
			ends++
		case source.RecordThrottle:
			check(n, raw)
			n++
			buf.Hold()
			if held = append(held, kept{raw, buf}); len(held) == 300 {
				for i, h := range held {
					check(n-300+uint64(i), h.raw)
					h.buf.Release()
				}
				held = held[:0]
			}
		}
	}
	if n != rounds*each*2 || ends != rounds+1 {
		t.Errorf("%d records and %d rounds, want %d and %d", n, ends, rounds*each*2, rounds+1)
	}
	if s := r.Stats(); s.Lost != 3*rounds || s.Records != n+rounds {
		t.Errorf("%+v", s)
	}
}

// TestForked checks who keeps the events of a thread that may have inherited others.
func TestForked(t *testing.T) {
	fork := func(tid, parent uint32, ns uint64) []byte {
		b := binary.LittleEndian.AppendUint32(nil, 1)
		for _, v := range []uint32{1, tid, parent} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return record(source.RecordFork, binary.LittleEndian.AppendUint64(b, ns))
	}
	for _, c := range []struct {
		what           string
		tid, parent    uint32
		ns             uint64
		direct, inheri bool
	}{
		{"born of a recorded thread, then attached to", 20, 10, 150, false, true},
		{"born before its parent was recorded", 20, 10, 50, true, false},
		{"born of a thread that had inherited", 20, 11, 150, false, true},
		{"another of the same number", 20, 10, 300, false, true},
		{"not attached to", 30, 10, 150, true, true},
	} {
		r := &Recorder{direct: map[int32]attached{10: {&target{}, 100}, 20: {&target{}, 200}}, inherited: map[int32]bool{}}
		r.forked(fork(c.tid, c.parent, c.ns))
		_, direct := r.direct[20]
		if direct != c.direct || r.inherited[int32(c.tid)] != c.inheri {
			t.Errorf("%s: attached to %v, inherited %v", c.what, direct, r.inherited[int32(c.tid)])
		}
	}
}

// TestRingSymbols: KSYMBOL records whose size the kernel has counted too high come as they would be, in rings that wrap around inside of them.
func TestRingSymbols(t *testing.T) {
	dec := source.NewDecoder()
	attr := &source.Attr{SampleType: source.SampleTID | source.SampleTime | source.SampleCPU, Flags: source.FlagSampleIDAll | source.FlagKsymbol}
	dec.AddAttr(attr, nil, "")
	for n := range 40 {
		k := newKernelSide(4096, uint64(4096-8*n))
		k.trailer = 24
		name := bytes.Repeat([]byte{'s'}, n)
		want := dec.Append(nil, 0, &source.Record{Type: source.RecordKsymbol, Time: 77, PID: 5, TID: 6, CPU: 1, Addr: 1 << 63, Len: 8, SymbolType: source.SymbolBPF, Symbol: name})
		for rest := 0; rest < 4*24; rest += 24 {
			long := append(bytes.Clone(want), bytes.Repeat([]byte{0xee}, rest)...)
			binary.LittleEndian.PutUint16(long[6:], uint16(len(long)))
			k.put(long)
			var r source.Record
			if err := dec.Decode(long, &r); err != nil || r.Time != 77 || r.PID != 5 || r.CPU != 1 || !bytes.Equal(r.Symbol, name) {
				t.Errorf("%d bytes behind it: %v, %+v", rest, err, r)
			}
			var got []byte
			if _, err := k.drain(512, 512, func(n int) []byte { got = make([]byte, n); return got }); err != nil || !bytes.Equal(got, want) {
				t.Errorf("a name of %d bytes, and %d behind the record: %v\n got %x\nwant %x", n, rest, err, got, want)
			}
		}
	}
}

// TestMemory: what waits takes a part of the memory that the program lives by, and nothing changes from 16 GiB on.
func TestMemory(t *testing.T) {
	most := memory{backlog: 64 << 20, shrink: shrinkCopies, none: 48 << 20, rings: allRing, chunk: chunkSize}
	for _, limit := range []uint64{1 << 62, 4 << 30} {
		if m := memoryOf(limit); m != most {
			t.Errorf("memoryOf(%d)\n got  %+v\n want %+v", limit, m, most)
		}
	}
	if got, want := memoryOf(64<<20), (memory{backlog: 1 << 20, shrink: 64 << 20 / 384, none: 768 << 10, rings: 1 << 20, chunk: smallChunk}); got != want {
		t.Errorf("memoryOf(64 MiB)\n got  %+v\n want %+v", got, want)
	}
	if got, want := memoryOf(512<<20), (memory{backlog: 64 << 20, shrink: 512 << 20 / 384 * 8, none: 48 << 20, rings: 64 << 20, chunk: chunkSize}); got != want {
		t.Errorf("memoryOf(512 MiB)\n got  %+v\n want %+v", got, want)
	}
	if m := memoryOf(0); m.backlog < smallChunk || m.shrink == 0 || m.rings < minRing {
		t.Errorf("memoryOf(0) = %+v", m)
	}
	// Where too many copies wait, a sample has its registers and next to nothing of its stack.
	r := &Recorder{memory: memoryOf(64 << 20), queue: newBacklog(1 << 20), program: someProgram{}, shape: Stats{StackSize: 16 << 10}}
	for _, c := range []struct {
		wait  int64
		limit uint32
	}{{0, 16 << 10}, {300 << 10, 8 << 10}, {400 << 10, leastCopy}, {600 << 10, leastCopy}, {768 << 10, emptyCopy}} {
		r.out.copies.Store(c.wait)
		if n := r.copyLimit(); n != c.limit {
			t.Errorf("%d bytes of copies while %d wait, want %d", n, c.wait, c.limit)
		}
	}
}
