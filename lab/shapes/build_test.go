package shapes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// A build is one way to make a program of a shape.
type build struct {
	name  string
	cc    string // a compiler; musl-clang for clang with musl, arm64-go for Go with that GOARCH
	flags string
	strip bool
}

// builds are all ways. A shape says which of them cannot make it.
var builds = []build{
	{"gcc-O0", "gcc", "-O0", false},
	{"gcc-O1", "gcc", "-O1", false},
	{"gcc-O2", "gcc", "-O2", false},
	{"gcc-O3", "gcc", "-O3", false},
	{"gcc-Os", "gcc", "-Os", false},
	{"gcc-O2-fp", "gcc", "-O2 -fno-omit-frame-pointer", false},
	{"gcc-O2-nopie", "gcc", "-O2 -fno-pie -no-pie", false},
	{"gcc-O2-static", "gcc", "-O2 -static", false},
	{"gcc-O2-static-pie", "gcc", "-O2 -static-pie -fPIE", false},
	{"gcc-O2-cet", "gcc", "-O2 -fcf-protection=full", false},
	{"gcc-O2-lto", "gcc", "-O2 -flto", false},
	{"gcc-O2-lld", "gcc", "-O2 -fuse-ld=lld -B/usr/lib/llvm-19/bin", false},
	{"gcc-O2-stripped", "gcc", "-O2", true},
	{"gcc-O2-now", "gcc", "-O2 -Wl,-z,now -fno-plt", false},
	{"gcc-O2-debugframe", "gcc", "-O2 -g -fno-asynchronous-unwind-tables -fno-exceptions", false},
	{"gcc-O2-protected", "gcc", "-O2 -fstack-protector-all -fstack-clash-protection", false},
	{"clang-O0", "clang", "-O0", false},
	{"clang-O1", "clang", "-O1", false},
	{"clang-O2", "clang", "-O2", false},
	{"clang-O3", "clang", "-O3", false},
	{"clang-Os", "clang", "-Os", false},
	{"clang-O2-fp", "clang", "-O2 -fno-omit-frame-pointer", false},
	{"clang-O2-static-pie", "clang", "-O2 -static-pie -fPIE", false},
	{"clang-O2-lto", "clang", "-O2 -flto -fuse-ld=lld --ld-path=/usr/lib/llvm-19/bin/ld.lld", false},
	{"clang-O2-stripped", "clang", "-O2 -fuse-ld=lld --ld-path=/usr/lib/llvm-19/bin/ld.lld", true},
	{"musl-gcc-O0", "musl-gcc", "-O0", false},
	{"musl-gcc-O2", "musl-gcc", "-O2", false},
	{"musl-gcc-O2-static", "musl-gcc", "-O2 -static", false},
	{"musl-gcc-O2-static-stripped", "musl-gcc", "-O2 -static", true},
	{"musl-clang-O2", "musl-clang", "-O2", false},
	{"tcc", "tcc", "-g", false},
	{"go", "go", "", false},
	{"go-stripped", "go", "", true},
	{"go-pie", "go", "-buildmode=pie", false},
	{"rustc-O", "rustc", "-O", false},
	{"rustc-debug", "rustc", "-g", false},
	{"rustc-stripped", "rustc", "-O -C panic=abort", true},
}

// cross are builds for AArch64, whose programs run in virtual machines only.
var cross = []build{
	{"arm64-gcc-O0", "aarch64-linux-gnu-gcc", "-O0", false},
	{"arm64-gcc-O2", "aarch64-linux-gnu-gcc", "-O2", false},
	{"arm64-gcc-O2-static", "aarch64-linux-gnu-gcc", "-O2 -static", false},
	{"arm64-gcc-O2-static-pie", "aarch64-linux-gnu-gcc", "-O2 -static-pie -fPIE", false},
	{"arm64-gcc-O2-pac", "aarch64-linux-gnu-gcc", "-O2 -mbranch-protection=standard", false},
	{"arm64-go", "arm64-go", "", false},
	{"arm64-go-stripped", "arm64-go", "", true},
}

// few are the builds that are walked on every commit: for each shape one of them in turn, and with musl, which gdb hardly knows, another one. make
// shapes walks all.
var few = [][]string{
	{"gcc-O2", "clang-O2-fp", "musl-gcc-O2-static", "gcc-O0", "clang-O1"},
	{"clang-O2", "musl-gcc-O2", "gcc-Os", "gcc-O2-static-pie", "clang-O2-stripped"},
}

// A shape is a program's source and what it says of itself.
type shape struct {
	name   string
	file   string
	truth  []truth // any of them
	link   []string
	not    []string // prefixes of builds
	only   []string // builds, where not all of them make sense
	wait   bool     // it waits: there is nothing to sample
	runs   bool     // it is recorded from its start to its end, and not walked otherwise
	libs   []string // libraries of the same source, each with that name defined
	gdb    bool     // gdb is known never to agree
	source string
}

// A truth is a chain, of the builds whose names match.
type truth struct {
	builds *regexp.Regexp
	chain  string // a regular expression
}

// chains returns the expression of a shape's chains in a build.
func (s *shape) chains(b *build) string {
	var or []string
	for _, x := range s.truth {
		if x.builds.MatchString(b.name) {
			or = append(or, x.chain)
		}
	}
	return strings.Join(or, "|")
}

// right says whether a walk found one of a shape's chains.
func (s *shape) right(b *build, w walk) bool {
	return regexp.MustCompile("^(?:" + s.chains(b) + ")$").MatchString(w.chain)
}

var directive = regexp.MustCompile(`^// (chain|link|not|builds|waits|runs|libraries|gdb)(?: \[(.*)\])?: *(.*)$`)

// readShape reads the lines at the beginning of a source: name: value.
func readShape(t testing.TB, file string) *shape {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &shape{name: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), file: file, source: string(b)}
	if filepath.Ext(file) == ".go" {
		s.name = filepath.Base(filepath.Dir(file)) // a package of its own
	}
	for line := range strings.Lines(s.source) {
		m := directive.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			break
		}
		switch v := m[3]; m[1] {
		case "chain":
			s.truth = append(s.truth, truth{regexp.MustCompile(m[2]), pattern(v)})
		case "link":
			s.link = strings.Fields(v)
		case "not":
			s.not = append(s.not, strings.Fields(v)[0])
		case "builds":
			s.only = strings.Fields(v)
		case "waits":
			s.wait = true
		case "runs":
			s.runs = true
		case "libraries":
			s.libs = strings.Fields(v)
		case "gdb":
			s.gdb = true
		}
	}
	if len(s.truth) == 0 {
		t.Fatalf("%s: no chain", file)
	}
	return s
}

// takes says whether a build can make the shape.
func (s *shape) takes(b *build) bool {
	language := map[string]string{"go": ".go", "arm64-go": ".go", "rustc": ".rs"}[b.cc]
	if ext := filepath.Ext(s.file); language != "" && language != ext || language == "" && !strings.HasPrefix(ext, ".c") {
		return false
	}
	for _, p := range s.not {
		if strings.HasPrefix(b.name, p) {
			return false
		}
	}
	return len(s.only) == 0 || slices.Contains(s.only, b.name)
}

// A program is a shape as it was built.
type program struct {
	path  string
	names symbols // before it was stripped
	libs  map[string]symbols
}

// make compiles a shape.
func (b *build) make(t testing.TB, s *shape, dir string) *program {
	t.Helper()
	src, err := filepath.Abs(s.file)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{path: filepath.Join(dir, s.name), libs: map[string]symbols{}}
	cc := b.cc
	switch b.cc {
	case "clang", "musl-clang":
		cc = "clang-19"
	case "arm64-go":
		cc = "go"
	}
	if strings.HasSuffix(src, ".cc") {
		cc = map[string]string{"gcc": "g++", "clang": "clang++-19", "aarch64-linux-gnu-gcc": "aarch64-linux-gnu-g++"}[b.cc]
	}
	oracle.Need(t, cc)
	args := strings.Fields(b.flags)
	switch b.cc {
	case "go", "arm64-go":
		args = append([]string{"build"}, args...)
	case "gcc", "clang", "musl-gcc", "musl-clang", "aarch64-linux-gnu-gcc":
		args = append(args, "-Wall", "-Wextra")
	}
	for _, name := range s.libs {
		lib := p.path + "." + name
		oracle.Run(t, cc, append(args, "-shared", "-fPIC", "-D"+name, "-o", lib, src)...)
		p.libs[lib] = readSymbols(t, lib)
	}
	if b.cc == "musl-clang" {
		// clang has no wrapper for musl: it compiles with musl's headers, and musl-gcc links.
		object := p.path + ".o"
		oracle.Run(t, cc, append(args, "-nostdinc", "-isystem", "/usr/include/x86_64-linux-musl", "-fPIE", "-c", "-o", object, src)...)
		cc, src = "musl-gcc", object
		oracle.Need(t, cc)
	}
	args = append(args, "-o", p.path, src)
	if b.cc == "tcc" {
		args = append([]string{"-I" + filepath.Dir(src)}, args...)
	}
	args = append(args, s.link...)
	strip := "strip"
	if b.cc == "arm64-go" {
		// Without cgo, as everywhere where no C compiler for that machine is known.
		cc, args, strip = "env", append([]string{"GOARCH=arm64", "CGO_ENABLED=0", "go"}, args...), "aarch64-linux-gnu-strip"
	}
	oracle.Run(t, cc, args...)
	p.names = readSymbols(t, p.path)
	if b.strip {
		oracle.Run(t, strip, p.path)
	}
	return p
}

// unspool compiles the program once, for the machine that runs it.
var unspool = sync.OnceValues(func() (string, error) { return compile(runtime.GOARCH) })

// unspoolArm64 compiles it for AArch64.
var unspoolArm64 = sync.OnceValues(func() (string, error) { return compile("arm64") })

func compile(arch string) (string, error) {
	path := filepath.Join(made, "unspool-"+arch)
	cmd := exec.Command("go", "build", "-o", path, "github.com/unspool/unspool/cmd/unspool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v\n%s", err, out)
	}
	return path, nil
}

// made is the directory of what all tests share.
var made string
