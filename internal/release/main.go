// Command release builds a release of what is committed, for linux/amd64 and linux/arm64: the program without libraries, the drop-ins for
// libunwind, libunspool, manual pages, completions; of each machine a tar archive and a Debian package; and the SHA-256 sums of all
// of them.
//
//	release DIR
//	release -image FILE
//
// -image makes an image of the program for containers, of what is here, without a daemon.
//
// MAINTAINER='NAME <ADDRESS>' in the environment says who answers for the packages, if not the author of the commit.
//
// It builds everything twice, in clones at different places, the second time with an empty cache, and compares all bytes. lab/vm installs and
// runs the packages in virtual machines.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unspool/unspool/internal/outfile"
)

const home = "https://github.com/unspool/unspool"

func main() {
	make := release
	args := os.Args[1:]
	if len(args) == 2 && args[0] == "-image" {
		make, args = writeImage, args[1:]
	}
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: release DIR, or release -image FILE")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := make(ctx, args[0])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A built is what a place has made.
type built struct {
	machine map[string][]file // by target
	common  []file
}

func release(ctx context.Context, to string) error {
	var lacking []string
	for _, tool := range []string{"git", "make", targets[0].cc, targets[1].cc} {
		if _, err := exec.LookPath(tool); err != nil {
			lacking = append(lacking, tool)
		}
	}
	if !slices.ContainsFunc(targets, func(t target) bool { return t.arch == runtime.GOARCH }) {
		return fmt.Errorf("no program of a release runs on %s, and one must write the manual pages", runtime.GOARCH)
	}
	if len(lacking) > 0 {
		return fmt.Errorf("this machine lacks %s (on Debian: git make gcc-x86-64-linux-gnu gcc-aarch64-linux-gnu libc6-dev-arm64-cross)", strings.Join(lacking, ", "))
	}
	top, err := run(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	repository := strings.TrimSpace(string(top))
	if changes, err := run(ctx, repository, nil, "git", "status", "--porcelain"); err != nil {
		return err
	} else if len(changes) > 0 {
		fmt.Fprintf(os.Stderr, "release: what is not committed is not in it:\n%s", changes)
	}
	about, err := run(ctx, repository, nil, "git", "log", "-1", "--format=%H %ct %an <%ae>")
	if err != nil {
		return err
	}
	commit, rest, _ := strings.Cut(strings.TrimSpace(string(about)), " ")
	stamp, author, _ := strings.Cut(rest, " ")
	maintainer, err := answers(author, os.Getenv("MAINTAINER"))
	if err != nil {
		return err
	}
	if noReply.MatchString(maintainer) {
		fmt.Fprintf(os.Stderr, "release: the packages' maintainer, %s, cannot be written to: MAINTAINER='NAME <ADDRESS>' names another\n", maintainer)
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return err
	}
	when := time.Unix(seconds, 0).UTC()
	dir, err := os.MkdirTemp("", "unspool-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	env, err := settings(ctx)
	if err != nil {
		return err
	}
	env = append(env, fmt.Sprint("SOURCE_DATE_EPOCH=", seconds))
	first := place{filepath.Join(dir, "1"), slices.Concat(env, []string{"TZ=UTC"})}
	// The second build has another home, but takes the modules that are there.
	second := place{filepath.Join(dir, "the", "second"), slices.Concat(env, []string{"TZ=Asia/Tokyo", "HOME=" + dir, "GOCACHE=" + filepath.Join(dir, "cache")})}
	one, err := first.all(ctx, repository, commit)
	if err != nil {
		return err
	}
	outputs, version, err := pack(ctx, first, one, maintainer, when)
	if err != nil {
		return err
	}
	fmt.Printf("%s is built; again, elsewhere, with an empty cache\n", version)
	two, err := second.all(ctx, first.source(), commit) // the repository may have another history by now
	if err != nil {
		return err
	}
	if err := equal(one, two); err != nil {
		return err
	}
	fmt.Println("both builds are equal")
	return write(to, outputs)
}

// person is how Debian writes a maintainer, and noReply an address that takes no mail.
var (
	person  = regexp.MustCompile(`^[^<>\pC]*[^<>\pC\pZ] <[^<>@\pC\pZ]+@[^<>@\pC\pZ]+>$`)
	noReply = regexp.MustCompile(`(?i)<.*no-?reply.*>$`)
)

// answers returns who answers for the packages of a commit: the author, or who is chosen.
func answers(author, chosen string) (string, error) {
	who := cmp.Or(chosen, author)
	if !person.MatchString(who) {
		return "", fmt.Errorf("the maintainer is no NAME <ADDRESS>: %q (MAINTAINER names another)", who)
	}
	return who, nil
}

// all builds everything of a commit of a repository at a place.
func (p place) all(ctx context.Context, repository, commit string) (built, error) {
	b := built{machine: map[string][]file{}}
	if err := p.clone(ctx, repository, commit); err != nil {
		return b, err
	}
	for _, t := range targets {
		began := time.Now()
		files, err := p.build(ctx, t)
		if err != nil {
			return b, err
		}
		b.machine[t.arch] = files
		fmt.Printf("linux/%s, %.0f s\n", t.arch, time.Since(began).Seconds())
	}
	pages, err := p.pages(ctx)
	if err != nil {
		return b, err
	}
	text, err := p.licences(ctx)
	if err != nil {
		return b, err
	}
	b.common = append(pages, file{"share/doc/unspool/copyright", 0o644, text})
	for name, place := range map[string]string{"unspool-agent.service": "lib/systemd/system/", "agent.toml": configuration} {
		text, err := os.ReadFile(filepath.Join(p.source(), "deploy", "systemd", name))
		if err != nil {
			return b, err
		}
		b.common = append(b.common, file{place + name, 0o644, text})
	}
	return b, nil
}

// configuration is where a release has the agent's; a Debian package has it in /etc.
const configuration = "share/doc/unspool/examples/"

// equal says which file of two builds is not the same.
func equal(one, two built) error {
	var errs []error
	compare := func(what string, a, b []file) {
		a, b = sorted(a), sorted(b)
		for i := range max(len(a), len(b)) {
			if i >= len(a) || i >= len(b) || a[i].name != b[i].name || a[i].mode != b[i].mode {
				errs = append(errs, fmt.Errorf("two builds have other files for %s", what))
				return
			}
			if !bytes.Equal(a[i].data, b[i].data) {
				errs = append(errs, fmt.Errorf("two builds of %s for %s differ", a[i].name, what))
			}
		}
	}
	for _, t := range targets {
		compare(t.arch, one.machine[t.arch], two.machine[t.arch])
	}
	compare("all machines", one.common, two.common)
	return errors.Join(errs...)
}

// pack makes the files of a release, and returns its version.
func pack(ctx context.Context, p place, b built, maintainer string, when time.Time) (outputs []file, version string, err error) {
	info, err := buildinfo.ReadFile(p.binary(targets[0]))
	if err != nil {
		return nil, "", err
	}
	version = info.Main.Version
	if !strings.HasPrefix(version, "v") || strings.Contains(version, "dirty") {
		return nil, "", fmt.Errorf("a clone of what is committed has version %s", version)
	}
	help, err := p.run(ctx, nil, p.host(), "--help")
	if err != nil {
		return nil, "", err
	}
	long, _, _ := strings.Cut(string(help), "\n\n")
	licence, err := os.ReadFile(filepath.Join(p.source(), "LICENSE"))
	if err != nil {
		return nil, "", err
	}
	for _, t := range targets {
		depends, err := needs(b.machine[t.arch])
		if err != nil {
			return nil, "", err
		}
		files := append(b.machine[t.arch][:len(b.machine[t.arch]):len(b.machine[t.arch])], b.common...)
		name := "unspool-" + strings.TrimPrefix(version, "v") + "-linux-" + t.arch
		outputs = append(outputs, file{name + ".tar.gz", 0o644, tarball(name+"/", append(files, file{"LICENSE", 0o644, licence}), when)})
		c := control{debVersion(version), t.arch, maintainer, depends, "profiler that compiles unwind tables\n" + long}
		outputs = append(outputs, file{fmt.Sprintf("unspool_%s_%s.deb", c.Version, t.arch), 0o644, deb(c, installed(files, c, when), when)})
	}
	return outputs, version, nil
}

// installed are the files of a Debian package: all below usr, the history that Debian wants, of one entry, and what its lintian is told.
func installed(files []file, c control, when time.Time) []file {
	change := fmt.Sprintf("unspool (%s) unstable; urgency=medium\n\n  * %s/commits has all changes.\n\n -- %s  %s\n", c.Version, home, c.Maintainer, when.Format(time.RFC1123Z))
	const lintian = "# It runs in every container and in each distribution.\nunspool: statically-linked-binary [usr/bin/unspool]\n"
	out := []file{{"usr/share/doc/unspool/changelog.gz", 0o644, zip([]byte(change))}, {"usr/share/lintian/overrides/unspool", 0o644, []byte(lintian)}}
	for _, f := range files {
		if name, ok := strings.CutPrefix(f.name, configuration); ok {
			out = append(out, file{"etc/unspool/" + name, f.mode, f.data})
			continue
		}
		out = append(out, file{"usr/" + f.name, f.mode, f.data})
	}
	return out
}

// write writes the files of a release, and their sums, in place of those of a release before: sums are there only where all files are.
func write(dir string, outputs []file) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, pattern := range []string{"SHA256SUMS", "unspool-*-linux-*.tar.gz", "unspool_*.deb"} {
		old, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range old {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	var sums strings.Builder
	for _, f := range sorted(outputs) {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(f.data), f.name)
		if err := outfile.WriteFile(filepath.Join(dir, f.name), f.data, outfile.Options{}); err != nil {
			return err
		}
	}
	fmt.Print(sums.String())
	return outfile.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), outfile.Options{})
}
