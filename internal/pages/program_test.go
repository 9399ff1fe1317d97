package pages

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"testing"
)

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
