package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// holds checks the names in a directory.
func holds(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if a, b := strings.Join(got, " "), strings.Join(want, " "); a != b {
		t.Errorf("the directory holds %q, want %q", a, b)
	}
}

// TestFailedRecord: a recording that fails leaves the one before it, and nothing else; one that succeeds keeps it as .old.
func TestFailedRecord(t *testing.T) {
	canRecord(t)
	other := "1"
	if os.Geteuid() == 0 {
		other = "999999998"
	}
	c := program(t)
	dir := c.Dir
	file := filepath.Join(dir, defaultRecording)
	in := func(args ...string) result {
		c := program(t, args...)
		c.Dir = dir
		return finish(t, c)
	}
	if err := os.WriteFile(file, []byte("the one before"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"-p 999999999", "-p " + other, "-t 999999999", "-- /nonexistent/program", "-- " + dir, "-e cycels -- true", "-e nosuch:event -- true",
		"--cgroup /nonexistent -- true", "--stack-size 7 -- true", "--memory 1 -e nosuch -- true", "",
	} {
		r := in(append([]string{"record"}, strings.Fields(args)...)...)
		if b, err := os.ReadFile(file); r.status == 0 || string(b) != "the one before" || err != nil {
			t.Errorf("record %s: status %d, and then %d bytes, %v\n%s", args, r.status, len(b), err, r.stderr)
		}
		holds(t, dir, defaultRecording)
	}
	in(append([]string{"record", "--"}, busy...)...).want(t, 7, `the previous unspool.data is now unspool.data.old`)
	if b, _ := os.ReadFile(file + ".old"); string(b) != "the one before" {
		t.Errorf("unspool.data.old has %d bytes", len(b))
	}
	holds(t, dir, defaultRecording, defaultRecording+".old")
	if st, err := os.Stat(file); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v: the addresses of a recording are its owner's", st, err)
	}
	in("report", defaultRecording, "-o", "x.svg").want(t, 0, "")
	if st, err := os.Stat(filepath.Join(dir, "x.svg")); err != nil || st.Mode()&0o600 != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	// One without samples is not worth the one before it.
	before, _ := os.ReadFile(file)
	in("record", "--source", "perf", "-e", "page-faults", "-c", "1000000000", "--", "true").want(t, 0, "no samples.*; unspool.data still has the recording before")
	if b, err := os.ReadFile(file); !bytes.Equal(b, before) {
		t.Errorf("an empty recording of %d bytes (%v) has taken the place of a good one of %d", len(b), err, len(before))
	}
	in("record", "--source", "perf", "-e", "page-faults", "-c", "1000000000", "-o", "x.svg", "--", "true").want(t, 0, "no samples.*; x.svg still has the recording before")
	if err := os.WriteFile(filepath.Join(dir, "x.jsonl"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in("record", "--source", "perf", "-e", "page-faults", "-c", "1000000000", "-o", "x.jsonl", "--", "true").want(t, 0, "no samples.*; x.jsonl still has the recording before")
	if b, _ := os.ReadFile(filepath.Join(dir, "x.jsonl")); string(b) != "{}\n" {
		t.Errorf("x.jsonl has %q", b)
	}
	os.Remove(filepath.Join(dir, "x.jsonl"))
	holds(t, dir, defaultRecording, defaultRecording+".old", "x.svg")
	// A file that is written through does not have the recording before.
	through, err := os.Create(filepath.Join(t.TempDir(), "through"))
	if err != nil {
		t.Fatal(err)
	}
	defer through.Close()
	through.WriteString("before\n")
	c = program(t, "record", "--source", "perf", "-e", "page-faults", "-c", "1000000000", "-o", "/dev/stdout", "--format", "folded", "--", "true")
	c.Stdout = through
	var said bytes.Buffer
	c.Stderr = &said
	if err := c.Run(); err != nil || !strings.Contains(said.String(), "no samples") || strings.Contains(said.String(), "still has") {
		t.Errorf("%v: %s", err, said.String())
	}

	// What is named by -o is replaced, when it is whole.
	good, _ := os.ReadFile(filepath.Join(dir, "x.svg"))
	in("report", defaultRecording, "--comm", "^nobody$", "-o", "x.svg").want(t, 1, "matches")
	in("record", "-p", "999999999", "-o", "x.svg").want(t, 1, "")
	if b, err := os.ReadFile(filepath.Join(dir, "x.svg")); !bytes.Equal(b, good) {
		t.Errorf("a failure has replaced x.svg: it has %d bytes (%v), and had %d", len(b), err, len(good))
	}
	for _, args := range []string{"report IN -o IN", "report IN --format folded -o LINK", "report - --format json -o IN", "unwind IN IN", "diff IN IN --format json -o IN"} {
		os.Symlink(defaultRecording, filepath.Join(dir, "link"))
		c := program(t, strings.Fields(strings.NewReplacer("IN", defaultRecording, "LINK", "link").Replace(args))...)
		c.Dir = dir
		if strings.Contains(args, " - ") {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			c.Stdin = f
		}
		if args == "report IN -o IN" {
			c.Args = append(c.Args, "--format", "flame")
		}
		finish(t, c).want(t, 2, "(unspool.data|link) is the input: it would be overwritten")
		if b, _ := os.ReadFile(file); !bytes.Equal(b, before) {
			t.Fatalf("%s: the input has changed", args)
		}
	}
	holds(t, dir, "link", defaultRecording, defaultRecording+".old", "x.svg")
}

// TestTheirDirectory: root's outputs in another user's directory get there, although root has given up the right to write there; they do not
// follow that user's links, and do not wait for his pipes.
func TestTheirDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to be another user")
	}
	canRecord(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("root's"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := program(t, append([]string{"record", "--"}, busy...)...)
	dir := c.Dir
	link := filepath.Join(dir, defaultRecording)
	if err := errors.Join(os.Chown(dir, 12345, 12345), os.Symlink(victim, link), os.Lchown(link, 12345, 12345),
		os.Symlink(victim, link+".old"), os.Lchown(link+".old", 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	finish(t, c).want(t, 7, "unspool.data was a link to .*victim: a file replaces the link")
	again := program(t, c.Args[1:]...)
	again.Dir = dir
	finish(t, again).want(t, 7, "is now unspool.data.old")
	for _, name := range []string{link, link + ".old"} {
		if st, err := os.Lstat(name); err != nil || st.Mode() != 0o600 || st.Size() < 1000 {
			t.Errorf("%v, %v", st, err)
		}
	}
	if b, _ := os.ReadFile(victim); string(b) != "root's" {
		t.Errorf("root's file has %d bytes", len(b))
	}
	holds(t, dir, defaultRecording, defaultRecording+".old")
	os.Remove(link)
	if err := unix.Mkfifo(link, 0o666); err != nil {
		t.Fatal(err)
	}
	fifo := program(t, c.Args[1:]...)
	fifo.Dir = dir
	finish(t, fifo).want(t, 1, "unspool.data: not a regular file")
}

// TestSignals: each of the signals that end a recording leaves a whole result; a second one nothing at all.
func TestSignals(t *testing.T) {
	canRecord(t)
	if signal.Ignored(syscall.SIGHUP) { // by nohup: what is caught here is not ignored by what is started from here
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, syscall.SIGHUP)
		defer signal.Stop(caught)
	}
	start := func(t *testing.T, c *exec.Cmd) {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill(); c.Wait() })
		patience := time.AfterFunc(time.Minute, func() {
			t.Errorf("%q is still there a minute after its start", c.Args)
			c.Process.Kill()
		})
		t.Cleanup(func() { patience.Stop() })
		// The output is begun before the recording, the command after it.
		for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(c.Dir, "up")); err == nil {
				break
			}
			if time.Now().After(limit) {
				t.Fatalf("%q has not started its command after a minute: its state is %q", c.Args[1:], procfs.Status(c.Process.Pid, "State"))
			}
		}
		untilWorked(t, c.Process.Pid, 200*time.Millisecond)
	}
	loop := "touch up; while :; do :; done"
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		c := program(t, "record", "-o", "x.svg", "--", "sh", "-c", loop)
		start(t, c)
		c.Process.Signal(s)
		c.Wait()
		if b, err := os.ReadFile(filepath.Join(c.Dir, "x.svg")); err != nil || !bytes.HasSuffix(bytes.TrimSpace(b), []byte("</svg>")) {
			t.Errorf("%v: x.svg has %d bytes, %v", s, len(b), err)
		}
		holds(t, c.Dir, "up", "x.svg")
	}
	t.Run("nohup", func(t *testing.T) {
		c := program(t)
		exe := c.Path
		c.Path, c.Args = "/bin/sh", []string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", exe, "record", "-o", "x.svg", "--", "sh", "-c", loop}
		start(t, c)
		c.Process.Signal(syscall.SIGHUP)
		time.Sleep(500 * time.Millisecond)
		if err := c.Process.Signal(syscall.SIGINT); err != nil {
			t.Errorf("SIGHUP has ended it: %v", err)
		}
		c.Wait()
		holds(t, c.Dir, "up", "x.svg")
	})
	t.Run("twice", func(t *testing.T) {
		// A pipe that nobody empties: the result cannot be written, and who does not want to wait need not.
		c := program(t, "report", "-", "-o", "x.svg")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		gone := make(chan struct{})
		go func() { c.Wait(); close(gone) }()
		time.Sleep(300 * time.Millisecond)
		c.Process.Signal(syscall.SIGINT)
		// Of two signals that come before the program has the processor, it sees one.
		until(t, "two signals end it", func() bool {
			select {
			case <-gone:
				return true
			case <-time.After(300 * time.Millisecond):
				c.Process.Signal(syscall.SIGINT)
				return false
			}
		})
		if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.ExitStatus() != 130 && ws.Signal() != syscall.SIGINT {
			t.Errorf("%v", c.ProcessState)
		}
		holds(t, c.Dir)
	})
}

// TestGrows: who follows x.jsonl sees samples as they come.
func TestGrows(t *testing.T) {
	canRecord(t)
	c := program(t, "record", "-o", "x.jsonl", "--", "sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Signal(syscall.SIGTERM)
	for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if st, err := os.Stat(filepath.Join(c.Dir, "x.jsonl")); err == nil && st.Size() > 0 {
			return
		}
		if time.Now().After(limit) {
			st, err := os.Stat(filepath.Join(c.Dir, "x.jsonl"))
			t.Fatalf("x.jsonl has no samples a minute after the start: %v, %v; the state of the recording is %q", st, err, procfs.Status(c.Process.Pid, "State"))
		}
	}
}

// TestMessagesUnread: that nobody reads the messages costs no recording.
func TestMessagesUnread(t *testing.T) {
	canRecord(t)
	c := program(t, append([]string{"record", "-o", "x.svg", "--"}, busy...)...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	c.Stderr = w
	err = c.Run()
	w.Close()
	if status := c.ProcessState.ExitCode(); status != 7 {
		t.Errorf("%v", err)
	}
	holds(t, c.Dir, "x.svg")
}

// TestPipes: a FIFO and /dev/stdout get all of a recording, and who reads no further is an error.
func TestPipes(t *testing.T) {
	canRecord(t)
	c := program(t, append([]string{"record", "-o", "fifo", "--format", "data", "--"}, busy...)...)
	fifo := filepath.Join(c.Dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader := program(t, "report", "fifo", "--format", "top")
	reader.Dir = c.Dir
	var table bytes.Buffer
	reader.Stdout, reader.Stderr = &table, os.Stderr
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	finish(t, c).want(t, 7, "")
	if err := reader.Wait(); err != nil || !strings.Contains(table.String(), "% whole") {
		t.Errorf("%v: %s", err, table.String())
	}
	holds(t, c.Dir, "fifo")

	c = program(t, append([]string{"record", "-o", "fifo", "--format", "data", "--"}, busy...)...)
	if err := unix.Mkfifo(filepath.Join(c.Dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() {
		f, err := os.Open(filepath.Join(c.Dir, "fifo"))
		if err == nil {
			err = f.Close()
		}
		gone <- err
	}()
	finish(t, c).want(t, 1, "broken pipe")
	if err := <-gone; err != nil {
		t.Error(err)
	}

	c = program(t, append([]string{"record", "-o", "/dev/stdout", "--format", "folded", "--"}, busy...)...)
	if r := finish(t, c); r.status != 7 || !strings.Contains(r.out, ";") {
		t.Errorf("status %d: %s%s", r.status, r.out, r.stderr)
	}
	// Standard output that is a file, in the middle: what is there stays.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	fmt.Fprintln(out, "before")
	c = program(t, append([]string{"record", "-o", "/dev/stdout", "--format", "folded", "--"}, busy...)...)
	c.Stdout = out
	c.Run()
	if b, err := os.ReadFile(out.Name()); err != nil || !bytes.HasPrefix(b, []byte("before\n")) || !bytes.Contains(b, []byte(";")) {
		t.Errorf("%v: %d bytes", err, len(b))
	}
}

// TestReadOnly: a file that its user has protected is not replaced.
func TestReadOnly(t *testing.T) {
	c := as(t, "", "verify", "--run", "-o", "x.txt", "--", "true")
	x := filepath.Join(c.Dir, "x.txt")
	if err := errors.Join(os.WriteFile(x, []byte("mine"), 0o444), os.Chown(x, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	finish(t, c).want(t, 1, "x.txt: permission denied")
	if b, _ := os.ReadFile(x); string(b) != "mine" {
		t.Errorf("%q", b)
	}
}
