package random

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/shadow"
)

// patience is for what a compiler or csmith does.
const patience = 2 * time.Minute

// An errLacks says what the machine lacks for a program.
type errLacks string

func (e errLacks) Error() string { return "this machine lacks " + string(e) }

// build writes and compiles the program in dir, and returns its path.
func (p *plan) build(ctx context.Context, dir string) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	run := func(name string, args ...string) ([]byte, error) {
		if _, err := exec.LookPath(name); err != nil {
			return nil, errLacks(name)
		}
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s %s: %w\n%.2000s", name, strings.Join(args, " "), err, out)
		}
		return out, err
	}
	base := strconv.FormatUint(p.seed, 10)
	words := strings.Fields(p.driver())
	args := append(words[1:], p.flags...)
	var source, text string
	switch p.kind {
	case "csmith":
		source = base + ".c"
		if _, err := run("csmith", "--seed", base, "--no-argc", "--max-funcs", "12", "--output", source); err != nil {
			return "", err
		}
		args = append(args, "-I/usr/include/csmith", "-w")
	case "rust":
		source, text = base+".rs", p.rustSource()
	case "c":
		source, text = base+".c", p.cSource()
		args = append(args, "-w")
	case "c++":
		source, text = base+".cc", p.cSource()
		args = append(args, "-w", "-std=gnu++17")
	}
	if text != "" {
		if err := os.WriteFile(filepath.Join(dir, source), []byte(text), 0o666); err != nil {
			return "", err
		}
	}
	args = append(args, source, "-o", base)
	if p.kind == "rust" && strings.HasSuffix(p.compiler, "+nightly") {
		if _, err := exec.LookPath("rustup"); err != nil {
			return "", errLacks("rustup's nightly rustc")
		}
	}
	if _, err := run(words[0], args...); err != nil {
		return "", err
	}
	return filepath.Join(dir, base), nil
}

// execute executes the program step by step, and ends it after so many instructions.
func (p *plan) execute(ctx context.Context, path string, steps uint64) (*shadow.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(steps)*100*time.Microsecond)
	defer cancel()
	set := modules.New()
	defer set.Close()
	cmd := exec.Command(path)
	cmd.Dir = filepath.Dir(path)
	r, err := shadow.Run(ctx, cmd, shadow.Options{Modules: set, Entry: true, Steps: steps, End: true})
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		err = nil
	}
	return r, err
}

// unlisted returns the wrong rows that neither docs/FINDINGS.md of shadow nor the list here permits.
func (p *plan) unlisted(r *shadow.Result, used func(*permit, *shadow.Finding)) (out []*shadow.Finding) {
	for _, f := range r.Wrong() {
		if k := p.permitted(f); k == nil {
			out = append(out, f)
		} else {
			used(k, f)
		}
	}
	return out
}

// A permit is a kind of wrong rows that is a compiler's fault, or a promise that the compiler has not made.
type permit struct {
	name     string
	program  *regexp.Regexp                    // of plan.String
	function *regexp.Regexp                    // nil: any
	is       func(*plan, *shadow.Finding) bool // nil: any
	own      bool                              // only in the program itself
	reason   string
}

func (p *plan) permitted(f *shadow.Finding) *permit {
	for i := range permits {
		k := &permits[i]
		if f.Ours || !k.program.MatchString(p.String()) || k.function != nil && !k.function.MatchString(f.Function) ||
			k.is != nil && !k.is(p, f) || k.own && filepath.Base(f.Module) != strconv.FormatUint(p.seed, 10) {
			continue
		}
		return k
	}
	return nil
}

// reduce leaves out features, flags and functions for as long as wrong says that the program is still wrong.
func (p *plan) reduce(wrong func(*plan) bool) *plan {
	best := *p
	try := func(q plan) bool {
		if wrong(&q) {
			best = q
			return true
		}
		return false
	}
	for i := 0; i < len(best.flags); {
		q := best
		n := 1
		if q.flags[i] == "-mllvm" {
			n = 2
		}
		q.flags = append(append([]string{}, best.flags[:i]...), best.flags[min(i+n, len(best.flags)):]...)
		if !try(q) {
			i += n
		}
	}
	for i := range features {
		if q := best; q.features>>i&1 != 0 {
			q.features &^= 1 << i
			try(q)
		}
	}
	for best.kind != "csmith" && best.funcs > 1 {
		q := best
		q.funcs--
		if !try(q) {
			break
		}
	}
	return &best
}
