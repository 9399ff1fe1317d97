package oracle

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	patience = 5 * time.Minute  // for a fetch
	briefly  = 15 * time.Second // for one after a fetch that took longer: enough for what is in the cache
)

var (
	stalled atomic.Bool // a fetch took longer than patience
	failed  sync.Map    // what could not be fetched, with its error: it is not tried again
)

// Fetched returns what fetch gets from a server or finds in the cache. Where fetch fails, or takes too long, the test lacks what.
func Fetched[T any](t testing.TB, what string, fetch func(context.Context) (T, error)) (x T) {
	t.Helper()
	limit := patience
	if stalled.Load() {
		limit = briefly
	}
	return within(t, limit, what, fetch)
}

func within[T any](t testing.TB, limit time.Duration, what string, fetch func(context.Context) (T, error)) (x T) {
	t.Helper()
	err, met := failed.Load(what)
	if !met {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var e error
		if x, e = fetch(ctx); e == nil {
			return x
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			stalled.Store(true)
			e = fmt.Errorf("not fetched in %v: %w", limit, e)
		}
		failed.Store(what, e)
		err = e
	}
	Lacks(t, fmt.Sprintf("%s: %v", what, err))
	return x
}

// The scripts print a path. They take the suite, the machine and where files are kept.
var (
	//go:embed debian.sh
	debianScript string
	//go:embed kernel.sh
	kernelScript string
	//go:embed source.sh
	sourceScript string
)

// Debian returns the directory with the files of packages of a suite of Debian, and of all packages that they depend on. They are fetched unless they
// are in the cache. Directories of one suite with other packages have another name.
func Debian(t testing.TB, suite, arch, name string, packages ...string) (dir string) {
	t.Helper()
	Need(t, "apt-get", "dpkg", "tar", "flock")
	return Fetched(t, fmt.Sprintf("%s of Debian %s for %s", strings.Join(packages, ", "), suite, arch), func(ctx context.Context) (string, error) {
		return shell(ctx, debianScript, suite, arch, name, packages...)
	})
}

// Source returns the directory with those files of a source package of a suite of Debian whose paths match a pattern of tar's; each pattern must match a
// file. Beside the directory is the package's description (.dsc). They are fetched unless they are in the cache.
func Source(t testing.TB, suite, name, pkg string, patterns ...string) (dir string) {
	t.Helper()
	Need(t, "apt-get", "tar", "xz", "flock")
	return Fetched(t, fmt.Sprintf("the source of %s of Debian %s", pkg, suite), func(ctx context.Context) (string, error) {
		return shell(ctx, sourceScript, suite, "-", name, append([]string{pkg}, patterns...)...)
	})
}

// Kernel returns the path of the kernel for clouds of a suite of Debian, as FetchKernel does.
func Kernel(t testing.TB, suite, arch string) (image string) {
	t.Helper()
	Need(t, "apt-get", "dpkg", "flock")
	return Fetched(t, fmt.Sprintf("the kernel of Debian %s for %s", suite, arch), func(ctx context.Context) (string, error) {
		return FetchKernel(ctx, suite, arch)
	})
}

// FetchKernel fetches the kernel for clouds of a suite of Debian, unless it is in the cache.
func FetchKernel(ctx context.Context, suite, arch string) (image string, err error) {
	return shell(ctx, kernelScript, suite, arch, "")
}

// shell runs a script, and returns what it prints. When ctx ends, so does all that the script started.
func shell(ctx context.Context, script, suite, arch, name string, packages ...string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cmd := group(exec.CommandContext(ctx, "sh", append([]string{"-s", suite, arch, filepath.Join(cache, "unspool-kernels", name)}, packages...)...))
	cmd.Stdin = strings.NewReader(script)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// group has a command killed with all that it started: otherwise they would keep its output open, and locks.
func group(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// Files returns the paths of all regular files below a directory that are wanted, sorted. There must be one.
func Files(t testing.TB, dir string, want func(path string) bool) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && want(path) {
			list = append(list, path)
		}
		return err
	})
	if err != nil || len(list) == 0 {
		t.Fatalf("%d wanted files below %s: %v", len(list), dir, err)
	}
	slices.Sort(list)
	return list
}

// Run runs a command that must succeed, and returns its standard output.
func Run(t testing.TB, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, out, stderr.Bytes())
	}
	return out
}
