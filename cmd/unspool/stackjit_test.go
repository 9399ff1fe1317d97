package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// lli returns a program that compiles jit.c's functions in its memory, and registers them for debuggers.
func lli(flags ...string) func(testing.TB) []string {
	return func(t testing.TB) []string {
		code := built(t, "jit.c", "jit.ll", "clang-19", "-O2", "-g", "-fomit-frame-pointer", "-S", "-emit-llvm", "-o", "OUT", "SRC")
		return append(append([]string{found(t, "lli-19")}, flags...), code)
	}
}

// LLVM's three ways to put code into memory.
var jits = [][]string{{}, {"-jit-linker=jitlink"}, {"-jit-kind=mcjit"}}

// TestStackRegistered: code that a running process has registered for debuggers has frames, names and lines as gdb has them.
func TestStackRegistered(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gdb")
	theirs := regexp.MustCompile(`(?m)^#\d+ +0x(\w+) in (\w+) \(.*\) at \S*/jit\.c:(\d+)$`)
	ours := regexp.MustCompile(`(?m)^#\d+ +0x(\w+) in (\w+)\+0x\w+ \(\S*/jit\.c:(\d+)\) from \[jit 0x\w+\]$`)
	list := func(re *regexp.Regexp, text string) (out []string) {
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			out = append(out, strings.Join(m[1:], " "))
		}
		return out
	}
	for _, flags := range jits {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			p := &stackProgram{ready: true, pausing: true}
			pid := strconv.Itoa(p.start(t, t.TempDir(), lli(flags...)(t)).Process.Pid)
			r := runProgram(t, "stack", pid)
			r.want(t, 0, "^$")
			want := tool(t, "", "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", pid, "-ex", "bt")
			if a, b := list(ours, r.out), list(theirs, want); len(b) < 3 || !slices.Equal(a, b) {
				t.Errorf("%q\ngdb has %q\n%s%s", a, b, r.out, want)
			}
		})
	}
}
