package ebpf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A memRing is a ring buffer in a file, as the kernel lays one out.
type memRing struct {
	*ring
	t    *testing.T
	mem  []byte
	page int
	prod uint64
}

func newMemRing(t *testing.T, size, at uint64) *memRing {
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	m := &memRing{t: t, page: os.Getpagesize(), prod: at}
	n := 2*m.page + 2*int(size)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		t.Fatal(err)
	}
	if m.mem, err = unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m.mem) })
	binary.LittleEndian.PutUint64(m.mem, at)
	binary.LittleEndian.PutUint64(m.mem[m.page:], at)
	if m.ring, err = openRing(fd, size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.close() })
	return m
}

// put writes a record with flags. It returns false where there is no room.
func (m *memRing) put(b []byte, flags uint32) bool {
	n := uint64(ringHeader + (len(b)+7)&^7)
	if m.prod+n-binary.LittleEndian.Uint64(m.mem) > m.size {
		return false
	}
	rec := append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))|flags), 1, 2, 3, 4)
	for i, c := range append(rec, b...) {
		at := (m.prod + uint64(i)) & (m.size - 1)
		m.mem[2*m.page+int(at)], m.mem[2*m.page+int(at+m.size)] = c, c
	}
	m.prod += n
	binary.LittleEndian.PutUint64(m.mem[m.page:], m.prod)
	return true
}

// TestRing: all records come as they were written, wherever they lie, and no more of the buffer is mapped than a window.
func TestRing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []uint64{1 << 16, 4 << 20} {
		m := newMemRing(t, size, -size-64) // positions wrap, too
		var want, got [][]byte
		read := func() {
			if err := m.read(func(b []byte) { got = append(got, bytes.Clone(b)) }); err != nil {
				t.Fatal(err)
			}
			if len(m.window) > ringWindow+1<<16 {
				t.Fatalf("%d bytes are mapped", len(m.window))
			}
		}
		for total := uint64(0); total < 5*size; {
			b := make([]byte, rng.IntN(10_000))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			flags := uint32(0)
			if rng.IntN(10) == 0 {
				flags = ringDiscard
			}
			for !m.put(b, flags) {
				read()
			}
			if total += uint64(len(b)); flags == 0 {
				want = append(want, b)
			}
		}
		read()
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i := range got {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("record %d\n got %x\nwant %x", i, got[i], want[i])
			}
		}
		// One that is being written holds up those behind it.
		got = nil
		at := m.prod & (m.size - 1)
		m.put([]byte("first"), ringBusy)
		m.put([]byte("second"), 0)
		if read(); len(got) != 0 {
			t.Errorf("%q", got)
		}
		for _, at := range []uint64{at, at + m.size} {
			binary.LittleEndian.PutUint32(m.mem[2*m.page+int(at):], 5)
		}
		if read(); len(got) != 2 || string(got[0]) != "first" || string(got[1]) != "second" {
			t.Errorf("%q", got)
		}
		// No record is longer than what has been written.
		m.put([]byte("third"), 0)
		m.put(make([]byte, 8), 0)
		at = (m.prod - 2*ringHeader) & (m.size - 1)
		for _, at := range []uint64{at, at + m.size} {
			binary.LittleEndian.PutUint32(m.mem[2*m.page+int(at):], 1<<29)
		}
		if err := m.read(func([]byte) {}); err == nil {
			t.Errorf("a ring of %d bytes: a record of %d bytes is read without an error, but only %d bytes were written", m.size, 1<<29, 2*ringHeader)
		}
	}
}
