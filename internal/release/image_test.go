package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/oracle"
)

// TestImage: skopeo reads the image for each machine, and copies its files. The same files make the same image.
func TestImage(t *testing.T) {
	oracle.Need(t, "skopeo", "tar")
	files := func(arch string) []file {
		return []file{{"usr/bin/unspool", 0o755, []byte("for " + arch)}, {"usr/share/doc/unspool/LICENSE", 0o644, []byte("terms")}}
	}
	b := image(map[string][]file{"amd64": files("amd64"), "arm64": files("arm64")}, "v1", someTime)
	reversed := files("arm64")
	slices.Reverse(reversed)
	if again := image(map[string][]file{"arm64": reversed, "amd64": files("amd64")}, "v1", someTime); !bytes.Equal(b, again) {
		t.Errorf("the same files in another order make an image of other bytes: %d, SHA-256 %x; want %d, %x", len(again), sha256.Sum256(again), len(b), sha256.Sum256(b))
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "image.tar")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		to := filepath.Join(dir, arch)
		oracle.Run(t, "skopeo", "copy", "--insecure-policy", "--override-arch", arch, "oci-archive:"+path, "dir:"+to)
		var m manifest
		var c imageConfig
		read := func(name string, v any) {
			text, err := os.ReadFile(filepath.Join(to, name))
			if err == nil {
				err = json.Unmarshal(text, v)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		read("manifest.json", &m)
		read(strings.TrimPrefix(m.Config.Digest, "sha256:"), &c)
		if c.Architecture != arch || !c.Created.Equal(someTime) {
			t.Errorf("%s: %+v", arch, c)
		}
		if len(m.Layers) != 1 {
			t.Fatalf("%s: %+v", arch, m)
		}
		layer := filepath.Join(to, strings.TrimPrefix(m.Layers[0].Digest, "sha256:"))
		if list := string(oracle.Run(t, "tar", "-tf", layer)); list != "usr/\nusr/bin/\nusr/bin/unspool\nusr/share/\nusr/share/doc/\nusr/share/doc/unspool/\nusr/share/doc/unspool/LICENSE\n" {
			t.Errorf("%s: %q", arch, list)
		}
		if got := string(oracle.Run(t, "tar", "-xOf", layer, "usr/bin/unspool")); got != "for "+arch {
			t.Errorf("%s: %q", arch, got)
		}
	}
}

// TestImageRuns: podman runs the image with the rights that the manifests for Kubernetes give, on a root that is read only, and the agent's profiles have
// the names of a program outside.
func TestImageRuns(t *testing.T) {
	oracle.Full(t)
	oracle.Need(t, "podman", "runc", "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	c := exec.Command("go", "run", "./internal/release", "-image", filepath.Join(dir, "image.tar"))
	c.Dir = "../.."
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	src, exe := filepath.Join(dir, "spins.c"), filepath.Join(dir, "spins")
	if err := os.WriteFile(src, []byte("volatile unsigned long n; __attribute__((noinline)) void spins_here(void) { for (;;) n++; } int main(void) { spins_here(); }"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-o", exe, src)
	spins := exec.Command(exe)
	if err := spins.Start(); err != nil {
		t.Fatal(err)
	}
	defer spins.Wait()
	defer spins.Process.Kill()
	podman := func(args ...string) *exec.Cmd {
		return exec.Command("podman", append([]string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs"}, args...)...)
	}
	if text, err := podman("load", "-i", filepath.Join(dir, "image.tar")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var rights []string
	for _, r := range caps.Agent() {
		rights = append(rights, strings.ToLower(strings.TrimPrefix(r.Name, "CAP_")))
	}
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	run := podman("run", "--rm", "--name", "agent", "--pid", "host", "--network", "none", "--read-only", "--cap-drop", "all", "--cap-add", strings.Join(rights, ","), "--security-opt", "seccomp=unconfined",
		"--security-opt", "no-new-privileges", "--tmpfs", "/var/cache/unspool", "-v", out+":/out", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "unspool:latest",
		"agent", "--output", "files=/out", "--interval", "1s", "--comm", "^spins$")
	var text strings.Builder
	run.Stdout, run.Stderr = &text, &text
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	var files []string
	for end := time.Now().Add(2 * time.Minute); len(files) < 2 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		files, _ = filepath.Glob(filepath.Join(out, "unspool-*-spins.pb.gz"))
	}
	if stopped, err := podman("stop", "-t", "30", "agent").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, stopped)
	}
	run.Wait()
	if len(files) < 2 || !strings.Contains(text.String(), "walking stacks in the kernel") {
		t.Fatalf("%d profiles\n%s", len(files), text.String())
	}
	got := string(oracle.Run(t, "go", "run", "../../cmd/unspool", "report", files[1], "--format", "folded"))
	if !strings.Contains(got, ";main;spins_here") {
		t.Errorf("%s\n%s", got, text.String())
	}
}
