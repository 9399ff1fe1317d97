package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/oracle"
)

// TestParsersDrop: verbs that read other people's bytes give up what that does not take, and still do for root what they are for: files and
// processes of other users, and outputs in their directories.
func TestParsersDrop(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	if effective, _ := caps.Own(); !effective.Has(unix.CAP_SYS_ADMIN) || !effective.Has(unix.CAP_DAC_OVERRIDE) {
		oracle.Lacks(t, "root")
	}
	others := map[string]bool{"record": true, "top": true, "agent": true, "doctor": true, "man": true, "run": true, "help": true, "completion": true, "version": true}
	for _, c := range command().Commands() {
		if _, ok := parsers[c.Name()]; ok == others[c.Name()] {
			t.Errorf("%s: may it keep all capabilities?", c.Name())
		}
	}

	bin := withoutCgo(t)
	home, err := os.MkdirTemp("", "unspool") // another user's, below what he may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	prog, data := filepath.Join(home, "prog"), filepath.Join(home, "x.data")
	gcc := exec.Command("gcc", "-O1", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(`#include <unistd.h>
volatile unsigned long n;
__attribute__((noinline)) void in_a_home(void) { for (int i = 0; i < 200000000; i++) n++; }
int main(int argc, char **argv) { in_a_home(); if (argc > 1) pause(); return 0; }`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runProgram(t, "record", "-o", data, "--", prog).want(t, 0, "samples")
	for _, path := range []string{data, prog, home} {
		mode := uint32(0o600)
		if path != data {
			mode = 0o700
		}
		if err := errors.Join(unix.Chmod(path, mode), os.Chown(path, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) result {
		c := program(t, args...)
		c.Path = bin
		return finish(t, c)
	}
	for _, args := range [][]string{{"report", data}, {"report", data, "--format", "disasm", "--function", "in_a_home"}, {"diff", data, data, "--all"}} {
		r := run(args...)
		if r.want(t, 0, ""); !strings.Contains(r.out, "in_a_home") {
			t.Errorf("%s: %s%s", args, r.out, r.stderr)
		}
	}
	for _, args := range [][]string{{"dump", prog}, {"verify", home}, {"stats", prog}, {"compile", "-o", filepath.Join(home, "tables"), prog}} {
		run(args...).want(t, 0, "^$")
	}
	run("report", data, "-o", filepath.Join(home, "x.svg")).want(t, 0, "samples")
	run("unwind", data, filepath.Join(home, "y.data")).want(t, 0, "samples")
	run("serve", data, "--export", filepath.Join(home, "page.html")).want(t, 0, "")
	run("report", data, "-o", filepath.Join(home, "z.perf"), "--comm", "^nobody$").want(t, 1, "matches")
	holds(t, home, "page.html", "prog", "tables", "x.data", "x.svg", "y.data")

	target := exec.Command(prog, "stay")
	target.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer target.Wait()
	defer target.Process.Kill()
	if r := run("stack", fmt.Sprint(target.Process.Pid)); r.status != 0 || !strings.Contains(r.out, "in_a_home") && !strings.Contains(r.out, "main") {
		t.Errorf("status %d: %s%s", r.status, r.out, r.stderr)
	}

	// What a process that waits for its input has.
	for _, args := range [][]string{{"report", "-"}, {"unwind", "-", "out"}, {"diff", "-", data}, {"serve", data}} {
		c := program(t, args...)
		c.Path = bin
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		c.Stderr = &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Its threads give them up one after the other.
		given := func(list []caps.Set) bool { // permitted and effective of each thread, as status has them
			for i := 0; i+1 < len(list); i += 2 {
				if permitted, effective := list[i], list[i+1]; effective&^parsers[args[0]] != 0 || permitted&^(parsers[args[0]]|caps.Outputs) != 0 {
					return false
				}
			}
			return len(list) >= 4
		}
		var list []caps.Set
		for limit := time.Now().Add(time.Minute); !given(list); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(limit) {
				t.Errorf("%s: permitted and effective of each thread: %x", args, list)
				break
			}
			list = taskCaps(strconv.Itoa(c.Process.Pid))
		}
		in.Close()
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
		if strings.Contains(text.String(), "giving up") {
			t.Errorf("%s says %q, want nothing of giving up", args, text.String())
		}
	}
}
