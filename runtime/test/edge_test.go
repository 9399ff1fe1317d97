package test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestAfterCall: what the drop-ins and the kernel's walk take for a call is what arch does: with every opcode, ModRM and SIB byte of an
// indirect one, at every length, and bytes made at random.
func TestAfterCall(t *testing.T) {
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "edge")
	if out, err := exec.Command("gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-I..", "-o", prog, "testdata/edge.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := rand.New(rand.NewPCG(15, 16))
	var in []byte
	for at := range 7 {
		for modrm := range 256 {
			for range 16 {
				b := binary.LittleEndian.AppendUint64(nil, r.Uint64())
				b[at], b[at+1] = 0xff, byte(modrm)
				in = append(in, b...)
			}
		}
		for range 1000 {
			b := binary.LittleEndian.AppendUint64(nil, r.Uint64())
			b[at] = 0xe8
			in = append(in, b...)
		}
	}
	cmd := exec.Command(prog)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil || len(out) != len(in)/8 {
		t.Fatalf("%d answers to %d questions: %v", len(out), len(in)/8, err)
	}
	calls := 0
	for i := range out {
		code := in[8*i : 8*i+8]
		want := arch.AMD64.AfterCall(code)
		if want {
			calls++
		}
		if got := out[i] == '1'; got != want {
			t.Fatalf("% x: %v, want %v", code, got, want)
		}
	}
	if calls < 1000 {
		t.Errorf("only %d of %d are calls", calls, len(out))
	}
	t.Logf("%d of %d are calls", calls, len(out))
}

// TestPasses: the same of what leads to a return on AArch64, for random instructions.
func TestPasses(t *testing.T) {
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "edge")
	if out, err := exec.Command("gcc", "-D__TARGET_ARCH_arm64", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I..", "-o", prog, "testdata/edge.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := rand.New(rand.NewPCG(17, 18))
	var in []byte
	for range 1 << 20 {
		w := r.Uint64()
		if r.IntN(2) == 0 { // of the link register, the stack pointer and their neighbours
			w = w&^0x3ff | uint64(r.IntN(4)+28)<<5 | uint64(r.IntN(4)+28)
		}
		in = binary.LittleEndian.AppendUint64(in, w)
	}
	cmd := exec.Command(prog)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err != nil || len(out) != len(in)/8 {
		t.Fatalf("%d answers to %d questions: %v", len(out), len(in)/8, err)
	}
	passes := 0
	for i := range out {
		code := append(bytes.Clone(in[8*i:8*i+4]), "\xc0\x03\x5f\xd6"...)
		_, want := arch.ARM64.Edge(nil, code)
		if want {
			passes++
		}
		if got := out[i] == '1'; got != want {
			t.Fatalf("% x: %v, want %v", code, got, want)
		}
	}
	if passes < 1<<16 {
		t.Errorf("only %d of %d lead to a return", passes, len(out))
	}
}
