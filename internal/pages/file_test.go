package pages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRelease: a mapped file is what it was after its memory was given back; other memory is not touched.
func TestRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	want := bytes.Repeat([]byte("text"), 1<<18)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := MapFile(int(f.Fd()), len(want))
	if err != nil || !bytes.Equal(b, want) {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	has := func() (kib int) {
		smaps, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		_, after, _ := strings.Cut(string(smaps), " "+path+"\n")
		_, after, ok := strings.Cut(after, "\nRss:")
		if _, err := fmt.Sscan(after, &kib); !ok || err != nil {
			t.Fatalf("the mapping is not found: %v", err)
		}
		return kib
	}
	if n := has(); n != len(want)>>10 {
		t.Errorf("read, it has %d KiB of memory", n)
	}
	Release(b[:100]) // what of it is a table
	if n := has(); n != 0 {
		t.Errorf("given back, it has %d KiB of memory", n)
	}
	for i := range want {
		if b[i] != want[i] {
			t.Fatalf("given back and read again, byte %d is %#x, want %#x", i, b[i], want[i])
		}
	}
	ReleaseFiles()
	if n, same := has(), bytes.Equal(b, want); n != 0 || !same {
		t.Errorf("after ReleaseFiles, the mapping has %d KiB of memory, want 0; its bytes are those of the file: %v, want true", n, same)
	}
	Release(b[1:])
	if n := has(); n == 0 {
		t.Errorf("a part that the mapping does not begin with was given back: %d KiB stay, of %d; want some", n, len(want)>>10)
	}
	own := bytes.Clone(want)
	if !Mapped(b[:100]) || Mapped(b[1:]) || Mapped(own) || Mapped(nil) {
		t.Errorf("Mapped says %v of the mapping's beginning, want true; %v of its rest, %v of other memory and %v of none, want false",
			Mapped(b[:100]), Mapped(b[1:]), Mapped(own), Mapped(nil))
	}
	Release(own)
	Release(nil)
	if !bytes.Equal(own, want) {
		t.Errorf("memory that is no file's was given back: its %d bytes begin with %.16q, want %.16q", len(own), own, want)
	}
	if b, err := MapFile(-1, 100); err == nil {
		t.Errorf("MapFile maps %d bytes of descriptor -1; want an error", len(b))
	}
}
