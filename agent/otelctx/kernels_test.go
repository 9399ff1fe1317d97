package otelctx

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// TestKernels reads contexts under other kernels: by a memfd under each, and in private memory where the kernel names it (CONFIG_ANON_VMA_NAME). None
// waits for userfaultfd(2).
func TestKernels(t *testing.T) {
	oracle.Long(t)
	list := os.Getenv("UNSPOOL_MACHINES")
	if list == "" {
		t.Skip("this test lacks UNSPOOL_MACHINES=all (make vms)")
	}
	for name, gcc := range map[string]string{"bullseye/amd64": "gcc", "bookworm/amd64": "gcc", "sid/amd64": "gcc", "trixie/arm64": "aarch64-linux-gnu-gcc"} {
		if list != "all" && !slices.Contains(strings.Fields(list), name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			oracle.Need(t, gcc)
			suite, arch, _ := strings.Cut(name, "/")
			dir := t.TempDir()
			reader := exec.Command("go", "test", "-c", "-o", filepath.Join(dir, "reader"), ".")
			reader.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
			for _, c := range []*exec.Cmd{reader, exec.Command(gcc, "-std=c11", "-O2", "-static", "-o", filepath.Join(dir, "publish"), "testdata/publish.c")} {
				if out, err := c.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", c, err, out)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			root := &vm.Root{}
			if err := root.Init(ctx, arch); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{"reader", "publish"} {
				if err := root.Copy(file, filepath.Join(dir, file)); err != nil {
					t.Fatal(err)
				}
			}
			root.Add("payload", 0o644, payload(t, all...))
			var steps []vm.Step
			for _, mode := range []string{"memfd", "anon", "stall"} {
				steps = append(steps, vm.Step{Name: mode, Args: []string{"/publish", mode, "/payload"}, Start: true, End: true, Seconds: 60},
					vm.Step{Name: "read " + mode, Args: []string{"/reader", "$PID"}, Env: []string{asAgent + "=argument"}, Seconds: 60})
			}
			results, err := vm.New(suite, arch, oracle.Kernel(t, suite, arch)).Boot(ctx, root, steps)
			if err != nil {
				t.Fatal(err)
			}
			unnamed := false
			for _, r := range results {
				want := map[string]string{"read memfd": "shop <nil>\n", "read anon": "shop <nil>\n", "read stall": "input/output error\n"}[r.Name]
				switch got := string(r.Stdout); {
				case r.Name == "anon" && got == "no name\n": // Debian's kernels
					unnamed = true
				case r.Name == "read anon" && unnamed:
				case want == "" && got != "ready\n", !strings.HasSuffix(got, want):
					t.Errorf("%s: %q %s, want %q", r.Name, got, r.Stderr, want)
				}
			}
		})
	}
}
