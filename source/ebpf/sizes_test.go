package ebpf

import (
	"bytes"
	"maps"
	"math/bits"
	"runtime"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// TestSizesOf: maps grow with the machine, between bounds.
func TestSizesOf(t *testing.T) {
	const gb = 1 << 30
	for _, c := range []struct {
		cpus   int
		memory uint64
		fixed  bool
		want   sizes
	}{
		{1, gb / 4, false, sizes{8 << 20, 1 << 14, 1 << 14, 1 << 15, 1}},
		{2, 4 * gb, false, sizes{8 << 20, 1 << 15, 1 << 14, 1 << 15, 2}},
		{2, 24 * gb, false, sizes{8 << 20, 1 << 17, 1 << 16, 1 << 17, 2}},
		{3, 24 * gb, false, sizes{8 << 20, 1 << 17, 1 << 16, 1 << 17, 3}},
		{4, 32 * gb, false, sizes{8 << 20, 1 << 18, 1 << 17, 1 << 18, 4}},
		{256, 1024 * gb, false, sizes{16 << 20, 1 << 18, 1 << 17, 1 << 18, 256}},
		{0, 0, true, sizes{8 << 20, 1 << 12, 1 << 13, 1 << 14, 1}},
		{64, 1024 * gb, true, sizes{16 << 20, 1 << 13, 1 << 13, 1 << 14, 64}},
	} {
		s := sizesOf(c.cpus, c.memory, c.fixed)
		if s != c.want {
			t.Errorf("%d processors, %d bytes, fixed %v: %+v, not %+v", c.cpus, c.memory, c.fixed, s, c.want)
		}
		for _, n := range []uint32{s.ring, s.spaces, s.processes, s.threads} {
			if bits.OnesCount32(n) != 1 {
				t.Errorf("%+v: %d is no power of two", s, n)
			}
		}
	}
}

func TestRingOf(t *testing.T) {
	for limit, want := range map[uint64]uint32{0: 512 << 10, 64 << 20: 1 << 20, 100 << 20: 1 << 20, 256 << 20: 4 << 20, 1 << 40: 1 << 30} {
		if got := ringOf(limit); got != want {
			t.Errorf("%d bytes: a ring of %d, not %d", limit, got, want)
		}
	}
}

// TestMapMemory: all maps but those of tables take 20 MB at most on two processors, those of off-CPU profiles, too, and what the processes of
// the machine take in them now. Each processor more has its cache, and up to eight their parts of the ring.
func TestMapMemory(t *testing.T) {
	p := load(t, Options{Wakers: true})
	more, err := p.load("on_switch", "on_waking")
	if err != nil {
		t.Fatal(err)
	}
	defer more.Close()
	all := maps.Clone(p.coll.Maps)
	maps.Copy(all, more.Maps)
	total, seen := uint64(0), map[uint32]bool{}
	for name, m := range all {
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		n, ok := info.Memlock()
		if !ok {
			t.Fatalf("the kernel does not say what %s takes", name)
		}
		if !seen[uint32(id)] {
			seen[uint32(id)] = true
			total += n
			t.Logf("%-12s %9d", name, n)
		}
	}
	cpus, err := processors()
	if err != nil {
		t.Fatal(err)
	}
	ring := uint64(sizesOf(cpus, 0, false).ring - sizesOf(2, 0, false).ring)
	bound := 20_000_000 + uint64(max(cpus-2, 0))*600_000 + ring
	t.Logf("%d bytes in %d maps, %d processors", total, len(seen), cpus)
	if total > bound {
		t.Errorf("%d bytes, more than %d", total, bound)
	}
	var per uint64
	if c, err := p.coll.Maps["caches"].Info(); err == nil {
		per, _ = c.Memlock()
	}
	if per/uint64(cpus) > 1<<20 {
		t.Errorf("a processor's cache takes %d bytes", per/uint64(cpus))
	}
}

// TestCacheLines: on x86-64, the two places of an answer lie in one cache line, of 64 bytes. On AArch64 they have 96 bytes, more than a line.
func TestCacheLines(t *testing.T) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	m := spec.Maps["caches"]
	if m.Flags&unix.BPF_F_MMAPABLE == 0 || m.ValueSize%64 != 0 {
		t.Errorf("values have %d bytes, flags %#x: they do not begin with a cache line", m.ValueSize, m.Flags)
	}
	s, ok := m.Value.(*btf.Struct)
	if !ok || s.Members[0].Name != "e" || s.Members[0].Offset != 0 {
		t.Fatalf("the answers do not come first: %v", m.Value)
	}
	places, ok := s.Members[0].Type.(*btf.Array)
	if !ok {
		t.Fatalf("the answers are %v, want an array", s.Members[0].Type)
	}
	if n, err := btf.Sizeof(places.Type); runtime.GOARCH == "amd64" && (err != nil || n != 64) {
		t.Errorf("a place has %d bytes: %v", n, err)
	}
}
