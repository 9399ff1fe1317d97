package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/store"
)

// TestTriggers: the package asks to be told of each directory where software is installed, and its scripts name the directories that the program does.
func TestTriggers(t *testing.T) {
	text := map[string]string{}
	for _, f := range scripts() {
		text[f.name] = string(f.data)
	}
	for _, dir := range []string{"/bin", "/lib", "/usr/bin", "/usr/lib", "/usr/sbin", "/usr/libexec", "/opt"} {
		if !strings.Contains(text["triggers"], "\ninterest-noawait "+dir+"\n") {
			t.Errorf("no trigger for %s", dir)
		}
	}
	if !strings.Contains(text["postinst"], "\ntables="+store.MachineDir+"\n") || !strings.Contains(text["postinst"], ":"+store.PackageDir+" ") {
		t.Errorf("postinst: %s", text["postinst"])
	}
	if !strings.Contains(text["postrm"], "rm -rf "+store.MachineDir+"\n") {
		t.Errorf("postrm: %s", text["postrm"])
	}
}

// TestTrigger has dpkg install the package in a clean Debian. The first recording there compiles nothing. Another package's program gets its table
// when it is installed, and the table goes with it. Purge removes all tables.
func TestTrigger(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "dpkg-deb", "chroot", "unshare", "cp", "go")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who installs packages")
	}
	if runtime.GOARCH != "amd64" {
		oracle.Lacks(t, "an x86-64 machine")
	}
	from := oracle.Debian(t, "bookworm", "amd64", "", "dpkg", "dash", "coreutils", "diffutils", "gzip", "libc-bin", "libc6", "libgcc-s1")
	root := filepath.Join(t.TempDir(), "root")
	oracle.Run(t, "cp", "-a", from, root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "unspool")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", exe, "github.com/unspool/unspool/cmd/unspool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	c := someDeb
	c.Arch = "amd64"
	if err := os.WriteFile(filepath.Join(root, "unspool.deb"), deb(c, []file{{"usr/bin/unspool", 0o755, program}, {"usr/share/doc/unspool/copyright", 0o644, nil}}, someTime), 0o644); err != nil {
		t.Fatal(err)
	}
	// Another package has a program with a table of its own.
	other := filepath.Join(root, "other")
	for name, data := range map[string]string{"DEBIAN/control": "Package: other\nVersion: 1\nArchitecture: amd64\nMaintainer: A <a@example.org>\nDescription: other\n", "other.c": "int main(void) { return 0; }\n"} {
		path := filepath.Join(other, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	oracle.Need(t, "gcc")
	if err := os.MkdirAll(filepath.Join(other, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-o", filepath.Join(other, "usr/bin/other"), filepath.Join(other, "other.c"))
	if err := os.Remove(filepath.Join(other, "other.c")); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "dpkg-deb", "--root-owner-group", "-b", other, filepath.Join(root, "other.deb"))

	in := func(script string) string {
		t.Helper()
		// With processes and the file system of tracing, as a machine has them.
		const begin = "mkdir -p $0/proc $0/sys $0/dev $0/tmp $0/usr/bin && mount -t proc proc $0/proc && mount --rbind /sys $0/sys && mount --rbind /dev $0/dev && exec chroot $0 /bin/sh -ec \"$1\""
		cmd := exec.Command("unshare", "--mount", "sh", "-c", begin, root, script)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	count := func() (n int) {
		found, err := filepath.Glob(filepath.Join(root, store.MachineDir, "*-own-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	t.Log(in("dpkg -i /unspool.deb"))
	before := count()
	if before < 50 {
		t.Fatalf("%d tables after the installation", before)
	}
	const loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; ls -lR /usr >/dev/null"
	for _, source := range []string{"perf", "ebpf"} {
		out := in("rm -rf /cache; UNSPOOL_CACHE=/cache unspool record --source " + source + " -o /tmp/x.folded -- sh -c '" + loop + "' 2>&1 || echo FAILED; ls /cache; cat /tmp/x.folded | head -3")
		if strings.Contains(out, "FAILED") {
			t.Logf("cannot record by %s here: %s", source, out)
			continue
		}
		if strings.Contains(out, "-own-") || strings.Contains(out, "-any-") || !strings.Contains(out, " samples · ") {
			t.Errorf("the first recording by %s:\n%s", source, out)
		}
		t.Logf("%s: 0 tables compiled\n%s", source, out)
	}
	t.Log(in("dpkg -i /other.deb"))
	if n := count(); n != before+1 {
		t.Errorf("%d tables with another package, %d before", n, before)
	}
	in("dpkg -r other")
	if n := count(); n != before {
		t.Errorf("%d tables without it, %d before", n, before)
	}
	in("dpkg -r unspool")
	if n := count(); n != before {
		t.Errorf("%d tables after removal, %d before", n, before)
	}
	in("dpkg -P unspool")
	if _, err := os.Stat(filepath.Join(root, store.MachineDir)); !os.IsNotExist(err) {
		t.Errorf("after purge: %v", err)
	}
	// Who has removed the directory has no more tables.
	in("dpkg -i /unspool.deb && rm -r " + store.MachineDir + " && dpkg -i /other.deb && dpkg -i /unspool.deb")
	if n := count(); n != 0 {
		t.Errorf("%d tables, though the directory was removed", n)
	}
}
