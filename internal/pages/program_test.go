package pages

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestClean: of the program's mappings those are listed whose pages the file brings back. A page in swap is the process's own, as one in memory is.
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
7f0000000000-7f0000100000 r--p 00000000 00:20 4711 /other/device
Anonymous:             0 kB
Swap:                  0 kB
7f0000100000-7f0000200000 r--p 00000000 00:1f 4712 /other/file
Anonymous:             0 kB
Swap:                  0 kB
7f0000200000-7f0000300000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
`
	for code, want := range map[uint64][]uint64{
		0x55d0a0123456: {0x55d0a0000000, 0x55d0a0100000},
		0x7f0000200000: nil, // code of no file
		0x1000:         nil,
	} {
		var got []uint64
		for _, m := range clean(strings.NewReader(text), code) {
			got = append(got, m.Lo)
		}
		if !slices.Equal(got, want) {
			t.Errorf("code at %#x\n got  %#x\n want %#x", code, got, want)
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
		t.Error("other bytes came back")
	}
	size := 0
	for _, b := range was {
		size += len(b) >> 10
	}
	if before < size || after > before-size/2 { // what runs just now is there again
		t.Errorf("of %d kB of the program, %d were in memory, then %d", size, before, after)
	}
}
