package profile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnversioned(t *testing.T) {
	for name, want := range map[string]string{
		"libfoo.so.1.2": "libfoo.so", "libfoo.so.1.3": "libfoo.so", "libfoo.so": "libfoo.so", "libfoo-1.2.so": "libfoo.so", "libfoo-1.2.so.1": "libfoo.so",
		"app-1.2": "app", "app-1.3rc1": "app", "app_v2": "app", "app": "app", "python3.11": "python", "libstdc++.so.6.0.30": "libstdc++.so",
		"a.out": "a.out", "7z": "7z", "1.2": "1.2", "-1": "-1", "foo.sort": "foo.sort", "jdk17": "jdk17", "": "",
	} {
		if got := unversioned(name); got != want {
			t.Errorf("unversioned(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestMatchModules(t *testing.T) {
	mods := func(paths []string) (out []Module) {
		for _, p := range paths {
			out = append(out, Module{Path: p, Kernel: strings.HasPrefix(p, "[kernel")})
		}
		return out
	}
	for _, c := range []struct {
		now, before []string
		want        []int32
	}{
		{[]string{"/v2/app"}, []string{"/app"}, []int32{0}},
		{[]string{"", "[kernel]", "/app"}, []string{"/app", "[kernel]", ""}, []int32{2, 1, 0}},
		{[]string{"/app", "/v2/app"}, []string{"/v1/app"}, []int32{0}},
		{[]string{"/b/lib/libx.so", "/b/plug/libx.so"}, []string{"/a/plug/libx.so", "/a/lib/libx.so"}, []int32{1, 0}},
		{[]string{"/lib/libfoo.so.1.3"}, []string{"/lib/libfoo.so.1.2"}, []int32{0}},
		{[]string{"/bin/app-1.3"}, []string{"/bin/app-1.2"}, []int32{0}},
		{[]string{"/bin/app-1.3", "/bin/app-1.4"}, []string{"/bin/app-1.2"}, []int32{-1}},
		{[]string{"/bin/app-1.4"}, []string{"/bin/app-1.2", "/bin/app-1.3"}, []int32{-1, -1}},
		{[]string{"/bin/app-1.3"}, []string{"/bin/app-1.2", "/bin/app-1.3"}, []int32{-1, 0}}, // both ran before
		{[]string{"/bin/app-1.3"}, []string{"/bin/other-1.3"}, []int32{-1}},
		{[]string{"/x/app (deleted)"}, []string{"/x/app"}, []int32{0}},
		{[]string{"[vdso]"}, []string{"[vsyscall]"}, []int32{-1}},
		{[]string{"[ext4]"}, []string{""}, []int32{-1}},
		{[]string{"[kernel.kallsyms]"}, []string{"[kernel]"}, []int32{0}},
	} {
		if got := matchModules(mods(c.now), mods(c.before)); !slices.Equal(got, c.want) {
			t.Errorf("now %q, before %q: %v, want %v", c.now, c.before, got, c.want)
		}
	}
}

// TestMatchComms: a command is called after its program, whose name may have a version.
func TestMatchComms(t *testing.T) {
	stacks := func(comms []string) (out []Stack) {
		for _, c := range comms {
			out = append(out, Stack{Comm: c})
		}
		return out
	}
	for _, c := range []struct {
		now, before []string
		want        map[string]string
	}{
		{[]string{"app-1.3", "sh", "app-1.3"}, []string{"app-1.2", "sh"}, map[string]string{"app-1.2": "app-1.3"}},
		{[]string{"python3.12"}, []string{"python3.11"}, map[string]string{"python3.11": "python3.12"}},
		{[]string{"app-1.3"}, []string{"app-1.2", "app-1.3"}, map[string]string{}}, // both ran before
		{[]string{"worker-1", "worker-2"}, []string{"worker-3"}, map[string]string{}},
		{[]string{"worker-1"}, []string{"worker-2", "worker-3"}, map[string]string{}},
		{[]string{"app"}, []string{"other"}, map[string]string{}},
		{[]string{""}, []string{"app"}, map[string]string{}},
	} {
		now, before := stacks(c.now), stacks(c.before)
		if d := cmp.Diff(c.want, matchComms(now, before)); d != "" {
			t.Errorf("now %q, before %q:\n%s", c.now, c.before, d)
		}
		p, split := Join(&Profile{Stacks: now}, &Profile{Stacks: before})
		for i, s := range p.Stacks[split:] {
			if want, ok := c.want[c.before[i]]; ok && s.Comm != want || !ok && s.Comm != c.before[i] {
				t.Errorf("now %q, before %q: joined as %q", c.now, c.before, s.Comm)
			}
		}
	}
}

// TestJoin joins two builds of a program in different places: functions are one by name, with or without symbols.
func TestJoin(t *testing.T) {
	build := func(app, lib string, funcs ...Func) *Profile {
		p := &Profile{Modules: []Module{{Path: app, BuildID: app}, {Path: lib, BuildID: lib}}, Files: []string{"", app + ".c"}, Info: Info{Events: []Event{{"cycles", "count"}}}}
		for i, f := range funcs {
			p.Funcs = append(p.Funcs, f)
			p.Locs = append(p.Locs, Loc{Off: uint64(i), Func: int32(i), Module: f.Module, Mapping: -1, File: 1})
			p.Stacks = append(p.Stacks, Stack{Frames: []uint32{uint32(i)}, Count: uint64(i) + 1})
		}
		return p.Filter(func(*Stack) bool { return true })
	}
	before := build("/src/app", "/lib/libx.so.1.2", Func{"[libx.so.1.2]", "", 1, false}, Func{"main", "", 0, true}, Func{"gone", "", 0, true}, Func{"[libx.so.1.2+0x10]", "", 1, false})
	now := build("/src/v2/app", "/lib/libx.so.1.3", Func{"main", "", 0, true}, Func{"[libx.so.1.3]", "", 1, false}, Func{"new", "", 0, true})
	p, split := Join(now, before)
	var got []string
	for i, s := range p.Stacks {
		l := &p.Locs[s.Frames[0]]
		got = append(got, fmt.Sprint(i >= split, " ", p.Modules[p.Funcs[l.Func].Module].Path, " ", p.Funcs[l.Func].Name, " ", s.Count, " ", p.File(l), " ", l.Func))
	}
	want := []string{
		"false /src/v2/app main 1 /src/v2/app.c 0", "false /lib/libx.so.1.3 [libx.so.1.3] 2 /src/v2/app.c 1", "false /src/v2/app new 3 /src/v2/app.c 2",
		"true /lib/libx.so.1.3 [libx.so.1.3] 1 /src/app.c 1", "true /src/v2/app main 2 /src/app.c 0", "true /src/v2/app gone 3 /src/app.c 3",
		"true /lib/libx.so.1.3 [libx.so.1.3+0x10] 4 /src/app.c 4",
	}
	if diff := cmp.Diff(want, got); diff != "" || p.Totals.Samples != 16 || len(p.Modules) != 2 || len(p.Events) != 1 {
		t.Errorf("(-want +got)\n%s\n%+v", diff, p.Totals)
	}
	if len(now.Funcs) != 3 || len(now.Stacks) != 3 {
		t.Errorf("Join changed what it joined: %d functions and %d stacks, want 3 and 3", len(now.Funcs), len(now.Stacks))
	}
}
