package containers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/unspool/unspool/internal/oracle"
)

const (
	id  = "028abe43b721fa53b2f1bf9eb3fcec7c21332a2a0b84617b853306e19a7b6280"
	id2 = "d22b1ded3814f745a941f91a8dce23f73167dde1e615a0e71c1ada03d95ab0f4"

	docker = `{"StreamConfig":{},"State":{"Running":true},"ID":"x","Config":{"Env":["SECRET=7"],"Image":"shop:1.2"},"Image":"sha256:8b7d","Name":"/shop"}`
	podman = `[{"id":"x","metadata":7},{"id":"` + id + `","names":["shop"],"image":"00f2","metadata":"{\"image-name\":\"localhost/shop:1.2\",\"name\":\"shop\",\"created-at\":1}"}]`
)

func newFiles(t *testing.T) (*Files, string) {
	dir := t.TempDir()
	f := New(filepath.Join(dir, "docker"), filepath.Join(dir, "storage"))
	f.owner = uint32(os.Geteuid())
	return f, dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	oracle.Long(t)
	f, dir := newFiles(t)
	now := time.Unix(1000, 0)
	f.now = func() time.Time { return now }
	want := func(what, id string, names Names) {
		t.Helper()
		if n, ok := f.Find(id); n != names || ok != (names.Container != "") {
			t.Errorf("%s: %+v, %v, want %+v", what, n, ok, names)
		}
	}
	want("none", id, Names{})
	list, config := filepath.Join(dir, "storage/overlay-containers/containers.json"), filepath.Join(dir, "docker/containers", id2, "config.v2.json")
	put(t, list, strings.Replace(podman, `{"id":"x","metadata":7},`, "", 1))
	put(t, config, docker)
	want("still not looked for again", id, Names{})
	now = now.Add(again)
	want("podman", id, Names{"shop", "localhost/shop:1.2"})
	want("docker", id2, Names{"shop", "shop:1.2"})
	put(t, config, strings.Replace(docker, "/shop", "/bank", 1))
	want("not read again", id2, Names{"shop", "shop:1.2"})
	now = now.Add(fresh)
	want("renamed", id2, Names{"bank", "shop:1.2"})
	for what, spoil := range map[string]func() error{
		"a link":             func() error { return os.Symlink(list, config) },
		"a pipe":             func() error { return exec.Command("mkfifo", config).Run() },
		"a directory":        func() error { return os.Mkdir(config, 0o700) },
		"writable by others": func() error { put(t, config, docker); return os.Chmod(config, 0o622) },
		"another owner":      func() error { put(t, config, docker); f.owner++; return nil },
	} {
		os.Remove(config)
		now = now.Add(fresh)
		owner := f.owner
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		want(what, id2, Names{})
		f.owner = owner
	}
	want("no ID", "../"+id[3:], Names{})
	want("no ID", "", Names{})
	for i := range 2 * maxKnown {
		f.Find(fmt.Sprintf("%064x", i))
	}
	if len(f.known) > maxKnown {
		t.Errorf("%d containers", len(f.known))
	}
	var none *Files
	if n, ok := none.Find(id); ok {
		t.Errorf("Find of a nil *Files = %+v, want none", n)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(docker)
	f.Add(podman)
	f.Fuzz(func(t *testing.T, s string) {
		d, _ := decodeDocker(strings.NewReader(s))
		p, _ := decodePodman(strings.NewReader(s), id)
		for _, text := range []string{d.Container, d.Image, p.Container, p.Image} {
			if len(text) > maxName || !utf8.ValidString(text) {
				t.Errorf("%q", text)
			}
		}
	})
}

// image writes a file that is all there is of an image.
func image(t *testing.T, dir string) string {
	t.Helper()
	put(t, filepath.Join(dir, "root/hi"), "hi\n")
	oracle.Run(t, "tar", "-C", filepath.Join(dir, "root"), "-cf", filepath.Join(dir, "root.tar"), ".")
	return filepath.Join(dir, "root.tar")
}

// TestPodman: podman itself writes the list.
func TestPodman(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	oracle.Need(t, "podman", "tar")
	f, dir := newFiles(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("podman", append([]string{"--root", f.podman, "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("podman %q: %v\n%s", args, err, out)
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return lines[len(lines)-1]
	}
	run("import", image(t, dir), "localhost/shop:1.2")
	for _, name := range []string{"shop", "bank"} {
		id := run("create", "--name", name, "--env", "SECRET=7", "localhost/shop:1.2", "/hi")
		if n, ok := f.Find(id); !ok || n != (Names{name, "localhost/shop:1.2"}) {
			t.Errorf("%s: %+v, %v", id, n, ok)
		}
	}
}

// TestDocker: docker's daemon itself writes the files.
func TestDocker(t *testing.T) {
	oracle.Full(t) // it fetches 100 MB
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	bin := oracle.Debian(t, "bookworm", runtime.GOARCH, "docker", "docker.io")
	f, dir := newFiles(t)
	socket := "unix://" + filepath.Join(dir, "socket")
	env := append(os.Environ(), "PATH="+filepath.Join(bin, "usr/sbin")+":"+filepath.Join(bin, "usr/bin")+":"+os.Getenv("PATH"), "LD_LIBRARY_PATH="+filepath.Join(bin, "usr/lib/"+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+"-linux-gnu"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d := exec.Command(filepath.Join(bin, "usr/sbin/dockerd"), "--data-root", f.docker, "--exec-root", filepath.Join(dir, "exec"), "-H", socket, "--pidfile", filepath.Join(dir, "pid"), "--bridge", "none",
		"--iptables=false", "--ip6tables=false", "--storage-driver", "vfs")
	d.Env, d.Stdout, d.Stderr = env, log, log
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		d.Process.Signal(os.Interrupt)
		d.Wait()
	}()
	run := func(args ...string) (string, error) {
		c := exec.Command(filepath.Join(bin, "usr/bin/docker"), append([]string{"-H", socket}, args...)...)
		c.Env = env
		out, err := c.Output()
		return strings.TrimSpace(string(out)), err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if _, err := run("info"); err == nil {
			break
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("%s", text)
		}
	}
	if out, err := run("import", image(t, dir), "shop:1.2"); err != nil {
		t.Fatalf("docker import = %q, %v", out, err)
	}
	id, err := run("create", "--name", "shop", "-e", "SECRET=7", "shop:1.2", "/hi")
	if err != nil {
		t.Fatalf("docker create = %q, %v", id, err)
	}
	if n, ok := f.Find(id); !ok || n != (Names{"shop", "shop:1.2"}) {
		t.Errorf("%s: %+v, %v", id, n, ok)
	}
}
