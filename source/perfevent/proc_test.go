package perfevent

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

func TestParseMapping(t *testing.T) {
	for _, c := range []struct {
		line string
		want source.Record
	}{
		{"55d0c000-55d0d000 r-xp 00001000 fe:01 1234    /usr/bin/a b (deleted)",
			source.Record{Addr: 0x55d0c000, Len: 0x1000, Pgoff: 0x1000, Maj: 0xfe, Min: 1, Inode: 1234, Prot: 5, MapFlags: 2, Filename: []byte("/usr/bin/a b (deleted)")}},
		{"7f00-7f10 rwxs 00000000 00:00 0 ", source.Record{Addr: 0x7f00, Len: 0x10, Prot: 7, MapFlags: 1, Filename: []byte("//anon")}},
		{"7f00-7f10 --xp 00000000 00:00 0 [anon:x y]", source.Record{Addr: 0x7f00, Len: 0x10, Prot: 4, MapFlags: 2, Filename: []byte("//anon")}},
		{"7f00-7f10 r-xp 00000000 00:00 0      [vdso]", source.Record{Addr: 0x7f00, Len: 0x10, Prot: 5, MapFlags: 2, Filename: []byte("[vdso]")}},
		{`7f00-7f10 r-xp 00000000 00:00 9 /a\012b`, source.Record{Addr: 0x7f00, Len: 0x10, Inode: 9, Prot: 5, MapFlags: 2, Filename: []byte("/a\nb")}},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]", source.Record{Addr: 0xffffffffff600000, Len: 0x1000, Prot: 4, MapFlags: 2, Filename: []byte("[vsyscall]")}},
	} {
		c.want.Type, c.want.Misc = source.RecordMmap2, source.MiscUser
		m, ok := procfs.ParseMapping([]byte(c.line))
		got := mapped(&m)
		if !ok || got.Addr != c.want.Addr || got.Len != c.want.Len || got.Pgoff != c.want.Pgoff || got.Maj != c.want.Maj || got.Min != c.want.Min ||
			got.Inode != c.want.Inode || got.Prot != c.want.Prot || got.MapFlags != c.want.MapFlags || !bytes.Equal(got.Filename, c.want.Filename) {
			t.Errorf("%q\n got %+v\nwant %+v", c.line, got, c.want)
		}
	}
	for _, s := range []string{"", "a b c d e f", "7f10-7f00 r-xp 0 0:0 0", "7f00 r-xp 0 0:0 0", "7f00-7f10 r-x 0 0:0 0"} {
		if got, ok := procfs.ParseMapping([]byte(s)); ok {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

// TestSynthesised compares what is told of this process with what the kernel reports of the same files.
func TestSynthesised(t *testing.T) {
	oracle.Need(t, "readelf")
	pid, finish := spawn(t, "wait", "0.2")
	r := open(t, Options{PIDs: []int{pid}})
	go finish()
	found := map[string]bool{}
	kernel := 0 // none where this user may not see its addresses
	var rec source.Record
	for len(r.synth) > 0 {
		raw, buf, err := r.Next()
		if err != nil || buf != nil {
			t.Fatalf("Next of a record without a sample = buffer %v, %v, want none", buf, err)
		}
		if err := r.dec.Decode(raw, &rec); err != nil || rec.Time != 0 || !rec.HasTime {
			t.Errorf("%v: %+v", err, rec)
		}
		if rec.PID == -1 && rec.Type == source.RecordMmap && rec.Misc == source.MiscKernel {
			kernel++
			if rec.Addr>>63 == 0 || rec.Pgoff != rec.Addr || string(rec.Filename) != "[kernel.kallsyms]_text" {
				t.Errorf("%+v", rec)
			}
			continue
		}
		if rec.Type == source.RecordKsymbol {
			continue
		}
		if rec.PID != int32(pid) {
			t.Errorf("%+v", rec)
		}
		if rec.Type == source.RecordComm && string(rec.Comm) != "work" {
			t.Errorf("comm %q", rec.Comm)
		}
		if rec.Type != source.RecordMmap2 {
			continue
		}
		name := string(rec.Filename)
		found[filepath.Base(name)] = true
		if !filepath.IsAbs(name) {
			continue
		}
		out, err := exec.Command("readelf", "-n", name).Output()
		if err != nil {
			t.Error(err)
		}
		_, want, _ := strings.Cut(string(out), "Build ID: ")
		want, _, _ = strings.Cut(want, "\n")
		fromFile, _ := procfs.FileBuildID(name, 0)
		if got := hex.EncodeToString(rec.BuildID); got != want || hex.EncodeToString(fromFile) != want {
			t.Errorf("%s: build ID %s, in the file %x, want %s", name, got, fromFile, want)
		}
	}
	if !found["work"] || !found["libc.so.6"] || !found["[vdso]"] {
		t.Errorf("mappings of %v", found)
	}
	if kernel > 1 {
		t.Errorf("%d mappings of the kernel", kernel)
	}
}

// TestSynthesisedZombie holds that a process which has ended, and which nobody has waited for, is not told of: that it ended has been said.
func TestSynthesisedZombie(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	stat := fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid)
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if b, _ := os.ReadFile(stat); procfs.State(b) == 'Z' {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("true, process %d, is no zombie after a minute: its state is %q", cmd.Process.Pid, procfs.Status(cmd.Process.Pid, "State"))
		}
	}
	s := synth{dec: source.NewDecoder(), ids: &buildIDs{}, owned: map[uint32]int{}}
	s.dec.AddAttr(&source.Attr{}, nil, "")
	if s.process(cmd.Process.Pid, nil); len(s.b) != 0 {
		t.Errorf("%d bytes of records", len(s.b))
	}
	if s.process(os.Getpid(), nil); len(s.b) == 0 {
		tids, err := procfs.Threads(os.Getpid())
		t.Errorf("process %d, this one, has no records; its threads are %v (%v)", os.Getpid(), tids, err)
	}
}

// TestKallsyms: the kernel's text and the code it has made are found where processors' variables come first, with addresses from 0; and nothing where
// addresses are hidden.
func TestKallsyms(t *testing.T) {
	const symbols = "0000000000000000 A fixed_percpu_data\n0000000000038000 A __per_cpu_end\nffffffff81000000 T startup_64\nffffffff81000000 T _text\n" +
		"ffffffff82000000 T _etext\nffffffffc0001000 t bpf_prog_one\t[bpf]\n"
	for _, c := range []struct{ text, want string }{
		{symbols, "1 ffffffff81000000+1000000 17 ffffffffc0001000+100000 "},
		{regexp.MustCompile(`(?m)^\w+`).ReplaceAllString(symbols, "0000000000000000"), ""},
		{"0000000000000000 t bpf_prog_one\t[bpf]\n", ""},
	} {
		s := synth{dec: source.NewDecoder(), code: true}
		s.dec.AddAttr(&source.Attr{}, nil, "")
		got := ""
		for s.kallsyms(strings.NewReader(c.text)); len(s.b) > 0; {
			var raw []byte
			raw, s.b = cutRecord(s.b)
			var r source.Record
			if err := s.dec.Decode(raw, &r); err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprintf("%d %x+%x ", r.Type, r.Addr, r.Len)
		}
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}

// TestMade: code that the kernel has made is told of up to the symbol that follows; modules' own is not.
func TestMade(t *testing.T) {
	s := synth{dec: source.NewDecoder()}
	s.dec.AddAttr(&source.Attr{}, nil, "")
	var modules []ksymbol
	for line := range strings.Lines("ffffffffc0001000 t bpf_prog_two\t[bpf]\n" +
		"ffffffffc0000800 t bpf_prog_one\t[bpf]\n" +
		"ffffffffc0001800 t read_it\t[ext4]\n" +
		"ffffffffc0500000 t ftrace_trampoline\t[__builtin__ftrace]\n" +
		"ffffffffc0000900 t bpf_prog_same\t[bpf]\n" +
		"ffffffffc0000900 t bpf_prog_same\t[bpf]\n" +
		"x t no\t[bpf]\nffffffffc0000900 t \t[bpf]\nffffffffc0000900 t no [bpf]\n") {
		addr, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if k, ok := parseModule([]byte(addr), []byte(rest)); ok {
			modules = append(modules, k)
		}
	}
	s.made(modules)
	var got []string
	for len(s.b) > 0 {
		var raw []byte
		raw, s.b = cutRecord(s.b)
		var r source.Record
		if err := s.dec.Decode(raw, &r); err != nil || r.Type != source.RecordKsymbol || r.SymbolFlags != 0 {
			t.Errorf("%+v, %v", r, err)
		}
		got = append(got, fmt.Sprintf("%x+%x %d %s", r.Addr, r.Len, r.SymbolType, r.Symbol))
	}
	want := []string{
		"ffffffffc0000800+100 1 bpf_prog_one", "ffffffffc0000900+700 1 bpf_prog_same", "ffffffffc0001000+800 1 bpf_prog_two",
		"ffffffffc0500000+100000 2 ftrace_trampoline",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A knower is a program that lets the kernel write all samples, and says when it knows the processes that there are.
type knower struct {
	fd, ready int
	begin     func() <-chan struct{}
}

func (k *knower) Start(*source.Decoder, source.Trigger) error { return nil }
func (k *knower) FD() int                                     { return k.fd }
func (k *knower) Ready() int                                  { return k.ready }
func (k *knower) Begin([]byte) <-chan struct{}                { return k.begin() }
func (k *knower) Began(uint64)                                {}
func (k *knower) Observe([]byte)                              {}
func (k *knower) Samples(uint64, func(n int) []byte) bool     { return false }
func (k *knower) End(func(n int) []byte)                      {}

// TestKnown: a recording of processes that run begins when the program knows them. It does not wait when it is to end, nor for a command that it has
// started itself, whose samples count from the start.
func TestKnown(t *testing.T) {
	canRecord(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.PerfEvent, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, License: "GPL"})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	ready, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ready)
	defer func(d time.Duration) { knownTime = d }(knownTime)
	knownTime = time.Hour
	never := make(chan struct{})
	for _, what := range []string{"known", "gone", "canceled", "own"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var known atomic.Bool
		pid, finish := spawn(t, "wait", "0")
		o := Options{PIDs: []int{pid}}
		k := &knower{fd: prog.FD(), ready: ready}
		k.begin = func() <-chan struct{} {
			switch what {
			case "known":
				c := make(chan struct{})
				time.AfterFunc(50*time.Millisecond, func() { known.Store(true); close(c) })
				return c
			case "gone":
				finish()
			case "canceled":
				cancel()
			}
			return never
		}
		if what == "own" {
			o = Options{Command: []string{"sleep", "1000"}}
		}
		o.Program = k
		opened := make(chan *Recorder, 1)
		go func() {
			r, err := Open(ctx, o)
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			opened <- r
		}()
		select {
		case r := <-opened:
			if r == nil {
				continue
			}
			if what == "known" && !known.Load() {
				t.Errorf("%s: the recording begins before the program knows process %d", what, pid)
			}
			if what == "known" || what == "own" {
				r.Stop()
			}
			for err = nil; err == nil; {
				_, _, err = r.Next()
			}
			if r.Close(); err != io.EOF {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: the recording does not begin", what)
		}
	}
}
