package perfevent

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// TestOtherRecorder holds that while the whole machine is recorded, perf's recordings are what they are without: it crashes
// where its mapping records are marked as if they had build IDs.
func TestOtherRecorder(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to record the whole machine")
	}
	w := work(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := Open(ctx, Options{All: true, Frequency: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended := make(chan error, 1)
	ids := map[string]string{} // build IDs that our records have
	go func() {
		_, err := source.Run(context.Background(), r, source.Options{
			Mods: func(path, id string) *unwind.Module { return unwind.NewModule(path, id, nil) },
			Record: func(rec *source.Record) error {
				if rec.Type == source.RecordMmap2 && len(rec.BuildID) > 0 {
					ids[string(rec.Filename)] = hex.EncodeToString(rec.BuildID)
				}
				return nil
			},
		})
		ended <- err
	}()
	file := filepath.Join(t.TempDir(), "perf.data")
	if out, err := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-o", file, "--", w, "spin", "0.2").CombinedOutput(); err != nil {
		t.Errorf("perf record: %v\n%s", err, out)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	out, err := exec.Command("perf", "script", "-i", file, "-F", "pid,time", "--show-mmap-events").Output()
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(out), filepath.Base(w)) {
		t.Errorf("perf has not seen the program's mapping:\n%.2000s", out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "PERF_RECORD_MMAP2") && strings.Contains(line, "<") {
			t.Errorf("a build ID in a record that perf did not ask for one in: %s", line)
		}
	}
	note, err := exec.Command("readelf", "-n", w).Output()
	if err != nil {
		t.Fatal(err)
	}
	if id := ids[w]; id == "" || !strings.Contains(string(note), id) {
		t.Errorf("%s: build ID %q in our records, in the file\n%s", w, id, note)
	}
}

// fileTick is longer than a tick of the clock of file systems: without it, which of two events was first cannot be told.
const fileTick = 20 * time.Millisecond

// TestReplacedInPlace: a program that is replaced by what keeps its inode, as cp does, has its own build ID from then on; and what was known of it
// still counts where neither the process nor the file is there any more.
func TestReplacedInPlace(t *testing.T) {
	oracle.Need(t, "cc")
	dir := t.TempDir()
	path := filepath.Join(dir, "server")
	var ids buildIDs
	identify := func(rec source.Record) string {
		rec = identified(t, &ids, rec, monotonic())
		return hex.EncodeToString(rec.BuildID)
	}
	var last source.Record
	was := ""
	for _, id := range []string{"00112233445566778899aabbccddeeff00112233", "ffeeddccbbaa99887766554433221100ffeeddcc"} {
		made := filepath.Join(dir, "made")
		cc := exec.Command("cc", "-shared", "-nostdlib", "-Wl,--build-id=0x"+id, "-o", made, "-x", "c", "-")
		cc.Stdin = strings.NewReader("int f(void) { return 1; }")
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(made)
		if err == nil {
			err = os.WriteFile(path, b, 0o755) // in place
		}
		if err != nil {
			t.Fatal(err)
		}
		m := mapCode(t, path)
		last = mapped(&m)
		last.PID = int32(os.Getpid())
		if was = identify(last); was != id {
			t.Errorf("inode %d has build ID %s, want %s", m.Inode, was, id)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	last.PID = 1<<31 - 1 // nobody is
	time.Sleep(fileTick)
	if got := identify(last); got != was {
		t.Errorf("when nobody can be asked any more, it has build ID %q, want %q", got, was)
	}
}

// TestWrittenSince: of a process that has ended, the file at its path tells nothing if it was written after it was mapped; and what it is if it was
// not, however new it is.
func TestWrittenSince(t *testing.T) {
	oracle.Need(t, "cc")
	dir := t.TempDir()
	for _, id := range []string{"0x00112233445566778899aabbccddeeff00112233", "none"} {
		path := filepath.Join(dir, id)
		cc := exec.Command("cc", "-shared", "-nostdlib", "-Wl,--build-id="+id, "-o", path, "-x", "c", "-")
		cc.Stdin = strings.NewReader("int f(void) { return 1; }")
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		m := mapCode(t, path)
		rec := mapped(&m)
		rec.PID = 1<<31 - 1 // nobody is
		st := stampOf(os.Getpid(), &m)
		time.Sleep(fileTick)
		at := monotonic()
		identify := func() source.Record { return identified(t, new(buildIDs), rec, at) }
		if is := identify(); id == "none" && is.InodeGen != st.sum() || id != "none" && "0x"+hex.EncodeToString(is.BuildID) != id {
			t.Errorf("build ID %s: a file that is as it was when it was mapped has build ID %x and stamp %x, want stamp %x", id, is.BuildID, is.InodeGen, st.sum())
		}
		time.Sleep(fileTick)
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0x7f}, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if is := identify(); is.BuildID != nil || is.InodeGen != procfs.NoStamp {
			t.Errorf("build ID %s: a file that was written since has build ID %x and stamp %x", id, is.BuildID, is.InodeGen)
		}
		rec.PID = int32(os.Getpid()) // this process has it mapped still
		if is := identify(); is.InodeGen == procfs.NoStamp {
			t.Errorf("build ID %s: a file that is mapped cannot be told", id)
		}
	}
}

// identified returns a record as it is when it has been identified, with the time at which the kernel wrote it.
func identified(t *testing.T, ids *buildIDs, rec source.Record, at uint64) source.Record {
	t.Helper()
	dec := source.NewDecoder()
	dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagMmap2 | source.FlagSampleIDAll}, nil, "")
	rec.Time, rec.HasTime = at, true
	raw := dec.Append(nil, 0, &rec)
	ids.identify(raw, dec, &rec)
	if err := dec.Decode(raw, &rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// mapCode maps the first page of a file into this process as code, and returns what /proc says of it.
func mapCode(t *testing.T, path string) (m procfs.Mapping) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	list, err := procfs.Mappings(maps)
	for _, m := range list {
		if m.Lo == uint64(uintptr(unsafe.Pointer(&mem[0]))) {
			return m
		}
	}
	t.Fatalf("%s is mapped nowhere: %v", path, err)
	return m
}
