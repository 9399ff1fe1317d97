package names

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
)

// TestHints: the modules that lack names, by what they took, three at most; none that took little, and not the kernel.
func TestHints(t *testing.T) {
	oracle.Need(t, "gcc")
	t.Setenv("DEBUGINFOD_URLS", "")
	dir := t.TempDir()
	bare, source := filepath.Join(dir, "bare"), filepath.Join(dir, "a.c")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-s", "-Wl,--build-id", "-o", bare, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n := New(Options{})
	defer n.Close()
	mod := func(name, id string) profile.Module {
		path := filepath.Join(dir, name)
		if err := os.Link(bare, path); err != nil {
			t.Fatal(err)
		}
		return profile.Module{Path: path, BuildID: id}
	}
	mods := []profile.Module{mod("little", ""), mod("a", ""), {Path: "[kernel]", Kernel: true}, mod("b", "00112233445566778899"), mod("c", ""), mod("d", ""), {}}
	got := n.HintsOf(mods, []uint64{1, 20, 500, 40, 30, 10, 400}, 1001)
	want := []string{"b has been rebuilt since this recording: 4.0 % of the time has no names", "no symbols for c (3.0 %)", "no symbols for a (2.0 %)"}
	for i, w := range want {
		if len(got) != len(want) || !strings.HasPrefix(got[i], w) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
	set := modules.Interpreted()
	set.Files.For(arch.ByELF(arch.EM_S390))
	foreign := New(Options{Mods: set})
	defer foreign.Close()
	if got, want := foreign.HintsOf(mods[1:2], []uint64{20}, 20), " but was recorded on s390x: 100.0 % of the time has no names"; len(got) != 1 || !strings.HasSuffix(got[0], want) {
		t.Errorf("of a file for this machine: %q, want %q", got, want)
	}
	if got := n.Hints(nil, false); got != nil {
		t.Errorf("of nothing: %q", got)
	}

	// In a profile of waits the innermost function outside of the kernel counts.
	p := &profile.Profile{
		Modules: []profile.Module{{Path: "[kernel]", Kernel: true}, mods[1]},
		Funcs:   []profile.Func{{Name: "schedule", Named: true}, {Name: "0x10", Module: 1}},
		Locs:    []profile.Loc{{Func: 0, Module: 0}, {Func: 1, Module: 1}},
		Stacks:  []profile.Stack{{Frames: []uint32{0, 1}, Count: 1, Period: 5}, {Count: 1, Period: 5}},
	}
	if got := n.Hints(p, true); len(got) != 1 || !strings.HasPrefix(got[0], "no symbols for a (50.0 %)") {
		t.Errorf("of waits: %q", got)
	}
	if got := n.Hints(p, false); len(got) != 0 {
		t.Errorf("of the kernel's own time: %q", got)
	}
}
