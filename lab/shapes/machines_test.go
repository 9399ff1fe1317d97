package shapes

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// machines are the kernels in which shapes are walked: those of UNSPOOL_MACHINES, names of Debian's suites or all, or where judges are
// required, the oldest in which the kernel's walk works.
var machines = []struct{ suite, arch string }{
	{"bullseye", "amd64"}, // 5.10
	{"bookworm", "amd64"}, // 6.1
	{"trixie", "amd64"},   // 6.12
	{"sid", "amd64"},      // 7.2 or later
}

// stands are the shapes that are walked there, each in a build.
var stands = [][2]string{
	{"plt", "gcc-O2"}, {"signal", "gcc-O2"}, {"altstack", "clang-O2"}, {"qsort", "gcc-O2"}, {"deep", "gcc-O2"}, {"thread", "gcc-O2"},
	{"tail", "gcc-O2-static"}, {"nested", "gcc-O2-static-pie"}, {"alloca", "gcc-O0"}, {"goroutine", "go"}, {"goclock", "go-stripped"},
}

// TestMachines walks shapes in virtual machines with other kernels: each program's stack, and all of them together by copies and in the
// kernel.
func TestMachines(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "qemu-system-x86_64", "apt-get", "dpkg", "ldd")
	chosen := os.Getenv("UNSPOOL_MACHINES")
	if chosen == "" && os.Getenv("UNSPOOL_REQUIRE_JUDGES") == "1" {
		chosen = "bullseye"
		// Mirrors drop old suites.
		if _, err := vm.Fetch(t.Context(), chosen, "amd64"); err != nil {
			t.Log(err)
			chosen = "bookworm"
		}
	}
	if chosen == "" {
		t.Skip("part of make vms: it fetches kernels")
	}
	type stand struct {
		s *shape
		b *build
		p *program
	}
	var all []stand
	var root vm.Root
	dir := t.TempDir()
	had := map[string]bool{}
	add := func(path string) {
		if had[path] {
			return
		}
		had[path] = true
		if err := root.Copy(path, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range stands {
		files, err := filepath.Glob("testdata/" + x[0] + ".*")
		more, err2 := filepath.Glob("testdata/" + x[0] + "/*.go")
		if files = append(files, more...); err != nil || err2 != nil || len(files) != 1 {
			t.Fatal(x, files, err, err2)
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
		all = append(all, stand{s, b, p})
		add(p.path)
		libs, _ := exec.Command("ldd", p.path).Output() // it fails where there are none
		for _, lib := range regexp.MustCompile(`/\S+`).FindAllString(string(libs), -1) {
			add(lib)
		}
	}
	path, err := unspool()
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Copy("/bin/unspool", path); err != nil {
		t.Fatal(err)
	}
	if err := root.Init(context.Background(), "amd64"); err != nil {
		t.Fatal(err)
	}
	command := func(name string, args ...string) vm.Step {
		return vm.Step{Name: name, Args: append([]string{"/bin/unspool"}, args...), Env: []string{"UNSPOOL_CACHE=/cache"}, Seconds: 100}
	}
	for _, m := range machines {
		if chosen != "all" && !strings.Contains(" "+chosen+" ", " "+m.suite+" ") {
			continue
		}
		t.Run(m.suite+"/"+m.arch, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			k, err := vm.Fetch(ctx, m.suite, m.arch)
			if err != nil {
				t.Fatal(err)
			}
			var steps []vm.Step
			for _, x := range all {
				// They run where the recorders leave them time; one with many threads takes most of it from the others.
				nice := 10
				if x.s.name == "thread" {
					nice = 19
				}
				steps = append(steps, vm.Step{Name: x.s.name, Args: []string{x.p.path}, Start: true, Nice: nice},
					command("live", append(stackJSON, "$PID")...))
			}
			for _, source := range []string{"perf", "ebpf"} {
				r := command(source, "record", "-a", "--source", source, "-F", "199", "--duration", "8s", "--no-inline", "-o", "/tmp/"+source+".jsonl")
				r.Files = []string{"/tmp/" + source + ".jsonl"}
				steps = append(steps, r)
			}
			began := time.Now()
			results, err := k.Boot(ctx, &root, steps)
			for _, r := range results {
				t.Logf("%s (%.1f s): %s", r.Name, r.Seconds, r.Stderr)
				if r.Exit != 0 {
					t.Errorf("%s: exit %d\n%s%s", r.Name, r.Exit, r.Stdout, r.Stderr)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			used := make([]int, len(permitted)+len(seldom))
			var tallies []tally
			live := 0
			for i, x := range all {
				ws := x.p.walksOfStacks(t, "live", results[2*i+1].Stdout, true)
				live += len(ws)
				for _, r := range results[2*len(all):] {
					got := x.p.walksOfSamples(t, r.Name, r.Files["/tmp/"+r.Name+".jsonl"], results[2*i].PID)
					if len(got) == 0 && !x.s.wait {
						t.Errorf("%s, %s: no samples", x.s.name, r.Name)
					}
					ws = append(ws, got...)
				}
				ts, _ := judge(t, x.s, x.b, ws, &mu, used)
				tallies = append(tallies, ts...)
			}
			if live < len(all) {
				t.Errorf("%d programs, and %d stacks of live ones", len(all), live)
			}
			t.Logf("Linux %s, %.0f s\n%s", k.Version, time.Since(began).Seconds(), table(tallies))
		})
	}
}
