package lab

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/unwind"
)

// dropInProgram compiles the walk of a drop-in, "remote" or "local", with rules from compact tables, and returns a command that runs it.
func dropInProgram(t *testing.T, m *arch.Machine, which string) []string {
	t.Helper()
	prog := filepath.Join(t.TempDir(), which)
	gcc, run := "gcc", []string{prog}
	if m == arch.ARM64 {
		oracle.Need(t, "qemu-aarch64")
		gcc, run = "aarch64-linux-gnu-gcc", []string{"qemu-aarch64", prog}
	}
	oracle.Need(t, gcc)
	args := []string{"-static", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I../runtime", "-o", prog, "../runtime/test/testdata/dropin.c",
		"../runtime/core.c", "../runtime/blind.c", "../runtime/table.c"}
	if which == "local" {
		args = append(args, "-DLOCAL", "../runtime/local_walk.c", "../runtime/local_mem.c")
	} else {
		args = append(args, "../runtime/remote.c", "../runtime/remote_registers.c", "../runtime/abi.c")
	}
	if out, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return run
}

// dropInWalks returns the program counters that a drop-in finds on stacks on x's code.
func dropInWalks(t *testing.T, prog []string, x *wild, snaps []*unwind.Snapshot) [][]uint64 {
	t.Helper()
	var in bytes.Buffer
	put := func(v any) { binary.Write(&in, binary.LittleEndian, v) }
	table := x.mod.Code().Stepper.(*compact.Table).Bytes()
	put([]uint64{wildLo, uint64(len(x.text)), uint64(len(table)), uint64(len(snaps))})
	in.Write(x.text)
	in.Write(table)
	for _, s := range snaps {
		put(s.Regs)
		put([]uint64{s.Mem.Lo, uint64(len(s.Mem.Bytes))})
		in.Write(s.Mem.Bytes)
	}
	cmd := exec.Command(prog[0], prog[1:]...)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", prog, err)
	}
	r := bytes.NewReader(out)
	walks := make([][]uint64, len(snaps))
	for i := range walks {
		var n uint64
		err := binary.Read(r, binary.LittleEndian, &n)
		if err == nil {
			walks[i] = make([]uint64, n)
			err = binary.Read(r, binary.LittleEndian, walks[i])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return walks
}

// permitted says why the walk of a drop-in, which parts from ours before frame k of either, may be right; "" if it may not.
func (x *wild) permitted(got []uint64, frames []unwind.Frame, stop unwind.Stop, k int) string {
	inCode := func(pc uint64) bool { return pc-wildLo < uint64(len(x.text)) }
	c := x.mod.Code()
	last := &frames[len(frames)-1]
	switch {
	case k == len(frames) && k+1 == len(got) && !inCode(got[k]) && (stop == unwind.BadReturn || !inCode(got[k]-1)):
		return "a return address that is in no code is the last frame"
	case k == len(frames) && stop == unwind.Outermost && slices.ContainsFunc(c.Terminal, func(r unwind.Range) bool { at := arch.Vaddr(last.PC) - wildLo; return r.Lo <= at && at < r.Hi }):
		return "entry points are not known"
	case k == len(frames) && stop == unwind.BadCFA:
		return "a loop through several stacks is found later"
	case k == len(got) && k+1 == len(frames) && stop == unwind.BadCFA && frames[k].PC == frames[k-1].PC:
		return "a frame that is its own caller is there once"
	case k == len(got) && k < len(frames) && frames[k-1].Exact && frames[k-1].How != unwind.HowStart:
		_, at := c.Stepper.Find(arch.Vaddr(frames[k].PC - wildLo))
		_, before := c.Stepper.Find(arch.Vaddr(frames[k].PC - wildLo - 1))
		if !at && !before {
			return "code without rules is not told from data, where a function begins that nobody has called"
		}
	}
	return ""
}

// TestBlindDropIns: on the stacks of TestBlindWalks, the walks of both drop-ins find what ours finds, on each machine. That of the own process gets those
// whose memory begins with a page.
func TestBlindDropIns(t *testing.T) {
	for _, g := range grounds {
		for _, which := range []string{"remote", "local"} {
			t.Run(g.Name+"/"+which, func(t *testing.T) { blindDropIn(t, g, which) })
		}
	}
}

func blindDropIn(t *testing.T, g *ground, which string) {
	prog := dropInProgram(t, g.Machine, which)
	permits, hows, stacks, bad := map[string]int{}, map[unwind.How]int{}, 0, 0
	for seed := range uint64(8) {
		x, w := newWild(t, g, seed), unwind.NewWalker(1024)
		var snaps []*unwind.Snapshot
		for range 3000 {
			if s := x.snapshot(); which == "remote" || s.Mem.Lo == wildStack {
				snaps = append(snaps, s)
			}
		}
		for i, got := range dropInWalks(t, prog, x, snaps) {
			frames, stop := w.Walk(snaps[i], nil)
			stacks++
			k := 0
			for k < len(got) && k < len(frames) && got[k] == uint64(frames[k].PC) {
				hows[frames[k].How]++
				k++
			}
			if k == len(got) && k == len(frames) {
				continue
			}
			if why := x.permitted(got, frames, stop, k); why != "" {
				permits[why]++
				continue
			}
			if bad++; bad <= 5 {
				t.Errorf("seed %d, stack %d, frame %d: %v\n got %x\nwant%s", seed, i, k, stop, got, dump(frames))
			}
		}
	}
	if bad > 5 {
		t.Errorf("%d of %d stacks differ", bad, stacks)
	}
	t.Logf("%d stacks, frames %v; permitted: %v", stacks, hows, permits)
	for how := range unwind.NumHows {
		if (hows[how] < 100) != (how == unwind.HowSync) { // of which no walker in C knows
			t.Errorf("%v: %d frames", how, hows[how])
		}
	}
}
