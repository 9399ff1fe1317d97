package pages

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// files are the mappings that MapFile has made, by where they begin.
var files sync.Map

// MapFile maps the first size bytes of a file, for reading and for good: nobody unmaps them. It is for files that nobody cuts short.
func MapFile(fd int, size int) ([]byte, error) {
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map a file: %w", err)
	}
	files.Store(unsafe.SliceData(b), b)
	return b, nil
}

// Release gives back the memory behind a file that MapFile has mapped, if b begins with it; otherwise it does nothing. Reading the file brings it
// back from the kernel's cache. It is for who has just read a whole file of which others need a part.
func Release(b []byte) {
	if f, ok := files.Load(unsafe.SliceData(b)); ok {
		_ = unix.Madvise(f.([]byte), unix.MADV_DONTNEED)
	}
}

// Mapped says whether b begins with a file that MapFile has mapped: the kernel can drop its memory, and reads the file again.
func Mapped(b []byte) bool {
	_, ok := files.Load(unsafe.SliceData(b))
	return ok
}

// ReleaseFiles gives back the memory behind all files that MapFile has mapped, as Release does.
func ReleaseFiles() {
	files.Range(func(_, f any) bool {
		_ = unix.Madvise(f.([]byte), unix.MADV_DONTNEED)
		return true
	})
}
