package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// sampleStacks has everything that a report of stacks can show.
func sampleStacks() *stacks.Process {
	app := &unwind.Mapping{Lo: 0x401000, Hi: 0x410000, Off: 0x1000, Module: unwind.NewModule("/proc/10/root/opt/app", "0123abcd", nil)}
	libc := &unwind.Mapping{Lo: 0x7f0000000000, Hi: 0x7f0000100000, Off: 0x20000, Module: unwind.NewModule("/proc/10/root/lib/libc.so.6", "", nil)}
	frame := func(m *unwind.Mapping, pc arch.Addr, how unwind.How, name string, start uint64) stacks.Frame {
		return stacks.Frame{Frame: unwind.Frame{PC: pc, Exact: how == unwind.HowStart || how == unwind.HowSignal, How: how, Mapping: m}, Name: profile.Name{Func: name, Start: start}}
	}
	crashed := []stacks.Frame{
		frame(nil, 0, unwind.HowStart, "", 0),
		frame(app, 0x401234, unwind.HowCall, "handler(int)", 0x1200),
		frame(libc, 0x7f0000001000, unwind.HowCFI, "__restore_rt", 0x21000),
		frame(app, 0x402000, unwind.HowSignal, "work<int>(int)", 0x1ff0),
		frame(libc, 0x7f0000002000, unwind.HowFramePointer, "", 0),
		frame(app, 0x403005, unwind.HowPLT, "main", 0x3000),
	}
	crashed[2].Trampoline = true
	crashed[3].Name.Linkage = "_Z4workIiEvi"
	crashed[3].Name.Source = []profile.Source{
		{Func: "innermost", File: "/src/a.h", Line: 7, Column: 3}, {Func: "inner", File: "/src/a.h", Line: 20}, {File: "/src/a.cc", Line: 99},
	}
	crashed[5].Regs = []stacks.Register{{Name: "rbx", Value: 1}, {Name: "rbp", Value: 0x7ffc0000}, {Name: "rsp", Value: 0x7ffc1000}, {Name: "r12", Value: 0}, {Name: "rip", Value: 0x403005}}
	return &stacks.Process{
		PID: 10, Exe: "/opt/app", Command: []string{"/opt/app", "-x", "a\nb"}, Machine: arch.AMD64,
		Paths:  map[string]string{"/proc/10/root/opt/app": "/opt/app", "/proc/10/root/lib/libc.so.6": "/lib/libc.so.6"},
		Signal: &stacks.Signal{Number: 11, Code: 1, Addr: 0xdead, HasAddr: true}, Pause: 1234567 * time.Nanosecond, Longest: 234567 * time.Nanosecond,
		Notes: []string{"/opt/plugin.so: file does not exist"},
		Threads: []stacks.Thread{
			{TID: 10, Name: "app", Frames: crashed},
			{TID: 11, Name: "a \"b\"", Frames: []stacks.Frame{frame(libc, 0x7f0000003000, unwind.HowStart, "read", 0x22ff0)}, Stop: unwind.BadReturn, Return: 0x4141414141414141, Same: []int{12, 13}},
			{TID: 15, Frames: []stacks.Frame{frame(libc, 0x7f0000003000, unwind.HowStart, "read", 0x22ff0), frame(libc, 0x7f0000004000, unwind.HowCFI, "", 0x23f00), frame(app, 0x403005, unwind.HowCFI, "main", 0x3000)}, Left: 12345, LeftAt: 1},
			{TID: 14, Stop: unwind.NoUserStack, Err: errors.New("it ended")},
		},
	}
}

func TestStackFormats(t *testing.T) {
	got := archive{{}}
	got[0].data = "A process with all that a report of stacks can show; and as a core, without names.\n"
	add := func(name string, write func(*bytes.Buffer) error) {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		got = append(got, struct{ name, data string }{name, b.String()})
	}
	for _, f := range StackFormats.Names() {
		add(f, func(b *bytes.Buffer) error { return StackFormats.Named(f).Stacks(b, sampleStacks()) })
	}
	add("raw", func(b *bytes.Buffer) error {
		s := sampleStacks()
		s.Raw, s.Core, s.Signal = true, "core", &stacks.Signal{Number: 6, Code: -6}
		for i := range s.Threads[0].Frames {
			s.Threads[0].Frames[i].Name, s.Threads[0].Frames[i].Regs = profile.Name{}, nil
		}
		s.Threads = s.Threads[:1]
		return stackText(b, s)
	})
	const path = "testdata/stacks.golden"
	if *update {
		if err := os.WriteFile(filepath.FromSlash(path), []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("run with -update to accept (-want +got):\n%s", diff)
	}
}

// All formats show the same frames.
func TestStackSame(t *testing.T) {
	s := sampleStacks()
	var b bytes.Buffer
	if err := stackJSON(&b, s); err != nil {
		t.Fatal(err)
	}
	var j jsonStacks
	if err := json.Unmarshal(b.Bytes(), &j); err != nil {
		t.Fatal(err)
	}
	lines, own := 0, 0
	for _, th := range j.Threads {
		for _, f := range th.Frames {
			if lines++; !f.Inlined {
				own++
			}
		}
	}
	for f, want := range map[string]int{"text": lines, "gdb": lines, "eu": own} {
		b.Reset()
		if err := StackFormats.Named(f).Stacks(&b, s); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count("\n"+b.String(), "\n#"); n != want {
			t.Errorf("%s has %d frames, JSON %d", f, n, want)
		}
	}
}
