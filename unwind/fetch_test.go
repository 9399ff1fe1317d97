package unwind

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFetch: what is fetched ends with the slice or a line behind it, whatever lies there, and nothing faults.
func TestFetch(t *testing.T) {
	page := os.Getpagesize()
	all, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(all)
	if err := unix.Mprotect(all[page:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 63, 64, 65, 1000, page} {
		b := all[page-n : page]
		for _, c := range []struct{ lo, hi, want uint64 }{
			{0, 64, 64}, {0, 65, 128}, {64, 64, 64}, {128, 64, 128}, {0, 1 << 40, (uint64(n) + 63) / 64 * 64}, {1 << 40, 1 << 50, 1 << 40},
		} {
			if c.lo < uint64(n) && c.hi < uint64(n) || c.hi > 1<<30 {
				if got := fetchFrom(b, c.lo, c.hi); got != c.want {
					t.Errorf("of %d bytes, from %d to %d: ended at %d, want %d", n, c.lo, c.hi, got, c.want)
				}
			} else {
				fetchFrom(b, c.lo, c.hi)
			}
		}
	}
	fetchFrom(nil, 0, 1)
}
