// Package dropin runs a program on compiled tables. It finds out which unwinder the program uses, puts its replacement in front, and compiles the
// tables that will be needed. Package doctor finds the libraries' directory.
package dropin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/store"
)

// frontOfLibdw is the library in front of libdw. It is built where libdw's headers are.
const frontOfLibdw = "libunspool-dw.so"

// Steppers say what leaves a frame: rules made from .eh_frame, a table, or machine code.
var Steppers = []string{"rules", "table", "native"}

// Options say how a program walks.
type Options struct {
	Dir        string // of the libraries; "": where doctor.FindDropin looks
	Strict     bool   // the stacks equal the stock library's
	Exceptions bool   // a library in front of libgcc's unwinder is preloaded, too
	Stepper    string // one of Steppers; "": table, or, if strict, rules
}

// Walkers returns the names of the libraries for walking stacks that a program is linked with, itself or by a library that it needs: libdw,
// libunwind, and, if exceptions is set, libgcc's unwinder.
func Walkers(program string, exceptions bool) []string {
	return module.Libraries(program, func(name string) bool {
		return isLibdw(name) || strings.HasPrefix(name, "libunwind.so.") || strings.HasPrefix(name, "libunwind-") ||
			exceptions && strings.HasPrefix(name, "libgcc_s.so.")
	})
}

func isLibdw(name string) bool { return strings.HasPrefix(name, "libdw.so.") }

// Prepare returns what a program's environment needs besides, NAME=VALUE each, and compiles the tables that the program will look for: its own, and
// those of files that recordings among its arguments have samples of. What cannot be compiled now is built on the way.
func Prepare(program string, args []string, o Options) (env []string, err error) {
	walkers := Walkers(program, false)
	dir, err := doctor.FindDropin(o.Dir)
	if err != nil {
		return nil, err
	}
	var preload []string
	if front, err := libdwFront(dir, walkers); err != nil {
		return nil, err
	} else if front != "" {
		preload = append(preload, front)
	}
	if o.Exceptions {
		eh, err := doctor.FindExceptions(o.Dir)
		if err != nil {
			return nil, err
		}
		preload = append(preload, eh)
	}
	if !o.Exceptions || len(walkers) > 0 {
		compileFor(program, args, o.Stepper)
	}
	env = append(env, list("LD_LIBRARY_PATH", dir))
	if len(preload) > 0 {
		env = append(env, list("LD_PRELOAD", preload...))
	}
	if o.Strict {
		env = append(env, "UNSPOOL_STRICT=1")
	}
	if o.Stepper != "" {
		env = append(env, "UNSPOOL_STEPPER="+o.Stepper)
	}
	return env, nil
}

// list returns a variable with paths in front of what it has.
func list(name string, paths ...string) string {
	return name + "=" + strings.TrimSuffix(strings.Join(append(paths, os.Getenv(name)), ":"), ":")
}

// libdwFront returns the library in a directory to preload for a program that is linked with some walking libraries, "" for none. It is an error to
// have none for a program that has no other.
func libdwFront(dir string, walkers []string) (string, error) {
	at := slices.IndexFunc(walkers, isLibdw)
	if at < 0 {
		return "", nil
	}
	path := filepath.Join(dir, frontOfLibdw)
	_, err := os.Stat(path)
	if err == nil && strings.ContainsAny(path, ": ") {
		err = fmt.Errorf("%s: LD_PRELOAD cannot have a path with blanks or colons", path)
	}
	if err == nil {
		return path, nil
	}
	if len(walkers) > 1 {
		return "", nil
	}
	return "", fmt.Errorf("the program walks with %s: %w: in unspool's sources, make runtime builds it where libdw-dev is installed", walkers[at], err)
}

// compileFor compiles what a program will look for, and machine code, if that is to step.
func compileFor(program string, args []string, stepper string) {
	st, err := store.Open("")
	if err != nil {
		return
	}
	files := []string{program}
	for _, a := range args {
		files = append(files, record.SampledFiles(a)...)
	}
	if len(args) > 0 && len(files) == 1 && strings.HasPrefix(filepath.Base(program), "perf") {
		files = append(files, record.SampledFiles("perf.data")...)
	}
	files = slices.DeleteFunc(files, func(path string) bool { return !module.IsLinked(path) })
	emits := []string{"table"}
	switch stepper {
	case "rules":
		return
	case "native":
		emits = append(emits, "native")
	}
	for _, emit := range emits {
		c := compile.Compiler{Emit: emit, Store: st, Native: native.Options{Layout: native.Page, Deref: native.Callback}}
		compile.Each(context.Background(), files, c.File, func(compile.Result, error) {})
	}
}
