package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/tui/tuitest"
)

// spinner starts a program that is always in a function called spins_here, below a function called outer_of_it.
func spinner(t *testing.T) *exec.Cmd {
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "spinner")
	gcc := exec.Command("gcc", "-O1", "-fno-optimize-sibling-calls", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(`volatile unsigned long n;
__attribute__((noinline)) void spins_here(void) { for (;;) n++; }
__attribute__((noinline)) void outer_of_it(void) { spins_here(); n--; }
int main(void) { outer_of_it(); return n; }`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(prog)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// Where there is no terminal, top prints tables.
func TestTopText(t *testing.T) {
	canRecord(t)
	spin := spinner(t)
	// On a busy machine, the program does not run in each of the intervals.
	r := runProgram(t, "top", "-n", "9", "--interval", "300ms", "-p", fmt.Sprint(spin.Process.Pid))
	r.want(t, 0, "")
	tables := strings.Split(strings.TrimSpace(r.out), "\n\nunspool top")
	if len(tables) != 9 || !slices.ContainsFunc(tables, func(s string) bool {
		return regexp.MustCompile(`(?m)^ *[1-9][\d.]+ % .* spinner +spins_here$`).MatchString(s) &&
			strings.Contains(s, " % of stacks whole") && strings.Contains(s, "outer_of_it")
	}) {
		t.Errorf("%d tables\n%s%s", len(tables), r.out, r.stderr)
	}
	// A command's end is the recording's. Its output does not mix with the tables, and its status is passed on.
	for _, from := range []string{"auto", "ptrace"} {
		r = runProgram(t, "top", "--source", from, "--table", "stacks", "--interval", "100ms", "--", "sh", "-c", "echo Hel''lo; "+busy[2])
		if r.want(t, 7, "Hello"); !strings.Contains(r.out, " ← ") || strings.Contains(r.out, "Hello") {
			t.Errorf("%s: %s%s", from, r.out, r.stderr)
		}
	}
	for _, c := range [][2]string{
		{"top --table x", "functions, stacks or processes"}, {"top --window 1ms", "--interval is"}, {"top --interval soon", "--interval takes a time"},
		{"top --limit 0", "-n and --limit take a number, 1 or more"}, {"top -p 1 -- true", "exclude each other"}, {"top --comm (", "--comm"},
	} {
		runProgram(t, strings.Fields(c[0])...).want(t, 2, c[1])
	}
}

// A pty is a terminal that a program runs on.
type pty struct {
	master, slave *os.File
	before        unix.Termios
	columns       uint16

	mu  sync.Mutex
	out strings.Builder
}

func openPty(t *testing.T) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		oracle.Lacks(t, "a pseudo terminal: "+err.Error())
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		oracle.Lacks(t, "a pseudo terminal: "+err.Error())
	}
	p := &pty{master: master, slave: slave, columns: 100}
	was, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	p.before = *was
	p.resize(t)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.out.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { slave.Close(); master.Close() })
	return p
}

// resize makes the program draw everything again.
func (p *pty) resize(t *testing.T) {
	p.columns ^= 2
	if err := unix.IoctlSetWinsize(int(p.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 30, Col: p.columns}); err != nil {
		t.Fatal(err)
	}
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

var escapes = regexp.MustCompile(`\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|[PX^_\]][^\x07\x1b]*(\x07|\x1b\\)|[()][A-Z0-9]|[=>78M])`)

// sees waits until what is drawn matches. It has the program draw everything now and then.
func (p *pty) sees(t *testing.T, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	from := len(p.text())
	var s string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if s = escapes.ReplaceAllString(p.text()[from:], " "); re.MatchString(s) {
			return
		}
		if time.Until(end).Milliseconds()/50%20 == 0 {
			p.resize(t)
		}
	}
	t.Fatalf("no %q on the terminal: %q", pattern, s)
}

func (p *pty) keys(t *testing.T, s string) {
	t.Helper()
	if _, err := p.master.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

// TestTopTerminal: on a terminal, top shows where a program spins, minds its keys, and leaves the terminal as it was.
func TestTopTerminal(t *testing.T) {
	canRecord(t)
	spin := spinner(t)
	p := openPty(t)
	c := program(t, "top", "--interval", "200ms", "-p", fmt.Sprint(spin.Process.Pid))
	c.Stdin, c.Stdout, c.Stderr = p.slave, p.slave, p.slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c.Env = append(c.Env, "TERM=xterm-256color", "NO_COLOR=yes")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	p.sees(t, `spinner +spins_here`)
	p.sees(t, `of stacks whole`)
	p.keys(t, "2")
	p.sees(t, `spins_here ← outer_of_it ← main[\s\S]* 1 +spinner +outer_of_it`)
	p.keys(t, "\r")
	p.keys(t, "\t")
	p.sees(t, `command[\s\S]* spinner`)
	p.keys(t, "1/outer_of\r")
	p.sees(t, `/outer_of/[\s\S]*0\.0 %[\s\S]*outer_of_it`)
	p.keys(t, "p")
	p.sees(t, `paused`)
	p.keys(t, "?")
	p.sees(t, `regular expression; escape: all`)
	p.keys(t, "?\x1b")
	p.sees(t, `spins_here`)
	p.keys(t, "q")
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v: %q", err, p.text())
		}
	case <-time.After(20 * time.Second):
		text := p.text()
		t.Fatalf("top does not end within 20 s of q; it has written %d bytes, in the end %q", len(text), text[max(0, len(text)-1000):])
	}
	after, err := unix.IoctlGetTermios(int(p.slave.Fd()), unix.TCGETS)
	if err != nil || *after != p.before {
		t.Errorf("terminal settings are\n%+v, %v\nwere\n%+v", after, err, p.before)
	}
	// It has been written, but may not have been read.
	restored := func(out string) bool {
		last := func(s string) int { return strings.LastIndex(out, s) }
		return last("\x1b[?1049h") >= 0 && last("\x1b[?1049l") > last("\x1b[?1049h") && last("\x1b[?25h") >= last("\x1b[?25l")
	}
	out := p.text()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !restored(out); out = p.text() {
		time.Sleep(10 * time.Millisecond)
	}
	if !restored(out) {
		t.Errorf("the alternate screen, or a hidden cursor, is left behind: %q", out)
	}
	if m := regexp.MustCompile(`\x1b\[[\d;]*\b3[0-8]m`).FindString(out); m != "" {
		t.Errorf("a colour, although NO_COLOR is set: %q", m)
	}
	if err := spin.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target: %v", err)
	}
}

// TestReportTerminal: on a terminal, report is a browser and leaves the terminal as it was; in a pipe it is a table.
func TestReportTerminal(t *testing.T) {
	pb := writeProfile(t)
	term := openPty(t)
	c := program(t, "report", pb)
	c.Stdin, c.Stdout, c.Stderr = term.slave, term.slave, term.slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	c.Env = append(c.Env, "TERM=xterm-256color", "NO_COLOR=yes")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	term.sees(t, `▸ cc1`)
	term.keys(t, "/hash\r")
	term.sees(t, `40\.0 % +hash`)
	term.keys(t, "t")
	term.sees(t, `50\.0 % +50\.0 % +a\.out +hash`)
	term.keys(t, "\r")
	term.sees(t, `who called it[\s\S]*▸ lookup`)
	term.keys(t, "q")
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%v: %q", err, term.text())
		}
	case <-time.After(30 * time.Second):
		text := term.text()
		t.Fatalf("report does not end within 30 s of q; it has written %d bytes, in the end %q", len(text), text[max(0, len(text)-1000):])
	}
	if m := regexp.MustCompile(`\x1b\[[\d;]*\b[39][0-8]m`).FindString(term.text()); m != "" {
		t.Errorf("a colour, although NO_COLOR is set: %q", m)
	}
	r := runProgram(t, "report", pb)
	if r.want(t, 0, ""); !strings.Contains(r.out, "50.0 %       5   50.0 %       5  a.out") || strings.Contains(r.out, "\x1b") {
		t.Errorf("in a pipe: %s", r.out)
	}
}

// writeProfile writes a profile of ten samples as pprof, and returns its path.
func writeProfile(t *testing.T) string {
	p := tuitest.NewScene().Profile(t,
		"4x 10/10 cc1 outermost: hash lookup parse main",
		"2x 10/10 cc1 outermost: parse main",
		"1x 10/10 cc1 outermost: fib fib fib main",
		"1x 10/11 cc1 truncated: hash",
		"1x 11/11 sh bad-cfa: k_read read",
		"1x 12/12 kworker no-user-stack: k_work",
	)
	path := filepath.Join(t.TempDir(), "x.pb.gz")
	f, err := os.Create(path)
	if err == nil {
		err = pprof.Write(f, p)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
