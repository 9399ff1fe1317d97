package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// inside are the packages that a machine has before: dpkg -i needs dpkg and a shell, and the checks need cmp and gzip.
var inside = []string{"dpkg", "dash", "coreutils", "diffutils", "gzip", "libc-bin", "libc6", "libgcc-s1"}

// An install is a step that judges a package.
type install struct {
	name   string
	sh     string // a command of the shell
	user   int
	status int
	out    string // what it prints, as an expression
}

// installs are the steps, in their order. VERSION and MACHINE stand for the package's version and for the machine.
var installs = []install{
	{name: "install", sh: "dpkg -i /package.deb 2>&1", out: `(?s)^Selecting .*\nSetting up unspool \(VERSION\) \.\.\.\n$`},
	{name: "installed", sh: `dpkg-query -W -f '${Status} ${Version}' unspool`, out: `^install ok installed VERSION$`},
	{name: "files", sh: "dpkg -V unspool", out: `^$`},
	{name: "dependencies", sh: "dpkg --audit unspool", out: `^$`},
	{name: "version", sh: "unspool --version", out: `^unspool version v\d\S+( \w+)?\ncommit   [0-9a-f]{40} of \S+Z\nbuilt    by go\S+ for linux/ARCH\n` +
		`walks    x86_64, aarch64\nkernel   BPF program for MACHINE\ntables   version \d+\ndrop-in  /usr/lib/unspool\n$`},
	// This machine's program wrote the pages of all.
	{name: "pages", sh: `unspool man /tmp/man && cd /tmp/man && for f in *; do gzip -dc /usr/share/man/man1/$f.gz | cmp - $f || exit 1; done
		[ $(ls /tmp/man | wc -l) = $(ls /usr/share/man/man1/unspool* | wc -l) ] && echo $(ls | wc -l)`, out: `^[1-9]\d\n$`},
	{name: "completions", sh: `unspool completion bash | cmp - /usr/share/bash-completion/completions/unspool &&
		unspool completion zsh | cmp - /usr/share/zsh/vendor-completions/_unspool &&
		unspool completion fish | cmp - /usr/share/fish/vendor_completions.d/unspool.fish`, out: `^$`},
	{name: "doctor", sh: "unspool doctor --quick", out: `(?m)^  yes  unspool run`},
	{name: "agent", sh: "test -f /usr/lib/systemd/system/unspool-agent.service && unspool agent --config /etc/unspool/agent.toml 2>&1", status: 2, out: `^unspool: name an engine with --output`},
	{name: "record", sh: `unspool record -o /tmp/x.folded -- sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done' && cat /tmp/x.folded`, out: `(?m)^sh;\S.* \d+$`},
	{name: "verify", sh: "unspool verify /usr/lib/unspool /usr/bin/dash", user: 1000, out: `\d`},
	{name: "without the drop-in", sh: "/frames 2>&1", status: 127, out: `libunwind\.so\.8`},
	{name: "drop-in", sh: "unspool run -- /frames", user: 1000, out: `^/usr/lib/unspool/libunwind\.so\.8\n1[1-5] frames\n$`},
	{name: "LLVM's libunwind", sh: "unspool run -- /llvm", user: 1000, out: `^/usr/lib/unspool/libunwind\.so\.1\n1[1-5] frames\n$`},
	{name: "exceptions", sh: `unspool run --exceptions -- cat /proc/self/maps`,
		user: 1000, out: `(?m)r-xp .*/usr/lib/unspool/libunspool_eh\.so$`},
	{name: "libunspool", sh: "/here", out: `(?m)^#0 .* main\+0x`},
	{name: "remove", sh: "dpkg -r unspool 2>&1", out: `Removing unspool \(VERSION\) \.\.\.\n$`},
	{name: "removed", sh: "ls -d /usr/bin/unspool /usr/lib/unspool /usr/share/doc/unspool /usr/share/man/man1 /usr/share/fish 2>/dev/null", status: 2, out: `^$`},
	{name: "archive", sh: "mkdir /opt && tar -xzf /package.tar.gz -C /opt --strip-components 1 && /opt/bin/unspool run -- /frames",
		out: `^/opt/lib/unspool/libunwind\.so\.8\n1[1-5] frames\n$`},
}

// TestInstall installs the packages of a release, in UNSPOOL_RELEASE, by dpkg in virtual machines of Debian, and runs what is in them.
func TestInstall(t *testing.T) {
	release := os.Getenv("UNSPOOL_RELEASE")
	if release == "" {
		t.Skip("part of make release: it fetches packages of Debian")
	}
	oracle.Need(t, "apt-get", "dpkg", "sha256sum")
	sums := exec.Command("sha256sum", "--strict", "-c", "SHA256SUMS")
	sums.Dir = release
	if out, err := sums.CombinedOutput(); err != nil || strings.Count(string(out), ": OK\n") != 4 {
		t.Fatalf("SHA256SUMS: %v\n%s", err, out)
	}
	for _, m := range []struct{ suite, arch, machine, emulator string }{
		{"bookworm", "amd64", "x86_64", "qemu-system-x86_64"},
		{"trixie", "arm64", "aarch64", "qemu-system-aarch64"},
	} {
		t.Run(m.suite+"/"+m.arch, func(t *testing.T) {
			t.Parallel() // QEMU takes one processor for each
			oracle.Need(t, m.emulator, m.machine+"-linux-gnu-gcc")
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			k := New(m.suite, m.arch, oracle.Kernel(t, m.suite, m.arch))
			root := tree(t, oracle.Debian(t, m.suite, m.arch, "", inside...))
			if err := root.Init(ctx, m.arch); err != nil {
				t.Fatal(err)
			}
			deb := one(t, release, "unspool_*_"+m.arch+".deb")
			policy(t, deb)
			version := strings.Split(filepath.Base(deb), "_")[1]
			files := map[string]string{
				"/package.deb": deb, "/package.tar.gz": one(t, release, "unspool-*-linux-"+m.arch+".tar.gz"), "/frames": frames(t, deb, m.machine, "libunwind.so.8"), "/llvm": frames(t, deb, m.machine, "libunwind.so.1", "-DLLVM"),
				"/here": here(t, deb, m.machine),
			}
			for name, from := range files {
				if err := root.Copy(name, from); err != nil {
					t.Fatal(err)
				}
			}
			var steps []Step
			for _, s := range installs {
				steps = append(steps, Step{Name: s.name, Args: []string{"/bin/sh", "-c", s.sh}, User: s.user, Seconds: 1200,
					Env: []string{"PATH=/usr/sbin:/usr/bin", "LC_ALL=C", fmt.Sprint("UNSPOOL_CACHE=/tmp/cache", s.user)}})
			}
			results, err := k.Boot(ctx, root, steps)
			fill := strings.NewReplacer("VERSION", regexp.QuoteMeta(version), "MACHINE", m.machine, "ARCH", m.arch)
			for i, r := range results {
				t.Logf("%s (%.1f s)", r.Name, r.Seconds)
				if s := installs[i]; r.Exit != s.status || !regexp.MustCompile(fill.Replace(s.out)).Match(r.Stdout) {
					t.Errorf("%s: exit %d, want %d\n%swant %s\n%s", s.sh, r.Exit, s.status, r.Stdout, fill.Replace(s.out), r.Stderr)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("Linux %s\n%s", k.Version, results[4].Stdout)
		})
	}
}

// policy has Debian's judge of packages look at one. It is no judge of .ci/judges: it comes with 120 packages of Perl.
func policy(t *testing.T, deb string) {
	t.Helper()
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Log("not judged by lintian, which this machine lacks")
	} else if out, err := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", deb).CombinedOutput(); err != nil {
		t.Errorf("lintian: %v\n%s", err, out)
	}
}

// one returns the only file of a pattern.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	return found[0]
}

// tree is a root with all files below a directory.
func tree(t *testing.T, dir string) *Root {
	t.Helper()
	var r Root
	if err := r.Tree(dir); err != nil {
		t.Fatal(err)
	}
	return &r
}

// frames builds a program that uses libunwind or LLVM's, of which only a package's drop-in is there.
func frames(t *testing.T, deb, machine, library string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "frames")
	for _, args := range [][]string{
		{"dpkg", "-x", deb, dir},
		append([]string{machine + "-linux-gnu-gcc", "-O1", "-o", program, "testdata/frames.c", filepath.Join(dir, "usr/lib/unspool", library)}, flags...),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	return program
}

// here builds a program that uses a package's libunspool. unspool.pc tells it where the library is here, and where it will be installed.
func here(t *testing.T, deb, machine string) string {
	t.Helper()
	oracle.Need(t, "pkg-config", "dpkg")
	dir := t.TempDir()
	if out, err := exec.Command("dpkg", "-x", deb, dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg: %v\n%s", err, out)
	}
	cmd := exec.Command("pkg-config", "--define-variable=rpath=/usr/lib/unspool/native", "--cflags", "--libs", "unspool")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(dir, "usr/share/pkgconfig"))
	config, err := cmd.Output()
	if err != nil {
		t.Fatalf("pkg-config: %v", err)
	}
	program := filepath.Join(dir, "here")
	args := append([]string{"-o", program, "../../runtime/examples/here.c"}, strings.Fields(string(config))...)
	if out, err := exec.Command(machine+"-linux-gnu-gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", machine, err, out)
	}
	return program
}
