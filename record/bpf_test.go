package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
)

// loadBPF loads a BPF program that runs for some microseconds. Programs that differ in n only are of one size.
func loadBPF(name string, n int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SocketFilter, Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, n),
		asm.Mov.Imm(asm.R1, 20_000),
		asm.Mul.Imm(asm.R0, 0x10001).WithSymbol("again"),
		asm.Sub.Imm(asm.R1, 1),
		asm.JNE.Imm(asm.R1, 0, "again"),
		asm.Return(),
	}})
}

// spinBPF runs a program for a while.
func spinBPF(prog *ebpf.Program, while time.Duration) error {
	for began := time.Now(); time.Since(began) < while; {
		if _, _, err := prog.Benchmark(make([]byte, 64), 1000, nil); err != nil {
			return err
		}
	}
	return nil
}

// spinSome runs four programs in turn, with time for the kernel to use the memory of one for the next.
func spinSome() error {
	for i := range int32(4) {
		prog, err := loadBPF(fmt.Sprint("spins_", i), i)
		if err == nil {
			err = errors.Join(spinBPF(prog, 150*time.Millisecond), prog.Close())
		}
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

// needBPF skips a test where it cannot run BPF programs as machine code, or record the kernel.
func needBPF(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	if on, ok := procfs.Setting("net/core/bpf_jit_enable"); !ok || on == 0 {
		oracle.Lacks(t, "net.core.bpf_jit_enable")
	}
	probe, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		oracle.Lacks(t, "BPF: "+err.Error())
	}
	probe.Close()
}

var ofBPF = regexp.MustCompile(`^bpf_prog_[0-9a-f]{16}_(spins_[a-z0-9]+)$`)

// bpfNames counts the samples of each BPF program of loadBPF in a profile.
func bpfNames(p *profile.Profile) map[string]uint64 {
	count := map[string]uint64{}
	for i := range p.Stacks {
		if len(p.Stacks[i].Frames) == 0 {
			continue
		}
		l := &p.Locs[p.Stacks[i].Frames[0]]
		if m := ofBPF.FindStringSubmatch(p.Funcs[l.Func].Name); m != nil {
			count[m[1]] += p.Stacks[i].Count
		}
	}
	return count
}

// fileProfile returns the profile of a recording.
func fileProfile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	mods := modules.New()
	f, err := Open(path, FileOptions{Mods: mods})
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Profile(context.Background(), nil)
	if err := errors.Join(err, f.Close(), mods.Files.Close()); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPerfBPF: BPF programs in a recording of perf's, which have gone when it is read, and of which one lay where another had been, have the names that perf
// gives to them.
func TestPerfBPF(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "perf")
	needBPF(t)
	data := filepath.Join(t.TempDir(), "perf.data")
	for tries := 0; ; tries++ {
		rec := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-a", "-F", "999", "-o", data, "--", "sleep", "60")
		if err := rec.Start(); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(20 * time.Millisecond) { // until perf has begun
			if st, err := os.Stat(data); err == nil && st.Size() > 0 {
				break
			}
		}
		time.Sleep(300 * time.Millisecond)
		if err := spinSome(); err != nil {
			t.Fatal(err)
		}
		rec.Process.Signal(os.Interrupt)
		rec.Wait() // its status is that of sleep's end
		b, err := os.ReadFile(data)
		if err != nil {
			t.Fatal(err)
		}
		if !oracle.Leftover(b) {
			break
		}
		if tries == 20 {
			oracle.Lacks(t, "a time without other recorders: perf cannot read what the kernel writes beside them")
		}
	}
	script := exec.Command("perf", "script", "--no-inline", "-i", data, "-F", "ip,sym")
	var said bytes.Buffer
	script.Stderr = &said
	out, err := script.Output()
	if err != nil {
		t.Fatalf("perf script: %v, after %d bytes\n%s", err, len(out), &said)
	}
	want := map[string]uint64{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 {
			if m := ofBPF.FindStringSubmatch(f[1]); m != nil {
				want[m[1]]++
			}
		}
	}
	if len(want) != 4 {
		t.Skipf("this test lacks records of BPF programs in perf's recording: %v", want)
	}
	t.Log(want)
	got := bpfNames(fileProfile(t, data))
	if !maps.Equal(got, want) {
		t.Errorf("samples by program: %v, perf says %v", got, want)
	}
}

// TestLiveBPF: BPF programs that come and go while a recording is made have their own names, at once and in the file, also where one lies where another
// had been; so has one that was there before.
func TestLiveBPF(t *testing.T) {
	oracle.Long(t)
	needBPF(t)
	for _, from := range []string{Perf, EBPF} {
		mods := modules.New()
		p := Plan{Source: from}
		p.All, p.Duration, p.Frequency, p.Event = true, 20*time.Second, 499, "cpu-clock"
		before, err := loadBPF("spins_before", 9)
		if err != nil {
			t.Fatal(err)
		}
		l, err := p.Open(context.Background(), mods)
		if err != nil {
			t.Skipf("%s: %v", from, err)
		}
		ran := make(chan error, 1)
		go func() {
			ran <- errors.Join(spinBPF(before, 300*time.Millisecond), before.Close(), spinSome())
			l.Stop()
		}()
		namer := names.New(names.Options{Mods: mods})
		s := l.Session(Options{Mods: mods, Names: namer})
		out, err := os.Create(filepath.Join(t.TempDir(), "perf.data"))
		if err != nil {
			t.Fatal(err)
		}
		w, err := s.Write(context.Background(), out, false)
		if err != nil {
			t.Fatal(err)
		}
		got := bpfNames(w.b.Profile(namer, s.Info))
		if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"spins_0", "spins_1", "spins_2", "spins_3", "spins_before"}) {
			t.Errorf("%s: samples of programs: %v", from, got)
		}
		again := bpfNames(fileProfile(t, out.Name()))
		if !maps.Equal(got, again) {
			t.Errorf("%s: samples of programs: %v, and in the file %v", from, got, again)
		}
		if err := errors.Join(<-ran, out.Close(), l.Close(), namer.Close(), mods.Files.Close()); err != nil {
			t.Error(err)
		}
	}
}
