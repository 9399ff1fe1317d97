package perfevent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/source"
)

// testPlaces makes a tracefs and a sysfs with a few events.
func testPlaces(t testing.TB) places {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"trace/events/sched/sched_switch/id":      "314\n",
		"trace/events/sched/sched_wakeup/id":      "315\n",
		"trace/events/syscalls/sys_enter_read/id": "700\n",
		"trace/events/bad/bad/id":                 "x\n",
		"dev/cpu/type":                            "4\n",
		"dev/cpu/format/event":                    "config:0-7,32-35\n",
		"dev/cpu/format/umask":                    "config:8-15\n",
		"dev/cpu/format/ldlat":                    "config1:0-15\n",
		"dev/cpu/format/odd":                      "config:9-3\n",
		"dev/cpu/format/all":                      "config2:0-63\n",
		"dev/cpu/events/mem-loads":                "event=0xcd,umask=0x1,ldlat=3\n",
		"dev/cpu/events/loop":                     "loop\n",
		"dev/msr/type":                            "9\n",
		"dev/msr/format/event":                    "config:0-63\n",
		"dev/msr/events/tsc":                      "event=0x00\n",
	} {
		path := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return places{tracefs: []string{filepath.Join(dir, "none"), filepath.Join(dir, "trace")}, devices: filepath.Join(dir, "dev")}
}

func TestParseEvent(t *testing.T) {
	at := testPlaces(t)
	user := modifiers{user: true}
	for _, c := range []struct {
		in   string
		want event
	}{
		{"cycles", event{name: "cycles"}},
		{"cpu-cycles:u", event{name: "cpu-cycles", mods: user}},
		{"cycles:ukhppp", event{name: "cycles", mods: modifiers{user: true, kernel: true, hv: true, precise: 3}}},
		{"instructions:HGI", event{name: "instructions", config: 1, mods: modifiers{host: true, guest: true, noIdle: true}}},
		{"branch-instructions", event{name: "branch-instructions", config: 4}},
		{"ref-cycles", event{name: "ref-cycles", config: 9}},
		{"cpu-clock", event{name: "cpu-clock", typ: 1}},
		{"faults", event{name: "faults", typ: 1, config: 2}},
		{"cs:k", event{name: "cs", typ: 1, config: 3, kernelOnly: true, mods: modifiers{kernel: true}}},
		{"LLC-load-misses", event{name: "LLC-load-misses", typ: 3, config: 0x10002}},
		{"l1-dcache-stores", event{name: "l1-dcache-stores", typ: 3, config: 0x100}},
		{"dTLB-prefetch-misses:u", event{name: "dTLB-prefetch-misses", typ: 3, config: 0x10203, mods: user}},
		{"branch-loads", event{name: "branch-loads", typ: 3, config: 5}},
		{"r1a8", event{name: "r1a8", typ: 4, config: 0x1a8}},
		{"r01A8:u", event{name: "r01A8", typ: 4, config: 0x1a8, mods: user}},
		{"mem-loads", event{name: "mem-loads", typ: 4, config: 0x1cd, config1: 3}},
		{"cpu/mem-loads,ldlat=9/u", event{name: "cpu/mem-loads,ldlat=9/", typ: 4, config: 0x1cd, config1: 9, mods: user}},
		{"cpu/event=0x1ff,umask=2/", event{name: "cpu/event=0x1ff,umask=2/", typ: 4, config: 0x1_0000_02ff}},
		{"cpu/config=7,config1=8,all=0xffffffffffffffff/:u", event{name: "cpu/config=7,config1=8,all=0xffffffffffffffff/", typ: 4, config: 7, config1: 8, config2: 1<<64 - 1, mods: user}},
		{"msr/tsc/", event{name: "msr/tsc/", typ: 9}},
		{"sched:sched_switch", event{name: "sched:sched_switch", typ: 2, config: 314, kernelOnly: true, each: true}},
		{"syscalls:sys_enter_read:k", event{name: "syscalls:sys_enter_read", typ: 2, config: 700, kernelOnly: true, each: true, mods: modifiers{kernel: true}}},
		{"mem:0x1000", event{name: "mem:0x1000", typ: 5, config1: 0x1000, config2: 4, bpType: 3, each: true}},
		{"mem:0x1000/8:w:u", event{name: "mem:0x1000/8:w", typ: 5, config1: 0x1000, config2: 8, bpType: 2, each: true, mods: user}},
		{"mem:4096:x", event{name: "mem:4096:x", typ: 5, config1: 0x1000, config2: 8, bpType: 4, each: true}},
	} {
		got, err := parseEvent(c.in, at)
		if err != nil || got != c.want {
			t.Errorf("parseEvent(%q)\n got %+v, %v\nwant %+v", c.in, got, err, c.want)
		}
	}
	for _, c := range []struct{ in, want string }{
		{"", "no name"}, {"cycels", "did you mean cycles"}, {"page-fault", "did you mean page-faults?"}, {"LLC-load-mises", "did you mean LLC-load-misses?"},
		{"TLB-load-misses", "did you mean dTLB-load-misses or iTLB-load-misses?"}, {"offcpu", "did you mean off-cpu?"},
		{"sched_switch", "did you mean sched:sched_switch?"}, {"qqqqqqqqqqqqqqq", "off-cpu, a tracepoint such as sched:sched_switch, or a breakpoint such as mem:"},
		{"mem", "a breakpoint is written mem:ADDR"}, {"uprobe", "sudo perf probe -x FILE FUNCTION, then -e probe_FILE:FUNCTION"},
		{"uprobe:/bin/ls:f", "sudo perf probe -x /bin/ls f, then -e probe_ls:f"}, {"uretprobe:/bin/ls:f", "sudo perf probe -x /bin/ls f%return, then -e probe_ls:f__return"},
		{"uprobe:/lib/libc.so.6:f", "-e probe_libc:f"}, {"uprobe:", "-x FILE FUNCTION"}, {"uprobe:/bin/ls", "-x FILE FUNCTION"}, {"kprobe", "sudo perf probe FUNCTION, then -e probe:FUNCTION"},
		{"kprobe:do_exit", "sudo perf probe do_exit, then -e probe:do_exit"}, {"kprobe:a/b", "perf probe a/b"},
		{"load-misses", "L1-dcache-load-misses, L1-icache-load-misses, LLC-load-misses, dTLB-load-misses or iTLB-load-misses?"}, {"cycles:x", "modifier 'x'"}, {"cycles:", "no modifier"}, {"cycles:pppp", "three"},
		{"cycles,instructions", "one event only"}, {"sched:sched_swich", "did you mean sched:sched_switch"},
		{"shed:sched_switch", "did you mean sched:sched_switch"}, {"syscalls:sys_enter_read:y", "modifier"}, {"..:y", "unknown"}, {"a:..", "unknown"},
		{"bad:bad", "invalid syntax"}, {"rxyz", "unknown"}, {"qqqqqqqqqqqqqqq", "try cycles"},
		{"nope/event=1/", "no performance monitoring unit \"nope\": this machine has cpu, msr"}, {"cpu/event=1", "second slash"}, {"cpu/event=z/", "no number"},
		{"cpu/nope/", "unknown to unit"}, {"cpu/event=0x12345/", "more bits"}, {"cpu/odd/", "malformed"}, {"cpu/loop/", "unknown"},
		{"cpu/period=3/", "not supported"}, {"cpu/event=1/x", "modifier"}, {"cpu/../x=1/", "unknown"}, {"../cpu/event=1/", "not the name"},
		{"mem:", "no address"}, {"mem:1:q", "access"}, {"mem:1::u", "no access"}, {"mem:1/9", "no length"}, {"mem:1:r:u:k", "too many"},
	} {
		if _, err := parseEvent(c.in, at); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("parseEvent(%q): %v, want %q", c.in, err, c.want)
		}
	}
	at.tracefs = at.tracefs[:1]
	if _, err := parseEvent("sched:sched_switch", at); err == nil || !strings.Contains(err.Error(), "mount -t tracefs") {
		t.Errorf("parseEvent(sched:sched_switch) without tracefs = %v, want mount -t tracefs", err)
	}
}

func FuzzParseEvent(f *testing.F) {
	at := testPlaces(f)
	for _, s := range []string{"cycles:uk", "r1a8:p", "sched:sched_switch:k", "cpu/event=1,umask=0x3/u", "mem:0x10/4:rw:u", "LLC-loads", "::", "//", "mem:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := parseEvent(s, at)
		if err != nil {
			return
		}
		// What a name says stays the same when it is spelled out.
		var a source.Attr
		if e.where(&Options{}, &a) != nil {
			return
		}
		e.set(&a)
		again, err := parseEvent(e.spelled(&a), at)
		if err != nil || again.typ != e.typ || again.config != e.config || again.config1 != e.config1 || again.bpType != e.bpType {
			t.Fatalf("%q is %+v; %q is %+v, %v", s, e, e.spelled(&a), again, err)
		}
	})
}

func TestWhere(t *testing.T) {
	const noUser, noKernel, noHV, noGuest = source.FlagExcludeUser, source.FlagExcludeKernel, source.FlagExcludeHV, source.FlagExcludeGuest
	for _, c := range []struct {
		event string
		o     Options
		want  uint64
		name  string
	}{
		{"cycles", Options{}, noGuest, "cycles"},
		{"cycles:u", Options{}, noGuest | noKernel | noHV, "cycles:u"},
		{"cycles:kp", Options{}, noGuest | noUser | source.FlagPreciseIP1, "cycles:kp"},
		{"cycles:uk", Options{User: true}, noGuest | noKernel | noHV, "cycles:u"},
		{"cycles:H", Options{}, noGuest, "cycles"},
		{"cpu-clock", Options{Kernel: true}, noUser, "cpu-clock:k"},
		{"cpu-clock", Options{User: true, Kernel: true}, 0, "cpu-clock"},
		{"cpu-clock:I", Options{}, source.FlagExcludeIdle, "cpu-clock"},
	} {
		e, err := parseEvent(c.event, places{})
		var a source.Attr
		if err == nil {
			err = e.where(&c.o, &a)
		}
		e.set(&a)
		if err != nil || a.Flags != c.want || e.spelled(&a) != c.name {
			t.Errorf("%s, %+v: %#x %s, %v; want %#x %s", c.event, c.o, a.Flags, e.spelled(&a), err, c.want, c.name)
		}
	}
}

func TestCPUs(t *testing.T) {
	if got, err := parseCPUs("0-2,5,8-9"); err != nil || !slices.Equal(got, []int{0, 1, 2, 5, 8, 9}) {
		t.Errorf("parseCPUs(0-2,5,8-9) = %v, %v, want 0, 1, 2, 5, 8, 9", got, err)
	}
	for _, s := range []string{"", "a", "1-", "3-1", "-1", "0-99999999"} {
		if got, err := parseCPUs(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}
