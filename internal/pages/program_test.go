package pages

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestClean: of the mappings of the program's segments those are listed whose pages the file brings back. A page in swap is the process's own, as one in
// memory is. Another mapping of the same file may be something else later.
func TestClean(t *testing.T) {
	const text = `55d0a0000000-55d0a0100000 r--p 00000000 00:1f 4711 /bin/unspool
Rss:                 256 kB
Anonymous:             0 kB
Swap:                  0 kB
55d0a0100000-55d0a0800000 r-xp 00100000 00:1f 4711 /bin/unspool
Rss:                4096 kB
Anonymous:             0 kB
Swap:                  0 kB
55d0a0800000-55d0a0900000 r--p 00800000 00:1f 4711 /bin/unspool
Rss:                   0 kB
Anonymous:             0 kB
Swap:                 64 kB
55d0a0900000-55d0a0a00000 r--p 00900000 00:1f 4711 /bin/unspool
Rss:                  64 kB
Anonymous:            64 kB
Swap:                  0 kB
55d0a0a00000-55d0a0b00000 rw-p 00a00000 00:1f 4711 /bin/unspool
Anonymous:             0 kB
Swap:                  0 kB
55d0a0b00000-55d0a0c00000 r--s 00a00000 00:1f 4711 /bin/unspool
Anonymous:             0 kB
Swap:                  0 kB
55d0a0c00000-55d0a0d00000 r--p 00a00000 00:1f 4711 /bin/unspool
Anonymous:             0 kB
55d0a0d00000-55d0a0e00000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000900000 r--p 00000000 00:1f 4711 /bin/unspool
Anonymous:             0 kB
Swap:                  0 kB
`
	for _, c := range []struct {
		lo, hi uint64
		want   []uint64
	}{
		{0x55d0a0000000, 0x55d0a0e00000, []uint64{0x55d0a0000000, 0x55d0a0100000}},
		{0x55d0a0000123, 0x55d0a07fff01, []uint64{0x55d0a0000000, 0x55d0a0100000}}, // in pages
		{0x55d0a0100000, 0x55d0a0e00000, []uint64{0x55d0a0100000}},
		{0x55d0a0000000, 0x55d0a0700000, []uint64{0x55d0a0000000}},
		{0, 0, nil},
	} {
		var got []uint64
		for _, m := range clean(strings.NewReader(text), c.lo, c.hi) {
			got = append(got, m.Lo)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("segments at %#x to %#x\n got  %#x\n want %#x", c.lo, c.hi, got, c.want)
		}
	}
}

// ownFile is this program's file, mapped elsewhere before the mappings of its segments are looked for, as a profiler maps it that samples itself.
var ownFile = func() []byte {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	program()
	return b
}()

// TestReleaseOthers: what is mapped where the program's own file was once is left alone.
func TestReleaseOthers(t *testing.T) {
	at := unsafe.Pointer(unsafe.SliceData(ownFile))
	if _, err := unix.MmapPtr(-1, 0, at, uintptr(len(ownFile)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
	for i := range ownFile {
		ownFile[i] = byte(i % 251)
	}
	ReleaseProgram()
	for i, b := range ownFile {
		if b != byte(i%251) {
			t.Fatalf("byte %d is %d, and was %d", i, b, i%251)
		}
	}
}

// TestReleaseProgram: the program's code and constants leave this process's memory, and are there again when they are used.
func TestReleaseProgram(t *testing.T) {
	if len(program()) < 2 {
		t.Fatalf("%d mappings are this program's: %+v", len(program()), program())
	}
	resident := func() int { // RssFile, kB
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, b, _ = bytes.Cut(b, []byte("RssFile:"))
		n, err := strconv.Atoi(string(bytes.Fields(b)[0]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mem, err := os.Open("/proc/self/mem") // its reads get pages, as the program's own do
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	read := func() [][]byte {
		var all [][]byte
		for _, m := range program() {
			b := make([]byte, m.Hi-m.Lo)
			if _, err := mem.ReadAt(b, int64(m.Lo)); err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
		return all
	}
	was, before := read(), resident()
	ReleaseProgram()
	after := resident()
	if is := read(); !slices.EqualFunc(is, was, bytes.Equal) {
		t.Errorf("after ReleaseProgram, other bytes came back, of %d mappings; %d before: %+v", len(is), len(was), program())
	}
	size := 0
	for _, b := range was {
		size += len(b) >> 10
	}
	if before < size || after > before-size/2 { // what runs just now is there again
		t.Errorf("of %d kB of the program, %d were in memory, then %d", size, before, after)
	}
}
