package jit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestLookup compares with a search through all entries: they overlap, and have times.
func TestLookup(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		m := &Map{}
		space, n := 1+rnd.Uint64N(200), rnd.IntN(60)
		for i := range n {
			name := fmt.Sprint("f", i)
			if rnd.IntN(5) == 0 {
				name = "" // gone
			}
			m.add(rnd.Uint64N(space), 1+rnd.Uint64N(40), rnd.Uint64N(20), []byte(name))
		}
		m.build()
		for addr := range space + 50 {
			for _, at := range []uint64{0, rnd.Uint64N(22), Always} {
				best := -1
				for i, e := range m.entries {
					if e.lo <= addr && addr < e.hi && e.time <= at && (best < 0 || e.time >= m.entries[best].time) {
						best = i
					}
				}
				want := ""
				if best >= 0 && m.entries[best].size > 0 {
					want = fmt.Sprint("f", best)
				}
				if got, ok := m.Lookup(arch.Addr(addr), at); got.Name != want || ok != (want != "") {
					t.Fatalf("Lookup(%#x, %d) = %+v, %v, want %q\n%+v", addr, at, got, ok, want, m.entries)
				}
			}
		}
	}
}

func TestReadMap(t *testing.T) {
	m, err := ReadMap(strings.NewReader("1000 10 one\n0x2000 0x10 LazyCompile:*two /a b.js:1:2\n\nnonsense\n3000 zz x\n4000 0 empty\nffffffffffffffff 10 wraps\n" +
		"1008 4 later\n5000 10 " + strings.Repeat("x", 1<<17) + "\n6000 10 after\n7000 10 unfinished"))
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[arch.Addr]string{
		0xfff: "", 0x1000: "one", 0x1007: "one", 0x1008: "later", 0x100c: "one", 0x1010: "", 0x200f: "LazyCompile:*two /a b.js:1:2",
		0x3000: "", 0x4000: "", 0x6000: "after", 0x7000: "",
	} {
		if f, ok := m.Lookup(addr, Always); f.Name != want || ok != (want != "") {
			t.Errorf("%#x is %+v, want %q", addr, f, want)
		}
	}
	if f, _ := m.Lookup(0x5000, Always); len(f.Name) != maxName {
		t.Errorf("a long name has %d bytes", len(f.Name))
	}
}

// A writer makes dumps.
type writer struct {
	bytes.Buffer
	order binary.AppendByteOrder
}

func newWriter(order binary.AppendByteOrder) *writer {
	w := &writer{order: order}
	var b []byte
	for _, v := range []uint32{dumpMagic, 1, dumpHead + 8, 62, 0, 42} {
		b = order.AppendUint32(b, v)
	}
	b = order.AppendUint64(order.AppendUint64(b, 1), 0)
	w.Write(append(b, "reserved"...))
	return w
}

func (w *writer) record(id uint32, time uint64, parts ...any) {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case uint32:
			b = w.order.AppendUint32(b, p)
		case int:
			b = w.order.AppendUint64(b, uint64(p))
		case string:
			b = append(append(b, p...), 0)
		case []byte:
			b = append(b, p...)
		}
	}
	h := w.order.AppendUint32(w.order.AppendUint32(nil, id), uint32(recordHead+len(b)))
	w.Write(append(w.order.AppendUint64(h, time), b...))
}

func (w *writer) load(time uint64, addr, size, index int, name string) {
	w.record(codeLoad, time, uint32(42), uint32(42), addr, addr, size, index, name, bytes.Repeat([]byte{0xcc}, size))
}

// sample has every kind of record.
func sample(order binary.AppendByteOrder) *writer {
	w := newWriter(order)
	w.load(10, 0x1000, 0x100, 1, "one")
	w.record(codeDebugInfo, 20, 0x2000, 3, 0x2000, uint32(7), uint32(0), "a.js", 0x2020, uint32(8), uint32(0), "\xff", 0x2010, uint32(9), uint32(0), "b.js")
	w.record(codeUnwindingInfo, 20, 12, 4, 12, []byte("rows.ofTWOhdr."[:8]), []byte("hdr."))
	w.load(21, 0x2000, 0x30, 2, "two")
	w.record(codeMove, 30, uint32(42), uint32(42), 0x3000, 0x2000, 0x3000, 0x30, 2)
	w.record(77, 31, 1, 2, 3)
	w.record(codeUnwindingInfo, 39, 8, 8, 0, make([]byte, 8)) // only an index
	w.load(40, 0x1000, 0x80, 3, "three")
	w.record(codeClose, 50)
	w.load(60, 0x9000, 1, 9, "after the end")
	return w
}

func TestReadDump(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		w := sample(order)
		m, err := ReadDump(&w.Buffer)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			addr arch.Addr
			time uint64
			want Func
		}{
			{0x1000, 9, Func{}},
			{0x1000, 10, Func{Name: "one", Start: 0x1000, Size: 0x100}},
			{0x1000, Always, Func{Name: "three", Start: 0x1000, Size: 0x80}},
			{0x1080, Always, Func{Name: "one", Start: 0x1000, Size: 0x100}},
			{0x2000, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "a.js", Line: 7}},
			{0x201f, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "b.js", Line: 9}},
			{0x2020, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "a.js", Line: 8}},
			{0x2020, Always, Func{}},
			{0x3020, 29, Func{}},
			{0x3020, Always, Func{Name: "two", Start: 0x3000, Size: 0x30, File: "a.js", Line: 8}},
			{0x9000, Always, Func{}},
		} {
			if got, ok := m.Lookup(c.addr, c.time); got != c.want || ok != (c.want.Name != "") {
				t.Errorf("Lookup(%#x, %d) = %+v, want %+v", c.addr, c.time, got, c.want)
			}
		}
	}
}

// TestUnwinding: unwind information is that of the next function, and moves with it.
func TestUnwinding(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		w := sample(order)
		for i := range 4 { // the same bytes of functions of the same size are kept once
			w.record(codeUnwindingInfo, 70, 8, 0, 8, []byte("the same"))
			w.load(uint64(71+i), 0x10000+0x100*i, 0x20+0x10*(i/2), 10+i, "same")
		}
		end := func(id uint32) []byte { return order.AppendUint32(order.AppendUint32(nil, id), recordHead) }
		b := bytes.Replace(w.Bytes(), end(codeClose), end(99), 1) // what follows is read
		m, err := ReadDump(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		big := order == binary.BigEndian
		two := Unwinding{Start: 0x2000, Size: 0x30, EHFrame: "rows.ofT", Big: big}
		moved := two
		moved.Start = 0x3000
		for _, c := range []struct {
			addr arch.Addr
			time uint64
			want Unwinding
		}{
			{0x1000, 10, Unwinding{}}, {0x2000, 20, Unwinding{}}, {0x2000, 21, two}, {0x202f, 29, two}, {0x2030, 29, Unwinding{}},
			{0x2000, 30, Unwinding{}}, {0x3000, 29, Unwinding{}}, {0x3004, 30, moved}, {0x1000, Always, Unwinding{}},
			{0x10000, Always, Unwinding{0x10000, 0x20, "the same", big}}, {0x10300, Always, Unwinding{0x10300, 0x30, "the same", big}},
		} {
			if got, ok := m.unwinding(c.addr, c.time); got != c.want || ok != (c.want.EHFrame != "") {
				t.Errorf("unwinding(%#x, %d) = %+v, want %+v", c.addr, c.time, got, c.want)
			}
		}
		if len(m.unwinds) != 3 {
			t.Errorf("%d records are kept, want 3", len(m.unwinds))
		}
		m.otherClock = true
		if got, _ := m.unwinding(0x3000, 5); got != moved {
			t.Errorf("with a clock of its own: %+v", got)
		}
	}
}

// TestAlike: code in the process's memory that has no record yet has the unwind information of equal code, if this code always has the same.
func TestAlike(t *testing.T) {
	twice, once, other, short := []byte("code that is written twice"), []byte("code that is written once"), []byte("with another record"), []byte("short!!")
	w := newWriter(binary.LittleEndian)
	n := 0
	load := func(eh string, code []byte) {
		n++
		w.record(codeUnwindingInfo, 1, len(eh), 0, len(eh), []byte(eh))
		w.record(codeLoad, 1, uint32(42), uint32(42), 0x1000*n, 0x1000*n, len(code), n, "f", code)
	}
	load("eh of it", twice)
	load("eh of once", once)
	load("eh of it", twice)
	load("eh of one", other)
	load("eh of two", other)
	load("eh of it", short)
	load("eh of it", short)
	load("eh of long", bytes.Repeat([]byte{0xcc}, maxTemplate+1))
	load("eh of long", bytes.Repeat([]byte{0xcc}, maxTemplate+1))
	path := filepath.Join(t.TempDir(), "jit-42.dump")
	if err := os.WriteFile(path, w.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// A page without neighbours.
	const page = 1 << 16
	mem, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	base := arch.Addr(uintptr(unsafe.Pointer(&mem[page])))
	text := mem[page : 2*page]
	ends := page - len(twice)
	for at, code := range map[int][]byte{0: twice, 100: twice, 200: once, 300: other, 400: short, 500: twice[:len(twice)-1], 600: bytes.Repeat([]byte{0xcc}, maxTemplate+1), ends: twice} {
		copy(text[at:], code)
	}
	for _, x := range [][]byte{mem[:page], mem[2*page:]} {
		if err := syscall.Mprotect(x, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	defer syscall.Mprotect(mem, syscall.PROT_READ)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, mapped := range []bool{false, true} {
		if mapped {
			b, err := syscall.Mmap(int(f.Fd()), 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Munmap(b)
		}
		c := OpenUnwind(Seen(os.Getpid()), []string{path}, nil)
		for _, x := range []struct{ at, start int }{
			{0, 0}, {len(twice) - 1, 0}, {len(twice), -1}, {99, -1}, {100, 100}, {113, 100}, {100 + len(twice), -1}, {210, -1}, {310, -1}, {403, -1}, {510, -1}, {700, -1},
			{ends - 1, -1}, {ends, ends}, {page - 1, ends}, {page, -1},
		} {
			want := Unwinding{}
			if mapped && x.start >= 0 {
				want = Unwinding{Start: base + arch.Addr(x.start), Size: uint64(len(twice)), EHFrame: "eh of it"}
			}
			for range 2 {
				if u, ok := c.Unwinding(base+arch.Addr(x.at), 5); u != want || ok != (want.Size > 0) {
					t.Errorf("mapped: %v: Unwinding(+%d) = %+v, %v; want %+v", mapped, x.at, u, ok, want)
				}
			}
		}
		c.Close()
	}
}

// TestEnded: when a process has ended, its dump is read at once, whenever that was done last.
func TestEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "jit-42.dump")
	if err := os.WriteFile(path, newWriter(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := OpenUnwind(Seen(cmd.Process.Pid), []string{path}, nil)
	defer c.Close()
	if u, ok := c.Unwinding(0x2000, 25); ok {
		t.Errorf("%s has no records yet, and Unwinding(0x2000, 25) = %+v", path, u)
	}
	c.next.Store(1 << 62)
	if err := os.WriteFile(path, sample(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c.alike.next = 0
	if u, ok := c.Unwinding(0x2000, 25); ok {
		t.Errorf("%s of a running process is read too soon: Unwinding(0x2000, 25) = %+v", path, u)
	}
	cmd.Process.Kill()
	cmd.Wait()
	c.alike.next = 0
	if u, ok := c.Unwinding(0x2000, 25); !ok {
		t.Errorf("%s is not read when process %d has ended: Unwinding(0x2000, 25) = %+v, false", path, cmd.Process.Pid, u)
	}
}

// TestDamaged: dumps that end anywhere, and in which any byte is wrong.
func TestDamaged(t *testing.T) {
	whole := sample(binary.LittleEndian).Bytes()
	for n := range whole {
		m, _ := ReadDump(bytes.NewReader(whole[:n]))
		m.Lookup(0x1000, Always)
		m.unwinding(0x2000, 25)
		b := bytes.Clone(whole)
		b[n] ^= 0xff
		m, _ = ReadDump(bytes.NewReader(b))
		m.Lookup(0x1000, Always)
		m.unwinding(0x2000, 25)
	}
	if m, err := ReadDump(strings.NewReader("<html>")); err == nil {
		t.Errorf("ReadDump takes <html> for a dump, with %d entries; want an error", len(m.entries))
	}
}

// TestCode: a process's files as they grow, and files that are not to be read.
func TestCode(t *testing.T) {
	dir := t.TempDir()
	dump, text := filepath.Join(dir, "jit-1.dump"), filepath.Join(dir, "perf-1.map")
	c := &Code{process: Seen(os.Getpid()), files: []file{{path: dump, dump: true}, {path: text}}}
	addrs := []arch.Addr{0x1000, 0x8000}
	names := func() [2]string {
		c.Again()
		f := c.Lookup(addrs, Always)
		return [2]string{f[0].Name, f[1].Name}
	}
	if got := names(); got != [2]string{} || c.Note() != "" {
		t.Errorf("without files: %q, %s", got, c.Note())
	}
	os.WriteFile(text, []byte("1000 10 map\n8000 10 also"), 0o600)
	if got := names(); got != [2]string{"map", ""} {
		t.Errorf("a line without an end: %q", got)
	}
	os.WriteFile(text, []byte("1000 10 map\n8000 10 also\n"), 0o600)
	if got := names(); got != [2]string{"map", "also"} {
		t.Errorf("a map that grew: %q", got)
	}
	c.files[1] = file{path: text}
	os.WriteFile(dump, sample(binary.LittleEndian).Bytes()[:700], 0o600)
	if got := names(); got != [2]string{"one", "also"} || c.Note() != "" {
		t.Errorf("a dump, not whole, and a map: %q, %s", got, c.Note())
	}
	os.Remove(text)
	os.Mkdir(text, 0o700)
	c.files[1] = file{path: text}
	if got := names(); got != [2]string{"one", ""} || !strings.Contains(c.Note(), "regular") {
		t.Errorf("a directory: %q, %s", got, c.Note())
	}
	for path, want := range map[string]bool{"/tmp/jit-12.dump": true, "/tmp/jit-x.dump": false, "/tmp/jit-12.dump.so": false} {
		if got := IsDump(path); got != want {
			t.Errorf("IsDump(%q) = %v", path, got)
		}
	}
}

// TestHeld: readers for unwinding keep no names and no lines. Those of a user hold no more than they leave to others, say so, and others lose nothing.
func TestHeld(t *testing.T) {
	oracle.Long(t)
	w := newWriter(binary.LittleEndian)
	const n = maxHeld / entryBytes / 5
	for i := range n {
		w.record(codeUnwindingInfo, 1, 8, 0, 8, []byte("the same"))
		w.load(2, 0x10000+16*i, 1, i, "name")
	}
	path := filepath.Join(t.TempDir(), "jit-1.dump")
	if err := os.WriteFile(path, w.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []*Code
	read, refused := 0, 0
	for range 6 {
		var errs []error
		c := OpenUnwind(Seen(os.Getpid()), []string{path}, func(err error) { errs = append(errs, err) })
		all = append(all, c)
		if u, ok := c.Unwinding(0x10000, Always); ok {
			if read++; u.EHFrame != "the same" || len(c.files) != 1 || len(c.files[0].m.names) != 0 || len(errs) > 0 {
				t.Errorf("%+v, and %d bytes of names of %d files, %v", u, len(c.files[0].m.names), len(c.files), errs)
			}
		} else if refused++; len(errs) != 1 || !errors.Is(errs[0], errHeld) || !strings.Contains(c.Note(), "128 MiB") {
			t.Errorf("a dump is not read, and the note is %q: %v", c.Note(), errs)
		}
	}
	if held.all == 0 || read == 0 || refused == 0 || held.all > maxHeld/2 {
		t.Errorf("%d are read and %d are not, with %d bytes held", read, refused, held.all)
	}
	for user := range int64(6) { // others find room
		c := &Charge{user: 1000 + user}
		defer c.Release()
		if !c.Take(1 << 20) {
			t.Errorf("user %d has no room for a megabyte behind %d bytes of others", c.user, held.all)
		}
		for c.Take(1 << 20) {
		}
		if held.all > maxHeld {
			t.Errorf("%d bytes held", held.all)
		}
		c.Release()
		c.Take(1 << 20)
	}
	for _, c := range all {
		c.Close()
	}
	if held.all != 6<<20 || len(held.users) != 6 {
		t.Errorf("%d bytes of %d users are held after all are closed", held.all, len(held.users))
	}
	w = sample(binary.LittleEndian)
	c := &Charge{}
	defer c.Release()
	if m, err := readDump(&w.Buffer, 42, c); err != nil || len(m.lines) != 0 || len(m.files) != 0 {
		t.Errorf("%v; %d lines", err, len(m.lines))
	}
}

// TestNothingTaken: what took nothing gives nothing back, also before anything was taken.
func TestNothingTaken(t *testing.T) {
	held.Lock()
	users := held.users
	held.users = nil
	held.Unlock()
	(&Charge{user: 1}).Release()
	held.Lock()
	held.users = users
	held.Unlock()
}

// TestMisses: while a miss reads files, those who find what they ask for do not wait.
func TestMisses(t *testing.T) {
	c := OpenUnwind(Seen(os.Getpid()), []string{filepath.Join(t.TempDir(), "jit-1.dump")}, nil)
	defer c.Close()
	if err := os.WriteFile(c.files[0].path, sample(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Unwinding(0x2000, 25); !ok {
		t.Fatalf("Unwinding(0x2000, 25) finds nothing in %s, written after OpenUnwind", c.files[0].path)
	}
	c.Again()
	c.reading.Lock() // as a miss that reads a large file
	if u, ok := c.Unwinding(0x2000, 25); !ok {
		t.Errorf("%s is forgotten while it is read again: Unwinding(0x2000, 25) = %+v, false", c.files[0].path, u)
	}
	c.next.Store(1 << 62)
	if u, ok := c.Unwinding(0x9000, 25); ok {
		t.Errorf("Unwinding(0x9000, 25) = %+v, true; want false: no record has this address", u)
	}
	c.reading.Unlock()
}

// TestProcesses: of many processes those stay known that are in use, and none is read again for the others.
func TestProcesses(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "jit-1.dump")
	if err := os.WriteFile(dump, sample(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	p := NewUnwindProcesses(func(err error) { t.Error(err) })
	own := int32(os.Getpid())
	p.Mapped(own, dump)
	p.Mapped(own, "/lib/libc.so.6")
	code := p.Code(own)
	for i := range int32(maxProcesses + 100) {
		pid := int32(1<<22 + 1 + i) // above the greatest of Linux
		if p.Mapped(pid, dump); p.Code(pid) == nil {
			t.Fatalf("the dump of process %d is not known", i)
		}
		if p.Code(own) != code {
			t.Fatalf("after %d others, a process in use is opened again", i)
		}
	}
	if len(p.procs) != maxProcesses || p.Has(1<<22+1) {
		t.Errorf("%d processes are known", len(p.procs))
	}
	if p.Code(1<<22+1) != nil || p.Code(1) != nil {
		t.Errorf("processes without a dump have code: %d %v, 1 %v; want false, false", 1<<22+1, p.Code(1<<22+1) != nil, p.Code(1) != nil)
	}
	if u, ok := code.Unwinding(0x2000, 25); !ok {
		t.Errorf("Unwinding(0x2000, 25) = %+v, false, of %s, in use beside %d other processes; want unwind information", u, dump, maxProcesses+100)
	}
	code.Close()
}

// TestGone: of a process that has gone, the user counts who was seen, or else the process that the dump says.
func TestGone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test lacks the right to start a process as another user: run it as root")
	}
	dir, err := os.MkdirTemp("", "gone") // others may search it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "jit-42.dump")
	if err := os.WriteFile(path, sample(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	const none = 1<<22 + 1 // no process of Linux
	for _, x := range []struct {
		p     Process
		owner int
		want  string // what is wrong
	}{
		{Process{pid: 42 + none, inner: 42 + none}, 0, "it is of process 42"},
		{Process{pid: none, seen: true}, 0, ""},
		{Process{pid: none, seen: true, uid: 1234, gid: 1234}, 0, "1234 may not read it"},
		{Process{pid: none, seen: true, uid: 1234, gid: 1234}, 1234, ""},
		{Process{pid: none, seen: true, uid: 1235, gid: 1235}, 1234, "it belongs to user 1234"},
		{Process{pid: none}, 1234, "it belongs to user 1234"},
	} {
		if err := os.Chown(path, x.owner, x.owner); err != nil {
			t.Fatal(err)
		}
		c := OpenUnwind(x.p, []string{path}, nil)
		if _, ok := c.Unwinding(0x2000, 25); ok != (x.want == "") || !strings.Contains(c.Note(), x.want) {
			t.Errorf("%+v, dump of %d: %v, %q; want %q", x.p, x.owner, ok, c.Note(), x.want)
		}
		c.Close()
	}
}

// TestLargeRecord: a record that no maker writes is not kept, as each frame would hash it.
func TestLargeRecord(t *testing.T) {
	for _, n := range []int{1 << 10, 1 << 13} {
		w := newWriter(binary.LittleEndian)
		w.record(codeUnwindingInfo, 1, n, 0, n, make([]byte, n))
		w.load(2, 0x1000, 1, 1, "name")
		m, err := ReadDump(&w.Buffer)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := m.unwinding(0x1000, Always); ok != (n < maxUnwind) {
			t.Errorf("a record of %d bytes is kept: %v", n, ok)
		}
	}
}

// TestOthersNamespace: a mount namespace of its own shows a process no dump that its user may not read.
func TestOthersNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test lacks the right to start a process as another user: run it as root")
	}
	cmd := exec.Command("cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Cloneflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, os.ErrPermission) {
		t.Skip("this test lacks the right to make mount namespaces: run it with CAP_SYS_ADMIN")
	} else if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	path := filepath.Join(t.TempDir(), "jit-1.dump")
	if err := os.WriteFile(path, sample(binary.LittleEndian).Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c := OpenUnwind(Seen(cmd.Process.Pid), []string{path}, nil)
	defer c.Close()
	if _, ok := c.Unwinding(0x2000, 25); ok || !strings.Contains(c.Note(), "may not read it") {
		t.Errorf("root's private dump is read for user 65534: %v, %q", ok, c.Note())
	}
}

func FuzzReadMap(f *testing.F) {
	f.Add([]byte("1000 10 one\n1008 4 two\n"), uint64(0x1008))
	f.Fuzz(func(t *testing.T, b []byte, addr uint64) {
		m, _ := ReadMap(bytes.NewReader(b))
		if f, ok := m.Lookup(arch.Addr(addr), Always); ok && addr-uint64(f.Start) >= f.Size {
			t.Errorf("%#x is in %+v", addr, f)
		}
	})
}

func FuzzReadDump(f *testing.F) {
	f.Add(sample(binary.LittleEndian).Bytes(), uint64(0x1000), uint64(Always))
	f.Add(sample(binary.BigEndian).Bytes(), uint64(0x3020), uint64(25))
	f.Fuzz(func(t *testing.T, b []byte, addr, time uint64) {
		m, _ := ReadDump(bytes.NewReader(b))
		if f, ok := m.Lookup(arch.Addr(addr), time); ok && addr-uint64(f.Start) >= f.Size {
			t.Errorf("%#x is in %+v", addr, f)
		}
		if u, ok := m.unwinding(arch.Addr(addr), time); ok && (addr-uint64(u.Start) >= u.Size || len(u.EHFrame) > len(b)) {
			t.Errorf("%#x is in %+v", addr, u)
		}
	})
}

// BenchmarkReadMap reads what a large program writes: a hundred thousand functions.
func BenchmarkReadMap(b *testing.B) {
	var text bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintf(&text, "%x %x LazyCompile:*function%d /some/where/file%d.js:%d:1\n", 0x10000+i*0x100, 0x90, i, i%100, i)
	}
	for b.Loop() {
		ReadMap(bytes.NewReader(text.Bytes()))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/function")
}
