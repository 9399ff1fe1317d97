package main

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A target is a machine that a release is for, as Go and Debian call it, as its compiler does, and that compiler.
type target struct{ arch, machine, cc string }

var targets = []target{
	{"amd64", "x86_64", "x86_64-linux-gnu-gcc"},
	{"arm64", "aarch64", "aarch64-linux-gnu-gcc"},
}

// A place is where a release is built: a clone of the repository, with directories and an environment of its own.
type place struct {
	dir string   // the clone is in its directory src
	env []string // besides that of this process
}

// unset are variables that change what compilers make. All of Git's are unset, too: they may name another repository.
var unset = []string{"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS", "CPPFLAGS", "LDFLAGS", "GOEXPERIMENT", "GOFIPS140", "GOWORK", "CPATH", "C_INCLUDE_PATH",
	"LIBRARY_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "DEPENDENCIES_OUTPUT"}

// patience is how long a command may take. The longest build the program: a minute on two idle cores, six at a load of 30.
var patience = 2 * time.Hour

// run runs a command in a directory and returns what it prints. A command that is killed, because ctx is done or patience is over, ends with all that it
// has started.
func run(ctx context.Context, dir string, env []string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done in %v", patience))
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(unset, name) || strings.HasPrefix(name, "GIT_")
	})
	cmd.Env = append(append(cmd.Env, "LC_ALL=C", "GOFLAGS=-mod=readonly", "GOWORK=off"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(args, " "), cmp.Or(context.Cause(ctx), err), out, stderr.Bytes())
	}
	return out, nil
}

// settings returns the settings of Go that say where modules and Go itself come from, as its user has them, for the environment of a place. There
// are no others there: `go env -w` may have set what changes a program.
func settings(ctx context.Context) ([]string, error) {
	env := []string{"GOENV=off"}
	for _, name := range []string{"GOMODCACHE", "GOPROXY", "GONOSUMDB", "GOSUMDB", "GOTOOLCHAIN"} {
		value, err := run(ctx, ".", nil, "go", "env", name)
		if err != nil {
			return nil, err
		}
		env = append(env, name+"="+strings.TrimSpace(string(value)))
	}
	return env, nil
}

func (p place) run(ctx context.Context, env []string, args ...string) ([]byte, error) {
	return run(ctx, p.source(), append(slices.Clone(p.env), env...), args...)
}

// source is the place's clone of the repository.
func (p place) source() string { return filepath.Join(p.dir, "src") }

// clone makes the place's copy of a commit of a repository.
func (p place) clone(ctx context.Context, repository, commit string) error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return err
	}
	_, err := run(ctx, p.dir, nil, "git", "clone", "-q", "--no-hardlinks", repository, p.source())
	if err == nil {
		_, err = p.run(ctx, nil, "git", "checkout", "-q", "--detach", commit)
	}
	return err
}

// binary is where the program of a target is built.
func (p place) binary(t target) string { return filepath.Join(p.dir, "unspool-"+t.arch) }

// host is the program for this machine.
func (p place) host() string { return p.binary(target{arch: runtime.GOARCH}) }

// build builds the program and the libraries of a target.
func (p place) build(ctx context.Context, t target) ([]file, error) {
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + t.arch, "GOAMD64=v1", "GOARM64=v8.0"}
	// Without symbols and DWARF: Go's own table names functions and lines.
	if _, err := p.run(ctx, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", p.binary(t), "./cmd/unspool"); err != nil {
		return nil, err
	}
	// The drop-ins and libunspool, as runtime/Makefile installs them.
	stage := filepath.Join(p.dir, "stage-"+t.arch)
	if _, err := p.run(ctx, nil, "make", "-s", "-C", "runtime", "install", "BUILD="+filepath.Join(p.dir, "lib-"+t.arch), "DESTDIR="+stage, "PREFIX=/", "NATIVE=/unspool/native",
		"CC="+t.cc, "CFLAGS=-O2 -s -ffile-prefix-map="+p.source()+"=."); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(p.binary(t))
	if err != nil {
		return nil, err
	}
	files := []file{{"bin/unspool", 0o755, program}}
	if err := fs.WalkDir(os.DirFS(stage), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(stage, name))
		if strings.HasPrefix(name, "share/man/") {
			name, b = name+".gz", zip(b)
		}
		files = append(files, file{name, 0o644, b})
		return err
	}); err != nil {
		return nil, err
	}
	for _, f := range files {
		if bytes.Contains(f.data, []byte(p.dir)) {
			return nil, fmt.Errorf("%s for %s names %s, where it was built", f.name, t.arch, p.dir)
		}
	}
	return files, nil
}

// pages makes what the program writes itself: manual pages, and completions for shells where Debian's shells look for them. That of this machine
// writes them for all: lab/vm compares them with what the others write.
func (p place) pages(ctx context.Context) ([]file, error) {
	program := p.host()
	man := filepath.Join(p.dir, "man")
	if _, err := p.run(ctx, nil, program, "man", man); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(man)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(man, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, file{"share/man/man1/" + e.Name() + ".gz", 0o644, zip(b)})
	}
	for shell, name := range map[string]string{
		"bash": "share/bash-completion/completions/unspool",
		"zsh":  "share/zsh/vendor-completions/_unspool",
		"fish": "share/fish/vendor_completions.d/unspool.fish",
	} {
		b, err := p.run(ctx, nil, program, "completion", shell)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name, 0o644, b})
	}
	return files, nil
}

// apache is the text of a licence that a Debian package refers to. Some projects leave out its end.
var apache = regexp.MustCompile(`(?s)TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION.*?(?:END OF TERMS AND CONDITIONS|$)`)

// union returns the modules that are in any of the programs, by path. The programs are of one build.
func union(programs []*buildinfo.BuildInfo) ([]*debug.Module, error) {
	byPath := map[string]*debug.Module{}
	for _, info := range programs {
		for _, m := range info.Deps {
			if m.Replace != nil {
				return nil, fmt.Errorf("%s is replaced: its licence is not known", m.Path)
			}
			byPath[m.Path] = m
		}
	}
	return slices.SortedFunc(maps.Values(byPath), func(a, b *debug.Module) int { return cmp.Compare(a.Path, b.Path) }), nil
}

// licences returns the licences of all that is in the programs of all targets: of this project, of modules, of Go's library.
func (p place) licences(ctx context.Context) ([]byte, error) {
	var programs []*buildinfo.BuildInfo
	for _, t := range targets {
		info, err := buildinfo.ReadFile(p.binary(t))
		if err != nil {
			return nil, err
		}
		programs = append(programs, info)
	}
	deps, err := union(programs)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "unspool: %s\nCopyright: the authors of unspool\nLicense: Apache-2.0\n Its text is in the archive's LICENSE, or on Debian in /usr/share/common-licenses/Apache-2.0.\n\n", home)
	b.WriteString("The program contains Go's own library and these modules.\n")
	add := func(name, dir string) error {
		var texts []string
		for _, pattern := range []string{"LICEN[CS]E*", "COPYING*", "NOTICE*"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				return err
			}
			texts = append(texts, found...)
		}
		if len(texts) == 0 {
			return fmt.Errorf("%s has no licence in %s", name, dir)
		}
		for _, path := range texts {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = apache.ReplaceAll(text, []byte("[as Apache-2.0 above]"))
			fmt.Fprintf(&b, "\n---- %s, %s ----\n\n%s\n", name, filepath.Base(path), bytes.TrimSpace(text))
		}
		return nil
	}
	root, err := p.run(ctx, nil, "go", "env", "GOROOT")
	if err == nil {
		err = add("Go "+programs[0].GoVersion, strings.TrimSpace(string(root)))
	}
	if err != nil {
		return nil, err
	}
	list := []string{"go", "list", "-m", "-f", "{{.Dir}}"}
	for _, m := range deps {
		list = append(list, m.Path)
	}
	out, err := p.run(ctx, nil, list...)
	dirs := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(dirs) != len(deps) {
		return nil, errors.Join(err, fmt.Errorf("%d modules are in %d directories", len(deps), len(dirs)))
	}
	for i, m := range deps {
		if err := add(m.Path+" "+m.Version, dirs[i]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// needs returns the Debian packages that shared objects need. The program needs none: it is an error if it is not static. What is neither in bin
// nor a library in lib is no ELF file; an archive's members need nothing of their own. Libraries may need each other.
func needs(files []file) ([]string, error) {
	packages := map[string]string{"libc.so.6": "libc6", "libgcc_s.so.1": "libgcc-s1", "ld-linux-x86-64.so.2": "libc6", "ld-linux-aarch64.so.1": "libc6"}
	newest := 0 // version of glibc that a symbol needs: 2.newest
	had := map[string]bool{}
	for _, f := range files {
		if !strings.HasPrefix(f.name, "bin/") && !strings.HasPrefix(f.name, "lib/") || strings.HasSuffix(f.name, ".a") {
			continue
		}
		e, err := elf.NewFile(bytes.NewReader(f.data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		if !strings.HasPrefix(f.name, "lib/") {
			if slices.ContainsFunc(e.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC }) {
				return nil, fmt.Errorf("%s is not static", f.name)
			}
			continue
		}
		libs, err := e.ImportedLibraries()
		symbols, err2 := e.ImportedSymbols()
		if err = errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		for _, lib := range libs {
			if slices.ContainsFunc(files, func(f file) bool { return strings.HasPrefix(f.name, "lib/") && path.Base(f.name) == lib }) {
				continue
			}
			if packages[lib] == "" {
				return nil, fmt.Errorf("%s needs %s, of a package that is not known here", f.name, lib)
			}
			had[packages[lib]] = true
		}
		for _, s := range symbols {
			if v, ok := strings.CutPrefix(s.Version, "GLIBC_2."); ok {
				minor, _, _ := strings.Cut(v, ".")
				n, err := strconv.Atoi(minor)
				if err != nil {
					return nil, fmt.Errorf("%s: %s of version %s", f.name, s.Name, s.Version)
				}
				newest = max(newest, n)
			}
		}
	}
	var out []string
	if had["libc6"] {
		out = append(out, fmt.Sprintf("libc6 (>= 2.%d)", newest))
	}
	if had["libgcc-s1"] {
		out = append(out, "libgcc-s1")
	}
	return out, nil
}
