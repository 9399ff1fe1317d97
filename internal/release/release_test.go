package main

import (
	"bytes"
	"crypto/sha256"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

var (
	someFiles = []file{
		{"usr/share/doc/unspool/copyright", 0o644, []byte("nobody's\n")},
		{"usr/bin/unspool", 0o755, bytes.Repeat([]byte("program"), 5000)},
		{"usr/lib/unspool/libunwind.so.8", 0o644, []byte("lib")}, // an odd length
		{"etc/unspool/agent.toml", 0o644, []byte("# nothing\n")},
	}
	someTime = time.Unix(1795441531, 0).UTC()
	someDeb  = control{"1.2.4~0.20261123134531.4920ef4e5ab7", "arm64", "A. Maintainer <a@example.org>", []string{"libc6 (>= 2.34)", "libgcc-s1"}, "phrase\n" + strings.Repeat("Sentence one. ", 6) + "\n\nSentence\ntwo."}
)

// TestDeb: dpkg-deb reads the package, and finds what was put in.
func TestDeb(t *testing.T) {
	oracle.Need(t, "dpkg-deb", "md5sum")
	dir := t.TempDir()
	path := filepath.Join(dir, "x.deb")
	if err := os.WriteFile(path, deb(someDeb, someFiles, someTime), 0o644); err != nil {
		t.Fatal(err)
	}
	ask := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("dpkg-deb", args...)
		cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	const fields = `Package: unspool
Version: 1.2.4~0.20261123134531.4920ef4e5ab7
Architecture: arm64
Maintainer: A. Maintainer <a@example.org>
Installed-Size: 48
Depends: libc6 (>= 2.34), libgcc-s1
Section: devel
Priority: optional
Homepage: ` + home + `
Description: phrase
 Sentence one. Sentence one. Sentence one. Sentence one. Sentence one. Sentence
 one.
 .
 Sentence two.
`
	if got := ask("--field", path); got != fields {
		t.Errorf("fields:\n%s\nwant\n%s", got, fields)
	}
	const contents = `drwxr-xr-x root/root         0 2026-11-23 13:45 ./
drwxr-xr-x root/root         0 2026-11-23 13:45 ./etc/
drwxr-xr-x root/root         0 2026-11-23 13:45 ./etc/unspool/
-rw-r--r-- root/root        10 2026-11-23 13:45 ./etc/unspool/agent.toml
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/bin/
-rwxr-xr-x root/root     35000 2026-11-23 13:45 ./usr/bin/unspool
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/lib/
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/lib/unspool/
-rw-r--r-- root/root         3 2026-11-23 13:45 ./usr/lib/unspool/libunwind.so.8
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/share/
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/share/doc/
drwxr-xr-x root/root         0 2026-11-23 13:45 ./usr/share/doc/unspool/
-rw-r--r-- root/root         9 2026-11-23 13:45 ./usr/share/doc/unspool/copyright
`
	if got := ask("--contents", path); got != contents {
		t.Errorf("contents:\n%s\nwant\n%s", got, contents)
	}
	if got := ask("--info", path, "conffiles"); got != "/etc/unspool/agent.toml\n" {
		t.Errorf("conffiles: %q", got)
	}
	for _, f := range scripts() {
		if got := ask("--info", path, f.name); got != string(f.data) || f.mode&1 != 0 && !strings.HasPrefix(got, "#!/bin/sh\n") {
			t.Errorf("%s: %q", f.name, got)
		}
	}
	ask("--raw-extract", path, filepath.Join(dir, "root"))
	for _, f := range someFiles {
		if b, err := os.ReadFile(filepath.Join(dir, "root", f.name)); err != nil || !bytes.Equal(b, f.data) {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	check := exec.Command("md5sum", "-c", "DEBIAN/md5sums")
	check.Dir = filepath.Join(dir, "root")
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != len(someFiles) {
		t.Errorf("md5sums: %v\n%s", err, out)
	}
}

// TestSameBytes: archives of the same files are the same, whatever the order of the files, the time of day and the user.
func TestSameBytes(t *testing.T) {
	reversed := slices.Clone(someFiles)
	slices.Reverse(reversed)
	a, b := deb(someDeb, someFiles, someTime), deb(someDeb, reversed, someTime)
	if !bytes.Equal(a, b) {
		t.Errorf("the same files in another order make another package: %d bytes, SHA-256 %x; want %d, %x", len(b), sha256.Sum256(b), len(a), sha256.Sum256(a))
	}
	if a, b := tarball("x/", someFiles, someTime), tarball("x/", reversed, someTime); !bytes.Equal(a, b) {
		t.Errorf("the same files in another order make another archive: %d bytes, SHA-256 %x; want %d, %x", len(b), sha256.Sum256(b), len(a), sha256.Sum256(a))
	}
	if bytes.Equal(a, deb(someDeb, someFiles, someTime.Add(time.Second))) {
		t.Errorf("packages of commits at %v and a second later are the same %d bytes: a package does not have the time of its commit", someTime, len(a))
	}
}

// TestTarball: tar reads the archive, whose files are in one directory.
func TestTarball(t *testing.T) {
	oracle.Need(t, "tar")
	cmd := exec.Command("tar", "-tz")
	cmd.Stdin = bytes.NewReader(tarball("name/", []file{{"b/c", 0o644, nil}, {"a", 0o644, nil}}, someTime))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "name/\nname/a\nname/b/\nname/b/c\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDebVersion: versions of Go's are in the same order for dpkg.
func TestDebVersion(t *testing.T) {
	oracle.Need(t, "dpkg")
	order := []string{
		"v0.0.0-20261123134531-4920ef4e5ab7", "v0.0.0-20261124000000-0000004e5ab7", "v0.1.0-rc.1", "v0.1.0-rc.1.0.20261125000000-4920ef4e5ab7",
		"v0.1.0", "v0.1.1-0.20261126000000-4920ef4e5ab7", "v0.1.1", "v0.10.0", "v1.0.0-alpha", "v1.0.0",
	}
	for i := range order[1:] {
		a, b := debVersion(order[i]), debVersion(order[i+1])
		if out, err := exec.Command("dpkg", "--compare-versions", a, "lt", b).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s is not before %s: %v\n%s", a, b, err, out)
		}
	}
	if got := debVersion(order[0]); got != "0.0.0~20261123134531.4920ef4e5ab7" {
		t.Errorf("debVersion(%s) = %q, want 0.0.0~20261123134531.4920ef4e5ab7", order[0], got)
	}
}

// TestNeeds: a library's packages are found in it; a program with libraries, and a library of another package, are refused.
func TestNeeds(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	compile := func(name, source string, flags ...string) file {
		t.Helper()
		c, out := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.out")
		if err := os.WriteFile(c, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
		if text, err := exec.Command("gcc", append([]string{"-o", out, c}, flags...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return file{name: name, data: b}
	}
	// pthread_cond_clockwait is of glibc 2.30, and of 2.34 since it is in the C library itself.
	lib := compile("lib/a", "int pthread_cond_clockwait(); int f(void) { return pthread_cond_clockwait(); }", "-shared", "-fPIC")
	static := compile("bin/a", "int main(void) {}", "-static")
	archive := file{name: "lib/a.a", data: []byte("!<arch>\n")}
	// The loader knows the library by its name.
	if err := os.WriteFile(filepath.Join(dir, "libours.so"), lib.data, 0o644); err != nil {
		t.Fatal(err)
	}
	second := compile("lib/d/libsecond.so", "int f(void); int g(void) { return f(); }", "-shared", "-fPIC", "-L"+dir, "-lours")
	ours := lib
	ours.name = "lib/d/libours.so"
	if got, err := needs([]file{ours, second, static, archive}); err != nil || len(got) != 1 || got[0] != "libc6 (>= 2.34)" {
		t.Errorf("%q, %v", got, err)
	}
	for want, f := range map[string]file{
		"bin/b is not static":                 compile("bin/b", "int main(void) {}"),
		"lib/d/libsecond.so needs libours.so": second,
		"lib/b needs libm.so.6, of":           compile("lib/b", "double f(void) { return 1; }", "-shared", "-fPIC", "-Wl,--no-as-needed", "-lm"),
		"lib/c: bad magic number '[110 111 ":  {name: "lib/c", data: []byte("no ELF file, but text of some length")},
	} {
		if _, err := needs([]file{f}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestEqual: a byte, a name or a mode that two builds do not share is an error.
func TestEqual(t *testing.T) {
	of := func(f file) built { return built{machine: map[string][]file{"amd64": {f}}} }
	a := file{"a", 0o644, []byte("a")}
	if err := equal(of(a), of(a)); err != nil {
		t.Error(err)
	}
	for _, b := range []file{{"a", 0o644, []byte("b")}, {"b", 0o644, []byte("a")}, {"a", 0o755, []byte("a")}} {
		if equal(of(a), of(b)) == nil {
			t.Errorf("%v equals %v", a, b)
		}
	}
	if equal(of(a), built{}) == nil {
		t.Errorf("a build of the file %v equals one without files", a)
	}
}

// TestApache: of a licence that refers to the text of another, all other text stays.
func TestApache(t *testing.T) {
	const text = "Copyright A\n TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION\n 1. Text"
	for in, want := range map[string]string{
		text + "\n END OF TERMS AND CONDITIONS\nCopyright B\n": "Copyright A\n X\nCopyright B\n",
		text:               "Copyright A\n X",
		"Copyright C\nMIT": "Copyright C\nMIT",
	} {
		if got := apache.ReplaceAllString(in, "X"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSettings: neither what `go env -w` has set nor a repository that the environment names gets into a place.
func TestSettings(t *testing.T) {
	set := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(set, []byte("GOAMD64=v3\nGONOSUMDB=example.org\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"GOENV": set, "GOAMD64": "", "GONOSUMDB": "", "GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere"} {
		t.Setenv(name, value)
	}
	env, err := settings(t.Context())
	if err != nil || !slices.Contains(env, "GONOSUMDB=example.org") {
		t.Fatalf("settings = %q, %v, want GONOSUMDB=example.org among them", env, err)
	}
	if out, err := run(t.Context(), ".", env, "go", "env", "GOAMD64", "GONOSUMDB"); err != nil || string(out) != "v1\nexample.org\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := run(t.Context(), ".", env, "env"); err != nil || strings.Contains("\n"+string(out), "\nGIT_") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestKilled: a command that takes too long ends with all that it has started, and the error says so.
func TestKilled(t *testing.T) {
	oracle.Long(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer func(was time.Duration) { patience = was }(patience)
	patience = 500 * time.Millisecond
	_, err = run(t.Context(), ".", nil, "sh", "-c", `exec 3>"$0"; echo began >&3; sleep 1000; true`, fifo)
	if err == nil || !strings.Contains(err.Error(), ": not done in 500ms\n") {
		t.Errorf("run of a sleep = %v, want not done in 500ms", err)
	}
	r.SetReadDeadline(time.Now().Add(20 * time.Second))
	// At its end, no process has the FIFO open.
	if b, err := io.ReadAll(r); err != nil || string(b) != "began\n" && len(b) > 0 {
		t.Errorf("%q, %v", b, err)
	}
}

// TestClone: a place has the commit that it is to have, whatever happens to the repository, and the next place takes the commit from there.
func TestClone(t *testing.T) {
	oracle.Need(t, "git")
	repository := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		out, err := run(t.Context(), repository, nil, append([]string{"git", "-c", "user.name=A", "-c", "user.email=a@example.org"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "one")
	git("tag", "v1.2.3")
	commit := git("rev-parse", "HEAD")
	first, second := place{dir: filepath.Join(t.TempDir(), "1")}, place{dir: filepath.Join(t.TempDir(), "2")}
	git("commit", "-q", "--allow-empty", "-m", "two")
	if err := first.clone(t.Context(), repository, commit); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(repository); err != nil {
		t.Fatal(err)
	}
	if err := second.clone(t.Context(), first.source(), commit); err != nil {
		t.Fatal(err)
	}
	for _, p := range []place{first, second} {
		if out, err := p.run(t.Context(), nil, "git", "log", "-1", "--format=%H", "v1.2.3"); err != nil || strings.TrimSpace(string(out)) != commit {
			t.Errorf("%s: %q, %v", p.dir, out, err)
		}
		if out, err := p.run(t.Context(), nil, "git", "rev-parse", "HEAD"); err != nil || strings.TrimSpace(string(out)) != commit {
			t.Errorf("%s: %q, %v", p.dir, out, err)
		}
	}
}

// TestUnion: each module that is in the program of any target is found once; one whose source is elsewhere is an error.
func TestUnion(t *testing.T) {
	a, b, c := &debug.Module{Path: "a"}, &debug.Module{Path: "b"}, &debug.Module{Path: "c", Replace: &debug.Module{}}
	got, err := union([]*debug.BuildInfo{{Deps: []*debug.Module{b}}, {Deps: []*debug.Module{a, b}}})
	if err != nil || !slices.Equal(got, []*debug.Module{a, b}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := union([]*debug.BuildInfo{{}, {Deps: []*debug.Module{c}}}); err == nil {
		t.Errorf("module %s, whose source is elsewhere, is no error: union finds %d modules", c.Path, len(got))
	}
}

// TestWrite: where a file of a release cannot be written, no sums of one before are left.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	old := []string{"SHA256SUMS", "unspool_1_amd64.deb"}
	for _, name := range old {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dir, []file{{"unspool_2_amd64.deb", 0o644, nil}, {"without/directory", 0o644, nil}}); err == nil {
		t.Fatalf("without/directory is written, although %s has no directory of this name; want an error", dir)
	}
	for _, name := range old {
		if _, err := os.Stat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMaintainer: the author of a commit answers for its packages, or another person. What is no field of Debian's is refused, and an address that
// takes no mail is noticed.
func TestMaintainer(t *testing.T) {
	const author = "A. Maintainer <a@example.org>"
	for _, c := range []struct{ author, chosen, want string }{
		{author, "", author},
		{author, "Zoë O'Brien, Ltd. <z@example.org>", "Zoë O'Brien, Ltd. <z@example.org>"},
		{"root <>", author, author},
		{"root <>", "", ""},
		{author, "a@example.org", ""},
		{author, " <a@example.org>", ""},
		{author, "A <a@example.org>\nDepends: b", ""},
		{author, "A\nDepends: b <a@example.org>", ""},
		{author, "A <a@example.org>, B <b@example.org>", ""},
	} {
		if got, err := answers(c.author, c.chosen); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q, %q\n got  %q, %v\n want %q", c.author, c.chosen, got, err, c.want)
		}
	}
	for who, want := range map[string]bool{author: false, "Noreply <a@example.org>": false, "A <1+a@users.noreply.example.org>": true, "A <No-Reply@example.org>": true} {
		if noReply.MatchString(who) != want {
			t.Errorf("%s takes no mail: want %v", who, want)
		}
	}
}
