package module

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/internal/oracle"
)

// resident returns how many KiB of the mapping that begins at b are in this process's memory.
func resident(t *testing.T, b []byte) (kb int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(smaps), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(unsafe.SliceData(b)))))
	_, rest, found := strings.Cut(rest, "\nRss:")
	if _, err := fmt.Sscan(rest, &kb); !ok || !found || err != nil {
		t.Fatalf("the mapping is not in smaps: %v", err)
	}
	return kb
}

// TestReleasePages: what was read of a file does not stay in memory, and can be read again.
func TestReleasePages(t *testing.T) {
	oracle.Long(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	img, err := Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	same := func(b []byte) (n int) { // that begin as the file does
		for n < min(len(b), len(want)) && b[n] == want[n] {
			n++
		}
		return n
	}
	if !bytes.Equal(img.b, want) {
		t.Fatalf("the image of %s is not the file: %d bytes, want %d, of which the first %d are the same", exe, len(img.b), len(want), same(img.b))
	}
	other, err := Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, c := range []struct {
		name    string
		release func()
	}{
		{"all files", ReleasePages},
		{"this file", img.ReleasePages},
	} {
		if !bytes.Equal(img.b, want) || !bytes.Equal(other.b, want) {
			t.Fatalf("before the pages of %s are given back: the image is not the file", c.name)
		}
		if kb := resident(t, img.b); kb<<10 < len(want)/2 {
			t.Fatalf("%d KiB of %d bytes that were read are in memory", kb, len(want))
		}
		c.release()
		if kb := resident(t, img.b); kb != 0 {
			t.Errorf("%s: %d KiB stay", c.name, kb)
		}
		if kb := resident(t, other.b); (kb == 0) != (c.name == "all files") {
			t.Errorf("%s: %d KiB of another image stay", c.name, kb)
		}
	}
	if !bytes.Equal(img.b, want) {
		t.Errorf("after its pages were given back, the image of %s is not the file any more: %d bytes, want %d, of which the first %d are the same", exe, len(img.b), len(want), same(img.b))
	}
	// Others open and close files meanwhile.
	before := len(mapped.files)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				img, err := Open(exe)
				if err != nil {
					t.Error(err)
					return
				}
				ReleasePages()
				if !bytes.Equal(img.b[:1<<16], want[:1<<16]) {
					t.Errorf("after ReleasePages, another image of %s is not the file: %d bytes, want %d, of which the first %d are the same", exe, len(img.b), len(want), same(img.b))
				}
				img.Close()
			}
		})
	}
	wg.Wait()
	if n := len(mapped.files); n != before {
		t.Errorf("%d files are mapped, %d before", n, before)
	}
}
