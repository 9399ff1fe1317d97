package pages

import (
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// resident returns how many of the whole pages in s have memory.
func resident(t *testing.T, s []uint32) (have, all int) {
	page := os.Getpagesize()
	p := uintptr(unsafe.Pointer(unsafe.SliceData(s)))
	skip := -p % uintptr(page)
	all = (4*cap(s) - int(skip)) / page
	vec := make([]byte, all)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, p+skip, uintptr(all*page), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
		t.Fatalf("mincore of %d pages: %v", all, errno)
	}
	for _, v := range vec {
		have += int(v & 1)
	}
	return have, all
}

// TestPopulate: all pages are there, what the slice holds stays, and slices without a whole page are left alone.
func TestPopulate(t *testing.T) {
	const size = 16 << 20
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON) // the heap's may be there already
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	if err := unix.Madvise(b[:os.Getpagesize()], unix.MADV_POPULATE_WRITE); errors.Is(err, unix.EINVAL) {
		oracle.Lacks(t, "MADV_POPULATE_WRITE (Linux 5.14)")
	}
	s := unsafe.Slice((*uint32)(unsafe.Pointer(&b[0])), size/4)[:3]
	copy(s, []uint32{1, 2, 3})
	if have, all := resident(t, s); have == all {
		t.Fatalf("%d of %d pages are there before: the test shows nothing", have, all)
	}
	if got := Populate(s); !slices.Equal(got, []uint32{1, 2, 3}) || cap(got) != cap(s) {
		t.Errorf("Populate returns %v, with a capacity of %d; want [1 2 3], %d", got, cap(got), cap(s))
	}
	if have, all := resident(t, s); have != all {
		t.Errorf("%d of %d pages are there", have, all)
	}
	big := make([]byte, least+4096)
	for n := range 64 { // at all distances from a page's start and end
		Populate(big[n : least+n : least+n])
	}
	Populate[int](nil)
	Populate(make([]struct{}, 10))
}

// TestWhole: whole pages are found, whatever the size of a page.
func TestWhole(t *testing.T) {
	for _, c := range []struct{ at, size, page, skip, n uintptr }{
		{0x10000, 0x10000, 0x1000, 0, 0x10000},
		{0x10008, 0x10000, 0x1000, 0xff8, 0xf000},
		{0x10008, 0x10000, 0x4000, 0x3ff8, 0xc000},
		{0x10008, 0x10000, 0x10000, 0xfff8, 0},
		{0x10000, 0x1ffff, 0x10000, 0, 0x10000},
		{0x10008, 0x10000, 0x40000, 0, 0},
	} {
		if skip, n := whole(c.at, c.size, c.page); skip != c.skip || n != c.n {
			t.Errorf("%#x bytes at %#x, pages of %#x\n got  %#x behind %#x\n want %#x behind %#x", c.size, c.at, c.page, n, skip, c.n, c.skip)
		}
	}
}
