package corefile_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// A foreign is a machine that this one is not, with what makes a program for it.
type foreign struct {
	name   string // of QEMU
	m      *arch.Machine
	target string
	triple string // of Debian's cross libraries; "" for those of the machine's own packages, in suite
	flags  []string

	lacks [2]string // why the walks of main and of threads do not reach the outermost frame; "" where they do
}

const (
	closed = "clone, in which threads begin, has EXIDX_CANTUNWIND"
	begun  = "__thread_start, in which threads begin, has no unwind information"
)

var foreigns = []foreign{
	{name: "arm", m: arch.ARM, target: "armv7-linux-gnueabihf", triple: "arm-linux-gnueabihf", flags: []string{"-marm", "-funwind-tables"}, lacks: [2]string{1: closed}},
	{name: "arm", m: arch.ARM, target: "armv7-linux-gnueabihf", triple: "arm-linux-gnueabihf", flags: []string{"-mthumb", "-funwind-tables"}, lacks: [2]string{1: closed}},
	{name: "i386", m: arch.I386, target: "i686-linux-gnu", triple: "i686-linux-gnu"},
	{name: "riscv64", m: arch.RISCV64, target: "riscv64-linux-gnu", triple: "riscv64-linux-gnu", flags: []string{"-march=rv64gc", "-mabi=lp64d"}},
	{name: "s390x", m: arch.S390X, target: "s390x-linux-gnu", triple: "s390x-linux-gnu"},
	{name: "ppc64le", m: arch.PPC64LE, target: "powerpc64le-linux-gnu", triple: "powerpc64le-linux-gnu"},
	{name: "loongarch64", m: arch.Loong64, target: "loongarch64-linux-gnu"},
	{name: "mipsel", m: arch.MIPSel, target: "mipsel-linux-gnu", triple: "mipsel-linux-gnu", lacks: [2]string{1: begun}},
	{name: "mips", m: arch.MIPS, target: "mips-linux-gnu", triple: "mips-linux-gnu", lacks: [2]string{1: begun}},
	{name: "mips64el", m: arch.MIPS64el, target: "mips64el-linux-gnuabi64", triple: "mips64el-linux-gnuabi64", lacks: [2]string{1: begun}},
	{name: "mips64", m: arch.MIPS64, target: "mips64-linux-gnuabi64", triple: "mips64-linux-gnuabi64", lacks: [2]string{1: begun}},
}

// build links testdata/chain.c for a machine, statically, and returns the program.
func (f *foreign) build(t *testing.T, dir string) string {
	t.Helper()
	oracle.Need(t, "clang-19", "ld.lld-19")
	var include []string
	var lib, gcc string
	if f.triple != "" {
		short := map[string]string{"arm-linux-gnueabihf": "armhf", "i686-linux-gnu": "i386", "riscv64-linux-gnu": "riscv64", "s390x-linux-gnu": "s390x", "powerpc64le-linux-gnu": "ppc64el",
			"mipsel-linux-gnu": "mipsel", "mips-linux-gnu": "mips", "mips64el-linux-gnuabi64": "mips64el", "mips64-linux-gnuabi64": "mips64"}[f.triple]
		root := oracle.Debian(t, "bookworm", "amd64", "cross-"+short, "libc6-dev-"+short+"-cross", "libgcc-12-dev-"+short+"-cross")
		include = []string{filepath.Join(root, "usr", f.triple, "include")}
		lib, gcc = filepath.Join(root, "usr", f.triple, "lib"), filepath.Join(root, "usr/lib/gcc-cross", f.triple, "12")
	} else {
		root := oracle.Debian(t, "sid", "loong64", "loong64-libc", "libc6-dev", "libgcc-15-dev")
		include = []string{filepath.Join(root, "usr/include"), filepath.Join(root, "usr/include", f.target)}
		lib, gcc = filepath.Join(root, "usr/lib", f.target), filepath.Join(root, "usr/lib/gcc", f.target, "15")
	}
	compile := []string{"clang-19", "--target=" + f.target, "-O2", "-fasynchronous-unwind-tables", "-nostdlibinc"}
	for _, i := range include {
		compile = append(compile, "-isystem", i)
	}
	obj, path := filepath.Join(dir, "chain.o"), filepath.Join(dir, "chain")
	compile = append(append(compile, f.flags...), "-c", "-o", obj, "testdata/chain.c")
	link := []string{"ld.lld-19", "-static", "-no-pie", "--build-id", "-o", path, lib + "/crt1.o", lib + "/crti.o", gcc + "/crtbeginT.o", obj, "-L" + lib, "-L" + gcc,
		"--start-group", "-lc", "-lgcc", "-lgcc_eh", "--end-group", gcc + "/crtend.o", lib + "/crtn.o"}
	oracle.Run(t, compile[0], compile[1:]...)
	oracle.Run(t, link[0], link[1:]...)
	return path
}

// dump runs a program under QEMU until it stops, and returns its core.
func (f *foreign) dump(t *testing.T, qemu, dir, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `ulimit -c unlimited; exec "$0" "$1"`, filepath.Join(qemu, "qemu-"+f.name), path)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	cores, _ := filepath.Glob(filepath.Join(dir, "qemu_*.core"))
	if len(cores) != 1 {
		t.Fatalf("%v: %v, %d cores\n%s", cmd, err, len(cores), out)
	}
	return cores[0]
}

// TestForeign walks cores of machines that this one is not, and compares each stack with the return addresses that the program has written down itself: of
// recursion, of frames of all sizes, of threads, and of a signal in a signal.
func TestForeign(t *testing.T) {
	oracle.Long(t)
	// Debian 12's QEMU writes no cores of RISC-V and LoongArch, and on s390x and ppc64le has handlers return to a page of its own; a newer one is large to fetch.
	newer := ""
	if oracle.Few(0, 1) == 1 {
		newer = filepath.Join(oracle.Debian(t, "sid", "amd64", "qemu-user", "qemu-user"), "usr/bin")
	}
	for _, f := range foreigns {
		t.Run(f.name+strings.Join(f.flags, ""), func(t *testing.T) {
			qemu := newer
			if qemu == "" {
				if f.m != arch.ARM && f.m != arch.I386 {
					oracle.Full(t)
				}
				oracle.Need(t, "qemu-"+f.name)
				at, _ := exec.LookPath("qemu-" + f.name)
				qemu = filepath.Dir(at)
			}
			dir := t.TempDir()
			path := f.build(t, dir)
			core := f.dump(t, qemu, dir, path)
			f.judge(t, path, core)
		})
	}
}

func (f *foreign) judge(t *testing.T, path, core string) {
	for _, interpreted := range []bool{true, false} {
		mods := modules.Interpreted()
		if !interpreted { // by compact tables
			t.Setenv("UNSPOOL_CACHE", t.TempDir())
			mods = modules.New()
		}
		mods.Files = names.Files("", nil)
		namer := names.New(names.Options{Mods: mods})
		c, err := corefile.Open(core, corefile.Options{Mods: mods.Module, Image: namer.Image, Files: mods.Files, Exe: path})
		if err != nil {
			t.Fatal(err)
		}
		p, err := stacks.Walk(&c.Process, stacks.Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.Name(namer)
		if p.Machine != f.m || len(p.Threads) != 4 || p.Signal == nil || p.Signal.Number != 11 {
			t.Errorf("%s, %d threads, signal %v", p.Machine.Name, len(p.Threads), p.Signal)
		}
		chains := f.chains(t, path, c)
		equal, all := 0, 0
		for i := range p.Threads {
			th := &p.Threads[i]
			var have []string
			for j := range th.Frames {
				have = append(have, fmt.Sprintf("%#x %s %s", uint64(th.Frames[j].PC), th.Frames[j].Name.Func, th.Frames[j].How))
			}
			which := map[bool]string{true: "main", false: "a thread"}[i == 0]
			chain := chains[0]
			if i > 0 { // the record of this thread: no two have as many frames
				deep := strings.Count(strings.Join(have, " "), " deep ")
				for _, c := range chains[1:] {
					if len(c) == deep+4 { // thread, dynamic, sized and wait_here are the others
						chain = c
					}
				}
			}
			k := 1 // frame 0 is where the thread is
			ok := true
			for j := len(chain) - 1; j >= 0 && ok; j-- {
				all++
				if k >= len(th.Frames) {
					ok = false
					break
				}
				fr := &th.Frames[k]
				if chain[j] == 4 { // the kernel's code, which the handler returns to; then where the signal came
					ok = k+1 < len(th.Frames) && th.Frames[k+1].How.Interrupted() && th.Frames[k+1].Exact
					k += 2
				} else {
					ok = uint64(fr.PC) == chain[j] && !fr.Exact
					k++
				}
				if ok {
					equal++
				}
			}
			if len(chain) < 20 || !ok {
				t.Errorf("%s, interpreted %v: frame %d of %d differs from the program's own record (%d):\n%s\nrecord %#x\nstop %v %#x; notes %q", which, interpreted, k-1, len(th.Frames), len(chain), strings.Join(have, "\n"), chain, th.Stop, th.Return, p.Notes)
			}
			reason := f.lacks[min(i, 1)]
			if whole := th.Stop == unwind.Outermost; whole != (reason == "") {
				t.Errorf("%s, interpreted %v: stop %v after %s; want a whole stack, or one that is not because %q", which, interpreted, th.Stop, strings.Join(have[max(0, len(have)-4):], "\n"), reason)
			}
		}
		if interpreted && oracle.Few(0, 1) == 1 && f.m != arch.Loong64 { // gdb 16.3 crashes on cores of LoongArch
			gdb(t, p, path, core)
		}
		t.Logf("interpreted %v: %d of %d return addresses equal", interpreted, equal, all)
		f.recorded(t, mods, c, p)
		namer.Close()
		c.Close()
		mods.Close()
	}
}

// gdb compares the stacks with those of a newer gdb than Debian 12's, which hangs at times. Beyond a signal's frame it does not get, and beyond code with
// EXIDX_CANTUNWIND it guesses.
func gdb(t *testing.T, p *stacks.Process, path, core string) {
	t.Helper()
	root := oracle.Debian(t, "trixie", "amd64", "gdb-multiarch", "gdb-multiarch")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	out, err := exec.CommandContext(ctx, filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(root, "usr/bin/gdb-multiarch"),
		"--data-directory="+filepath.Join(root, "usr/share/gdb"), "-nx", "-batch", "-ex", "set backtrace past-main on", "-ex", "thread apply all bt", path, core).Output()
	if err != nil {
		t.Fatalf("gdb: %v", err)
	}
	frame := regexp.MustCompile(`^#(\d+) +(?:0x([0-9a-f]+) in )?`)
	var threads [][]uint64 // 0: gdb leaves it out
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Thread ") {
			threads = append(threads, nil)
		} else if m := frame.FindStringSubmatch(line); m != nil && len(threads) > 0 {
			pc, _ := strconv.ParseUint(m[2], 16, 64)
			threads[len(threads)-1] = append(threads[len(threads)-1], pc)
		}
	}
	equal, all := 0, 0
	for _, have := range threads {
		best, of := -1, &p.Threads[0]
		for i := range p.Threads {
			th, n := &p.Threads[i], 0
			for n < len(have) && n < len(th.Frames) && (have[n] == 0 && n == 0 || have[n] == uint64(th.Frames[n].PC)) {
				n++
			}
			if n > best {
				best, of = n, th
			}
		}
		equal, all = equal+best, all+best
		interrupted := slices.ContainsFunc(of.Frames[min(best, len(of.Frames)):min(best+2, len(of.Frames))], func(f stacks.Frame) bool { return f.How.Interrupted() })
		guessed := best == len(of.Frames) && of.Stop == unwind.NoInfo
		if best < len(have) && !interrupted && !guessed {
			all += len(have) - best
			t.Errorf("gdb has %#x, of which %d are equal to the frames of thread %d, %v", have, best, of.TID, of.Stop)
		}
	}
	if len(threads) != 4 || equal < 90 {
		t.Errorf("gdb has %d threads, %d frames are equal", len(threads), equal)
	}
	t.Logf("gdb: %d of %d frames equal", equal, all)
}

// chains reads the program's own record from the core's memory.
func (f *foreign) chains(t *testing.T, path string, c *corefile.File) (list [][]uint64) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	at := uint64(0)
	img.Symbols(func(s module.Symbol) bool {
		if s.Name == "chains" {
			at = uint64(s.Value)
		}
		return true
	})
	word := f.m.WordSize()
	for range 4 {
		n, ok := c.Threads[0].Snapshot.Mem.Load(at)
		if !ok || n == 0 || n > 300 {
			t.Fatalf("chains at %#x: %d, %v", at, n, ok)
		}
		var chain []uint64
		for i := range n {
			v, ok := c.Threads[0].Snapshot.Mem.Load(at + word*(1+i))
			if !ok {
				t.Fatalf("the word at %#x, %d of %d in a chain, cannot be read", at+word*(1+i), i+1, n)
			}
			chain = append(chain, v&^f.m.ModeBits)
		}
		list = append(list, chain)
		at += word * 301
	}
	return list
}
