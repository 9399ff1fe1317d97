package sources

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/stacks"
)

// TestProcess: the stack of a process that sleeps is whole, and has names unless nobody wants them.
func TestProcess(t *testing.T) {
	c := exec.Command("sleep", "100")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	for _, raw := range []bool{false, true} {
		mods := modules.New()
		mods.Files.Sysroot = "/nowhere" // holds for recordings and cores only
		n := names.New(names.Options{Mods: mods})
		var got *stacks.Process
		err := Process(c.Process.Pid, Options{Mods: mods, Namer: n, Raw: raw, Write: func(p *stacks.Process) error { got = p; return nil }})
		if err != nil {
			oracle.Lacks(t, "the right to read the registers of a child: "+err.Error())
		}
		if got.PID != c.Process.Pid || len(got.Threads) != 1 || got.Threads[0].Incomplete() != "" || got.Pause <= 0 || got.Raw != raw {
			t.Errorf("raw %v: %+v", raw, got)
		}
		n.Close()
		mods.Close()
	}
}

// TestNoCore: what is no core, or no minidump, is an error with its path.
func TestNoCore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "core")
	if err := os.WriteFile(path, []byte("neither"), 0o600); err != nil {
		t.Fatal(err)
	}
	mods := modules.New()
	defer mods.Close()
	n := names.New(names.Options{Mods: mods})
	defer n.Close()
	o := Options{Mods: mods, Namer: n, Write: func(p *stacks.Process) error {
		t.Errorf("stacks of what is no core: process %d, with %d threads", p.PID, len(p.Threads))
		return nil
	}}
	for name, err := range map[string]error{"core": Core(path, "", o), "minidump": Minidump(path, o)} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
