package oracle

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// buildPatience is how long a build may take, with what it fetches, where all processors are busy.
const buildPatience = 15 * time.Minute

// Engine returns the path of a program that judges the agent: the servers "collector" and "pyroscope", which receive profiles, "debuginfo", which
// receives files with names as Parca does, "kubernetes", which builds and decodes manifests, renders charts and makes lists of pods, "tracer",
// which publishes a process context, and "parca", the whole server. Each is a module of its own below tools, built unless it is in the user's
// cache. The collector takes a minute and a half of a processor, Parca six minutes.
func Engine(t testing.TB, name string) string {
	t.Helper()
	Need(t, "go")
	return within(t, buildPatience, "tools/"+name, func(ctx context.Context) (string, error) { return buildEngine(ctx, name) })
}

func buildEngine(ctx context.Context, name string) (string, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "tools", name)
	sum := sha256.New()
	what := "."
	for _, f := range []string{"go.mod", "go.sum", "main.go"} {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if f == "main.go" && errors.Is(err, fs.ErrNotExist) {
			what = "tool" // that go.mod names
			continue
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, f, len(b))
		sum.Write(b)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "unspool-oracle", fmt.Sprintf("%s-%x", name, sum.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid()) // others may be doing the same
	defer os.Remove(tmp)
	cmd := group(exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", tmp, what))
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)))
	}
	return path, os.Rename(tmp, path)
}
