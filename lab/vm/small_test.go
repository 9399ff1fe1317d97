package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestSmallMachine: an agent in a virtual machine with 256 MiB, for ten minutes, or UNSPOOL_SMALL, beside 200 programs of 10 MB, which are 2 GB on its disk.
// Every five seconds, one of them starts anew. Their tables are there, as a package or unspool compile --system makes them: in an emulated machine, making
// them takes several minutes. The kernel kills nobody, the agent and what the kernel has for it live by their limit, 99 % of the
// programs' stacks are whole, and no sample is lost.
func TestSmallMachine(t *testing.T) {
	oracle.Full(t)
	oracle.Need(t, "mke2fs", "qemu-system-x86_64")
	length := 10 * time.Minute
	if s := os.Getenv("UNSPOOL_SMALL"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	const suite, arch = "bookworm", "amd64"
	from := oracle.Debian(t, suite, arch, "modules", "linux-image-cloud-amd64")
	k := New(suite, arch, one(t, filepath.Join(from, "boot"), "vmlinuz-*"))
	k.Memory, k.Disk = "256M", filepath.Join(t.TempDir(), "disk")
	ctx, cancel := context.WithTimeout(t.Context(), length+30*time.Minute)
	defer cancel()
	var root Root
	if err := root.Init(ctx, arch); err != nil {
		t.Fatal(err)
	}
	if err := root.Modules(filepath.Join(from, "lib/modules"), "virtio_pci", "virtio_blk"); err != nil {
		t.Fatal(err)
	}
	smallDisk(t, k.Disk)
	results, err := k.Boot(ctx, &root, []Step{{Name: "small", Seconds: (length + 20*time.Minute).Seconds(), Env: []string{"UNSPOOL_CACHE=/disk/cache", "UNSPOOL_TABLES=/disk/tables"}, Args: []string{
		"/disk/small", "/disk", length.String(), "5s", "/disk/unspool", "agent", "--output", "files=/disk/ring?size=64M", "--comm", "^small"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := results[0]
	t.Logf("%s%s", r.Stdout, r.Stderr)
	if r.Exit != 0 {
		t.Fatalf("exit %d", r.Exit)
	}
	count := func(of string) int {
		m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(of) + ` (\S+)$`).FindSubmatch(r.Stdout)
		if m == nil {
			t.Fatalf("no %s", of)
		}
		f, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(f)
	}
	all, whole := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^unspool_stacks_total{stop="(.*)"} `).FindAllSubmatch(r.Stdout, -1) {
		n := count(fmt.Sprintf("unspool_stacks_total{stop=%q}", m[1]))
		if all += n; string(m[1]) == "outermost" {
			whole += n
		}
	}
	t.Logf("%v: at most %.1f MiB of its own, and %.1f in the kernel, of %.1f; %d of %d stacks are whole", length, mib(count("own_bytes")), mib(count("kernel_bytes")),
		mib(count("limit_bytes")), whole, all)
	if all < int(length/time.Second) || 100*whole < 99*all {
		t.Errorf("%d of %d stacks are whole", whole, all)
	}
	if own := count("own_bytes"); own == 0 || own+count("kernel_bytes") > count("limit_bytes") {
		t.Errorf("the agent does not live by its limit: %d bytes of its own, which must not be 0, and %d in the kernel, of %d", own, count("kernel_bytes"), count("limit_bytes"))
	}
	if killed, programs := count("killed"), count("programs"); killed > 0 || programs != smallPrograms {
		t.Errorf("%d processes were killed, %d programs are left", killed, programs)
	}
	if lost := count("unspool_lost_samples_total"); lost > 0 {
		t.Errorf("%d records were lost", lost)
	}
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

const smallPrograms = 200

// smallDisk makes a file system with the programs, their load and unspool.
func smallDisk(t *testing.T, disk string) {
	t.Helper()
	dir := t.TempDir()
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		t.Fatal(err)
	}
	paths := oracle.SmallPrograms(t, "../..", programs, smallPrograms, "-static", "-no-pie")
	for _, pkg := range []string{"cmd/unspool", "lab/vm/small"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, filepath.Base(pkg)), "github.com/unspool/unspool/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", pkg, err, out)
		}
	}
	oracle.Run(t, filepath.Join(dir, "unspool"), append([]string{"compile", "--system", "-o", filepath.Join(dir, "tables")}, paths...)...)
	oracle.Run(t, "mke2fs", "-q", "-t", "ext4", "-d", dir, disk, "3G")
}
