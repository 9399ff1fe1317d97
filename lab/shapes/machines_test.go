package shapes

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// machines are the kernels in which programs are walked: those of UNSPOOL_MACHINES, such as "bookworm/amd64 trixie/arm64" or all. Where judges
// are required and nothing is said, those that always are; the newest kernel may fail without a fault of ours, and is tried by .ci/run.
var machines = []machine{
	{"bullseye", "amd64", []string{"perf", "ebpf"}, checked}, // 5.10
	{"bookworm", "amd64", []string{"perf", "ebpf"}, walked},  // 6.1
	{"trixie", "amd64", []string{"perf", "ebpf"}, never},     // 6.12
	{"sid", "amd64", []string{"perf", "ebpf"}, never},        // 7.2 or later
	{"bullseye", "arm64", []string{"perf", "ebpf"}, never},
	{"bookworm", "arm64", []string{"perf", "ebpf"}, never},
	{"trixie", "arm64", []string{"perf", "ebpf"}, checked},
	{"trixie-16k", "arm64", []string{"perf", "ebpf"}, never}, // pages of 16 KiB
	{"sid", "arm64", []string{"perf", "ebpf"}, never},
}

// What is done on a machine where nothing is said.
const (
	never   = iota
	walked  // shapes are walked
	checked // and checks are made
)

// A machine is a kernel of a Debian suite on an architecture.
type machine struct {
	suite, arch string
	sources     []string // that walk stacks there
	always      int
}

func (m machine) name() string { return m.suite + "/" + m.arch }

// blind says that the kernel cannot copy the stacks of threads that wait: it is older than 5.18.
func (m machine) blind() bool { return m.suite == "bullseye" }

// chosen are the names of the machines to boot, such as bookworm/amd64.
func chosen(t *testing.T) (names []string) {
	switch list := os.Getenv("UNSPOOL_MACHINES"); {
	case list == "all":
		for _, m := range machines {
			names = append(names, m.name())
		}
	case list != "":
		names = strings.Fields(list)
	case os.Getenv("UNSPOOL_REQUIRE_JUDGES") != "1":
		t.Skip("part of make vms: it fetches kernels")
	default:
		for _, m := range machines {
			if m.always != never {
				names = append(names, m.name())
			}
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(machines, func(m machine) bool { return m.name() == name }) {
			t.Fatalf("UNSPOOL_MACHINES: there is no %s", name)
		}
	}
	return names
}

// stands are the shapes that are walked there, each in a build.
var stands = map[string][][2]string{
	"amd64": {
		{"plt", "gcc-O2"}, {"signal", "gcc-O2"}, {"altstack", "clang-O2"}, {"qsort", "gcc-O2"}, {"deep", "gcc-O2"}, {"thread", "gcc-O2"},
		{"tail", "gcc-O2-static"}, {"nested", "gcc-O2-static-pie"}, {"alloca", "gcc-O0"}, {"goroutine", "go"}, {"goclock", "go-stripped"},
		{"deeper", "gcc-O2"}, {"reload", "gcc-O2"},
	},
	"arm64": {
		{"plt", "arm64-gcc-O2"}, {"signal", "arm64-gcc-O2"}, {"altstack", "arm64-gcc-O2-pac"}, {"qsort", "arm64-gcc-O2-pac"},
		{"deep", "arm64-gcc-O2"}, {"thread", "arm64-gcc-O2"}, {"tail", "arm64-gcc-O2-static"}, {"nested", "arm64-gcc-O2-static-pie"},
		{"alloca", "arm64-gcc-O0"}, {"deeper", "arm64-gcc-O2"}, {"reload", "arm64-gcc-O2"},
		{"goroutine", "arm64-go"}, {"goclock", "arm64-go-stripped"},
	},
}

// more are those that are walked where machines are named, as by make vms.
var more = map[string][][2]string{
	"amd64": {{"loaded", "gcc-O2"}, {"vdso", "gcc-O2"}},
	"arm64": {{"loaded", "arm64-gcc-O2"}, {"vdso", "arm64-gcc-O2"}, {"throw", "arm64-gcc-O2-pac"}},
}

// A stand is a program that a machine runs.
type stand struct {
	s *shape
	b *build
	p *program
}

// A stage is the programs of an architecture, and a root with them.
type stage struct {
	root   vm.Root
	had    map[string]bool
	stands []stand
}

// add adds a file, at the same place, and the libraries that it needs.
func (g *stage) add(t *testing.T, path, arch string) {
	t.Helper()
	files := []string{path}
	if arch == "amd64" {
		libs, _ := exec.Command("ldd", path).Output() // it fails where there are none
		files = append(files, regexp.MustCompile(`/\S+`).FindAllString(string(libs), -1)...)
	}
	for _, file := range files {
		if !g.had[file] {
			g.had[file] = true
			if err := g.root.Copy(file, file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if arch == "arm64" {
		g.addArm64(t, path)
	}
}

// addArm64 adds the libraries that a program for AArch64 needs from those that its compiler links with.
func (g *stage) addArm64(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	need, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if f.Section(".interp") != nil {
		need = append(need, "ld-linux-aarch64.so.1")
	}
	for _, name := range need {
		from := filepath.Join("/usr/aarch64-linux-gnu/lib", name)
		if g.had[name] {
			continue
		}
		g.had[name] = true
		if err := g.root.Copy(filepath.Join("/lib", name), from); err != nil {
			t.Fatal(err)
		}
		g.addArm64(t, from)
	}
}

// addRuntime adds the drop-ins where unspool run finds them, libunspool, and a program that uses each. Of this machine's, packages cmd/unspool and
// runtime/test have the tests.
func (g *stage) addRuntime(t *testing.T, dir, cc string) {
	t.Helper()
	libraries := []string{"libunwind.so.8", "libunwind-aarch64.so.8", "libunspool.so"}
	args := []string{"-s", "-C", "../../runtime", "CC=" + cc, "BUILD=" + dir}
	for _, name := range libraries {
		args = append(args, filepath.Join(dir, name))
	}
	oracle.Run(t, "make", args...)
	oracle.Run(t, cc, "-O1", "-o", filepath.Join(dir, "frames"), "../vm/testdata/frames.c", filepath.Join(dir, "libunwind.so.8"))
	oracle.Run(t, cc, "-O1", "-I../../runtime", "-o", filepath.Join(dir, "other"), "../../runtime/examples/other.c", filepath.Join(dir, "libunspool.so"))
	for _, to := range []string{"/lib/unspool/" + libraries[0], "/lib/unspool/" + libraries[1], "/lib/" + libraries[2], framesProgram, otherProgram} {
		name := filepath.Base(to)
		g.had[name] = true
		if err := g.root.Copy(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		g.addArm64(t, filepath.Join(dir, name))
	}
}

// stageFor builds the programs.
func stageFor(t *testing.T, arch string) *stage {
	t.Helper()
	g := &stage{had: map[string]bool{}}
	dir := t.TempDir()
	list := stands[arch]
	if os.Getenv("UNSPOOL_MACHINES") != "" {
		list = slices.Concat(list, more[arch])
	}
	for _, x := range list {
		files, err := filepath.Glob("testdata/" + x[0] + ".*")
		more, err2 := filepath.Glob("testdata/" + x[0] + "/*.go")
		if files = append(files, more...); err != nil || err2 != nil || len(files) != 1 {
			t.Fatalf("shape %s has the sources %q, %v, %v, want 1", x[0], files, err, err2)
		}
		s, b := readShape(t, files[0]), byName(x[1])
		if !s.takes(b) {
			t.Fatalf("%s cannot be built by %s", s.name, b.name)
		}
		at := filepath.Join(dir, x[0])
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		p := b.make(t, s, at)
		g.stands = append(g.stands, stand{s, b, p})
		g.add(t, p.path, arch)
		for lib := range p.libs {
			g.add(t, lib, arch)
		}
	}
	compile, cc := unspool, "gcc"
	if arch == "arm64" {
		compile, cc = unspoolArm64, "aarch64-linux-gnu-gcc"
	}
	program := filepath.Join(dir, "checks")
	flags := []string{"-O2", "-static", "-o", program, "testdata/machine/checks.c"}
	if arch == "arm64" {
		flags = append(flags, "-mbranch-protection=standard", "-Wl,--eh-frame-hdr") // signed return addresses, and what libunspool looks for
	}
	oracle.Run(t, cc, flags...)
	if err := g.root.Copy(checksProgram, program); err != nil {
		t.Fatal(err)
	}
	if arch == "arm64" {
		planted := filepath.Join(dir, "planted")
		oracle.Run(t, cc, "-static", "-nostdlib", "-o", planted, "../../shadow/testdata/planted_arm64.s")
		if err := g.root.Copy(plantedProgram, planted); err != nil {
			t.Fatal(err)
		}
		g.addRuntime(t, dir, cc)
	}
	path, err := compile()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.root.Copy("/bin/unspool", path); err != nil {
		t.Fatal(err)
	}
	if err := g.root.Init(context.Background(), arch); err != nil {
		t.Fatal(err)
	}
	return g
}

// command is a step that runs the program.
func command(name string, args ...string) vm.Step {
	return vm.Step{Name: name, Args: append([]string{"/bin/unspool"}, args...), Env: []string{"UNSPOOL_CACHE=/cache"}, Seconds: 300}
}

// TestMachines walks shapes in virtual machines with other kernels: each program's stack, and all of them together by copies and in the
// kernel; before that, it makes checks.
func TestMachines(t *testing.T) {
	oracle.Long(t)
	names := chosen(t)
	oracle.Need(t, "apt-get", "dpkg", "ldd", "make")
	stages := map[string]*stage{}
	for _, m := range machines {
		if slices.Contains(names, m.name()) && stages[m.arch] == nil {
			oracle.Need(t, map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[m.arch])
			stages[m.arch] = stageFor(t, m.arch)
		}
	}
	for _, m := range machines {
		if slices.Contains(names, m.name()) {
			t.Run(m.name(), func(t *testing.T) {
				if os.Getenv("UNSPOOL_MACHINES") != "" { // else, other packages are tested meanwhile
					t.Parallel()
				}
				m.walks(t, stages[m.arch])
			})
		}
	}
}

// dropped says that the oldest suite is not to be had: the next machine makes its checks.
var dropped bool

// walks boots a machine and judges what its kernel gives.
func (m machine) walks(t *testing.T, g *stage) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	image, err := oracle.FetchKernel(ctx, m.suite, m.arch)
	if err != nil && os.Getenv("UNSPOOL_MACHINES") == "" && m.suite == "bullseye" {
		dropped = true
		t.Skip("this test lacks a kernel, because mirrors drop old suites: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	k := vm.New(m.suite, m.arch, image)
	var tried []check
	if os.Getenv("UNSPOOL_MACHINES") != "" || m.always == checked || dropped {
		tried = checks(m)
	}
	var steps []vm.Step
	for _, c := range tried {
		steps = append(steps, c.step)
	}
	for _, x := range g.stands {
		// They run where the recorders leave them time: so many of them take as much as a recorder at a niceness of 10.
		steps = append(steps, vm.Step{Name: x.s.name, Args: []string{x.p.path}, Start: true, Nice: 19},
			command("live", append(stackJSON, "$PID")...))
	}
	for _, source := range m.sources {
		r := command(source, "record", "-a", "--source", source, "-F", "199", "--no-inline", "-o", "/tmp/"+source+".jsonl", "--", checksProgram, "until", "5")
		r.Files = []string{"/tmp/" + source + ".jsonl"}
		steps = append(steps, r)
	}
	if len(tried) == 0 { // else, there was off-cpu-all. Beside the programs, which do not wait, it takes twice as long.
		waits := command("waits", "record", "-a", "--off-cpu", "--duration", "2s", "--no-inline", "-o", "/tmp/waits.folded")
		waits.End = true
		steps = append(steps, waits)
	}
	began := time.Now()
	results, err := k.Boot(ctx, &g.root, steps)
	for i, r := range results {
		t.Logf("%s (%.1f s): %s", r.Name, r.Seconds, r.Stderr)
		exit := 0
		if i < len(tried) {
			exit = tried[i].exit
		}
		if r.Exit != exit {
			t.Errorf("%s: exit %d\n%s%s", r.Name, r.Exit, r.Stdout, r.Stderr)
		} else if i < len(tried) && tried[i].judge != nil {
			t.Run(r.Name, func(t *testing.T) { tried[i].judge(t, r) })
		}
		if bytes.Contains(r.Stderr, []byte("refuses")) {
			t.Errorf("%s: a verifier's refusal: %s", r.Name, r.Stderr)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	results = results[len(tried):]
	var mu sync.Mutex
	used := make([]int, len(permitted)+len(seldom))
	var tallies []tally
	live := 0
	for i, x := range g.stands {
		ws := x.p.walksOfStacks(t, "live", results[2*i+1].Stdout, true)
		live += len(ws)
		for _, r := range results[2*len(g.stands):][:len(m.sources)] {
			got := x.p.walksOfSamples(t, r.Name, r.Files["/tmp/"+r.Name+".jsonl"], results[2*i].PID)
			if len(got) == 0 && !x.s.wait {
				t.Errorf("%s, %s: no samples", x.s.name, r.Name)
			}
			ws = append(ws, got...)
		}
		ts, _ := judge(t, x.s, x.b, ws, &mu, used)
		tallies = append(tallies, ts...)
	}
	if live < len(g.stands) {
		t.Errorf("%d programs, and %d stacks of live ones", len(g.stands), live)
	}
	t.Logf("Linux %s, %.0f s\n%s", k.Version, time.Since(began).Seconds(), table(tallies))
}
