package oracle

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Snapshot is a thread of an x86-64 process at one moment.
type Snapshot struct {
	Space uint32     // as given to Walker.Map
	Regs  [17]uint64 // by DWARF number; 7 is rsp, 16 is rip
	Base  uint64     // address of Stack[0]
	Stack []byte
}

// A Map is an executable mapping of a file.
type Map struct {
	Lo, Hi, Off uint64
	Path        string
}

// A Chain is what a walker makes of a snapshot. The addresses are exact in frame 0 and wherever Exact
// says so, else return addresses.
type Chain struct {
	PC    []uint64
	Exact []bool
	Stop  string // the walker's own words; empty where it saw nothing wrong
}

// Addrs returns the addresses as perf prints them: return addresses minus one.
func (c *Chain) Addrs() []uint64 {
	out := make([]uint64, len(c.PC))
	for i, pc := range c.PC {
		out[i] = pc
		if !c.Exact[i] {
			out[i]--
		}
	}
	return out
}

// A Walker is somebody else's unwinder, running as a process that reads snapshots (c/snap.h has the
// stream). It is for one goroutine at a time. Its errors end it.
type Walker struct {
	Name string

	cmd    *exec.Cmd
	in     *bufio.Writer
	out    *bufio.Reader
	stderr bytes.Buffer
}

// The kinds of records in the stream.
const (
	snapSpace = 1 + iota
	snapSample
	snapWalk
	snapTime
	snapFresh
)

// Dwfl starts elfutils' libdwfl.
func Dwfl(t testing.TB) *Walker { return start(t, "elfutils", "dwfl") }

// Libunwind starts libunwind with global caching, as stock perf uses it.
func Libunwind(t testing.TB) *Walker { return start(t, "libunwind", "libunwind", "global") }

// LibunwindUncached starts libunwind without its cache.
func LibunwindUncached(t testing.TB) *Walker {
	return start(t, "libunwind uncached", "libunwind", "none")
}

// LibunwindTuned starts libunwind as fast as it gets unchanged: a cache of 32,768 entries instead of 128,
// and sigprocmask for nothing.
func LibunwindTuned(t testing.TB) *Walker {
	return start(t, "libunwind tuned", "libunwind", "global", "cache=32768", "nosigmask")
}

// EhElf starts a walk through eh_elf files of memory kind slice, by a call a frame as the research report has it. list is
// the path of a file with a line for each module: its path, a tab, and the path of its eh_elf file.
func EhElf(t testing.TB, name, list string) *Walker { return start(t, name, "ehelf", list) }

func start(t testing.TB, name, prog string, args ...string) *Walker {
	t.Helper()
	w := &Walker{Name: name, cmd: exec.Command(Program(t, prog), args...)}
	in, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.in, w.out = bufio.NewWriterSize(in, 1<<20), bufio.NewReaderSize(out, 1<<20)
	w.cmd.Stderr = &w.stderr
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		w.cmd.Wait()
	})
	return w
}

func (w *Walker) failed(err error) error {
	return fmt.Errorf("%s: %w\n%s", w.Name, err, bytes.TrimSpace(w.stderr.Bytes()))
}

// Map adds mappings to a space. It must not overlap what is there.
func (w *Walker) Map(space uint32, maps ...Map) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(maps)))
	for _, m := range maps {
		path := m.Path
		if path == "[vdso]" {
			path = VDSO()
		}
		for _, v := range [...]uint64{m.Lo, m.Hi, m.Off, uint64(len(path))} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		b = append(b, path...)
		b = append(b, make([]byte, -len(path)&7)...)
	}
	return w.record(snapSpace, space, b)
}

func (w *Walker) record(kind, id uint32, payload ...[]byte) error {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	var h [16]byte
	binary.LittleEndian.PutUint32(h[:], kind)
	binary.LittleEndian.PutUint32(h[4:], id)
	binary.LittleEndian.PutUint64(h[8:], uint64(n+-n&7))
	if _, err := w.in.Write(h[:]); err != nil {
		return w.failed(err)
	}
	for _, p := range append(payload, make([]byte, -n&7)) {
		if _, err := w.in.Write(p); err != nil {
			return w.failed(err)
		}
	}
	return nil
}

func (w *Walker) send(snaps []Snapshot) error {
	var b [19 * 8]byte
	for i := range snaps {
		s := &snaps[i]
		for j, v := range s.Regs {
			binary.LittleEndian.PutUint64(b[8*j:], v)
		}
		binary.LittleEndian.PutUint64(b[17*8:], s.Base)
		binary.LittleEndian.PutUint64(b[18*8:], uint64(len(s.Stack)))
		if err := w.record(snapSample, s.Space, b[:], s.Stack); err != nil {
			return err
		}
	}
	return nil
}

// Walk returns the chain of each snapshot.
func (w *Walker) Walk(snaps []Snapshot) ([]Chain, error) {
	if err := w.send(snaps); err != nil {
		return nil, err
	}
	if err := w.record(snapWalk, 0); err != nil {
		return nil, err
	}
	if err := w.in.Flush(); err != nil {
		return nil, w.failed(err)
	}
	out := make([]Chain, len(snaps))
	var buf []byte
	for i := range out {
		var h [8]byte
		if _, err := io.ReadFull(w.out, h[:]); err != nil {
			return nil, w.failed(err)
		}
		n, stop := int(binary.LittleEndian.Uint32(h[:])), int(binary.LittleEndian.Uint32(h[4:]))
		size := 8*n + n + -n&7 + stop + -stop&7
		if cap(buf) < size {
			buf = make([]byte, size)
		}
		buf = buf[:size]
		if _, err := io.ReadFull(w.out, buf); err != nil {
			return nil, w.failed(err)
		}
		c := Chain{PC: make([]uint64, n), Exact: make([]bool, n)}
		for j := range n {
			c.PC[j] = binary.LittleEndian.Uint64(buf[8*j:])
			c.Exact[j] = buf[8*n+j] != 0
		}
		c.Stop = string(buf[size-stop-(-stop&7):][:stop])
		out[i] = c
	}
	return out, nil
}

// Time walks the snapshots passes times over. It returns the frames of one pass and the time of each,
// walking alone.
func (w *Walker) Time(snaps []Snapshot, passes int) (frames int, took []time.Duration, err error) {
	return w.time(snapTime, snaps, passes)
}

// TimeFresh is Time with stacks that are in the processor's caches when they are walked, as they are where a profiler has
// just read them: each eight are read, untimed, before.
func (w *Walker) TimeFresh(snaps []Snapshot, passes int) (frames int, took []time.Duration, err error) {
	return w.time(snapFresh, snaps, passes)
}

func (w *Walker) time(kind uint32, snaps []Snapshot, passes int) (frames int, took []time.Duration, err error) {
	if err := w.send(snaps); err != nil {
		return 0, nil, err
	}
	if err := w.record(kind, uint32(passes)); err != nil {
		return 0, nil, err
	}
	if err := w.in.Flush(); err != nil {
		return 0, nil, w.failed(err)
	}
	b := make([]byte, 8*(passes+1))
	if _, err := io.ReadFull(w.out, b); err != nil {
		return 0, nil, w.failed(err)
	}
	for i := range passes {
		took = append(took, time.Duration(binary.LittleEndian.Uint64(b[8*(i+1):])))
	}
	return int(binary.LittleEndian.Uint64(b)), took, nil
}

// VDSO returns a file with the content of this process's vDSO, which is that of every process on this
// kernel, or "[vdso]" where there is none.
var VDSO = sync.OnceValue(func() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "[vdso]"
	}
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != "[vdso]" {
			continue
		}
		a, b, _ := strings.Cut(f[0], "-")
		lo, err1 := strconv.ParseUint(a, 16, 64)
		hi, err2 := strconv.ParseUint(b, 16, 64)
		mem, err3 := os.Open("/proc/self/mem")
		if err1 != nil || err2 != nil || err3 != nil || hi-lo > 1<<20 {
			break
		}
		defer mem.Close()
		image := make([]byte, hi-lo)
		dir, err := sourceDir()
		if _, err2 := mem.ReadAt(image, int64(lo)); err != nil || err2 != nil {
			break
		}
		path := fmt.Sprintf("%s/vdso.%d", dir, os.Getpid())
		if os.WriteFile(path, image, 0o600) != nil || os.Rename(path, dir+"/vdso") != nil {
			break
		}
		return dir + "/vdso"
	}
	return "[vdso]"
})
