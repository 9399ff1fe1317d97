package tracer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// TestReplaced: code that takes the place of other code of the same size is reported before the first sample in it. Before, a second went by.
func TestReplaced(t *testing.T) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, page, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	at := unsafe.Pointer(&mem[0])
	if _, ok := procfs.At(maps, uint64(uintptr(at))); !ok {
		oracle.Lacks(t, "PROCMAP_QUERY of Linux 6.11")
	}

	r := &Recorder{dec: source.NewDecoder()}
	r.dec.AddAttr(&source.Attr{Flags: source.FlagMmap2 | source.FlagSampleIDAll}, nil, "")
	p := &proc{pid: os.Getpid(), reported: map[mapping]string{}}
	defer p.close()
	for _, name := range []string{"a.so", "b.so", "b.so"} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, make([]byte, page), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := unix.MmapPtr(int(f.Fd()), 0, at, uintptr(page), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED); err != nil {
			t.Fatal(err)
		}
		r.out = nil
		if p.maps != nil { // as if the last sample had just been, and nothing else had changed the size of this process since
			b, _ := os.ReadFile("/proc/self/statm")
			p.size, _, _ = strings.Cut(string(b), " ")
			p.read = time.Now()
		}
		r.remapIfChanged(p, uint64(uintptr(at))+8)
		found := false
		for b := r.out; len(b) > 0; {
			n := recordSize(b)
			var rec source.Record
			if err := r.dec.Decode(b[:n], &rec); err != nil {
				t.Fatal(err)
			}
			found = found || string(rec.Filename) == path && rec.Addr == uint64(uintptr(at))
			b = b[n:]
		}
		if !found {
			t.Errorf("%s at %p is not reported", path, at)
		}
	}
}
