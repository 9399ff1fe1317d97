package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"charm.land/lipgloss/v2"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// A scene makes samples of lines such as "3x 10/11 cc1 outermost: inner outer main": a count, a process and a thread, a command,
// a stop, and functions of a.out, innermost first; those that begin with k_ are the kernel's.
type scene struct {
	names []string // a function is 0x100 bytes
	ids   map[string]int
	at    unwind.Mapping
}

const kernelBase = 0xffffffff81000000

func newScene() *scene {
	return &scene{ids: map[string]int{}, at: unwind.Mapping{Lo: 0x10000, Hi: 0x90000000, Module: unwind.NewModule("/bin/a.out", "", nil)}}
}

func (c *scene) id(name string) uint64 {
	id, ok := c.ids[name]
	if !ok {
		id = len(c.names)
		c.ids[name] = id
		c.names = append(c.names, name)
	}
	return uint64(id) * 0x100
}

func (c *scene) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	for i, off := range offs {
		names[i] = profile.Name{Func: c.names[off/0x100], Start: off &^ 0xff}
	}
}

func (c *scene) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		names[i] = profile.Name{Func: c.names[(a-kernelBase)/0x100], Start: a &^ 0xff}
	}
}

// samples calls each with the samples of the lines.
func (c *scene) samples(t *testing.T, lines []string, each func(*profile.Sample) error) {
	t.Helper()
	for _, l := range lines {
		head, frames, _ := strings.Cut(l, ":")
		var n int
		var s profile.Sample
		var stop string
		if _, err := fmt.Sscanf(head, "%dx %d/%d %s %s", &n, &s.PID, &s.TID, &s.Comm, &stop); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		for s.Stop.String() != stop {
			s.Stop++
		}
		s.HasUser, s.Period = s.Stop != unwind.NoUserStack, 2e6
		for _, f := range strings.Fields(frames) {
			if strings.HasPrefix(f, "k_") {
				s.Kernel = append(s.Kernel, kernelBase+c.id(f)+4)
				continue
			}
			s.User = append(s.User, unwind.Frame{PC: c.at.Lo + arch.Addr(c.id(f)) + 4, How: unwind.HowCFI, Mapping: &c.at})
		}
		for range n {
			if err := each(&s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// interval returns what a tally that gets the lines has after a second.
func (c *scene) interval(t *testing.T, lines ...string) interval {
	t.Helper()
	t0 := time.Unix(100, 0)
	tally := newTally(t0)
	c.samples(t, lines, tally.add)
	return tally.cut(t0.Add(time.Second), 3, c, profile.Info{})
}

func name(r *ranking, id int32) string { return r.funcs[id].name }

// TestWindow: intervals add up, the oldest goes, and nothing is counted twice.
func TestWindow(t *testing.T) {
	c, w := newScene(), window{size: 2}
	w.push(c.interval(t, "90x 10/10 old outermost: gone main"))
	w.push(c.interval(t, "4x 10/10 cc1 outermost: fib fib fib main", "1x 11/11 sh truncated: k_read read main", "5x 0/0 swapper no-user-stack: k_idle"))
	w.push(c.interval(t, "4x 10/12 thread outermost: fib fib fib main", "1x 12/12 kworker no-user-stack: k_work"))
	r := w.rank()
	if r.dur != 2*time.Second || r.totals.Samples != 10 || r.weight != 10 || r.idle != 5 || r.lost != 6 || len(w.parts) != 2 {
		t.Errorf("%v %+v, weight %d, %d idle, %d lost, %d parts", r.dur, r.totals, r.weight, r.idle, r.lost, len(w.parts))
	}
	var got []string
	for _, f := range r.byFunc {
		got = append(got, fmt.Sprintf("%s %d %d", name(r, f), r.funcs[f].self, r.funcs[f].total))
	}
	for _, s := range r.byStack {
		line := fmt.Sprint(r.stacks[s].n, " ", r.stacks[s].stop)
		for _, f := range r.stacks[s].frames {
			line += " " + name(r, f)
		}
		got = append(got, line)
	}
	for _, p := range r.byProc {
		q := &r.procs[p]
		got = append(got, fmt.Sprintf("%d %s %d %d", q.pid, q.comm, q.n, q.whole))
	}
	want := []string{
		"fib 8 8", "k_read 1 1", "k_work 1 1", "main 0 9", "read 0 1",
		"8 outermost fib fib fib main", "1 truncated k_read read main", "1 no-user-stack k_work",
		"10 cc1 8 8", "11 sh 1 0", "12 kworker 1 0",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, c := range []struct {
		list []weighted
		want string
	}{
		{r.callers(r.byFunc[0]), "main 8"},
		{r.callers(r.byFunc[3]), ""},
		{r.inside(r.byProc[1]), "k_read 1"},
	} {
		var got []string
		for _, x := range c.list {
			got = append(got, fmt.Sprint(name(r, x.fn), " ", x.n))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%q, want %q", s, c.want)
		}
	}
	w.periods = true
	if r := w.rank(); r.weight != 20e6 || r.funcs[r.byFunc[0]].self != 16e6 {
		t.Errorf("periods: %d, %+v", r.weight, r.funcs[r.byFunc[0]])
	}
	if w.reset(); w.rank().totals.Samples != 0 {
		t.Error("there are samples after a reset")
	}
}

// looks checks what a view looks like. A line that ends in a backslash has had blanks at its end.
func looks(t *testing.T, v *view, width, height int, want string) {
	t.Helper()
	got := v.text(width, height)
	if n := strings.Count(got, "\n") + 1; n != height {
		t.Errorf("%d lines, want %d", n, height)
	}
	if want = strings.Trim(want, "\n"); regexp.MustCompile(` +(\n|$)`).ReplaceAllString(got, "$1") != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestView(t *testing.T) {
	c, w := newScene(), window{size: 10}
	w.push(c.interval(t, "6x 10/10 cc1 outermost: fib fib fib main", "3x 11/11 sh\x1b[2J truncated: k_read std::vector<int>::at main",
		"1x 12/12 kworker no-user-stack: k_work", "10x 0/0 swapper no-user-stack: k_idle"))
	v := newView()
	v.what, v.size, v.walks = "whole machine", 10*time.Second, "walking copies of stacks"
	looks(t, v, 70, 8, `
unspool top · whole machine · last 0 s
 1 functions  2 stacks  3 processes
   self   total samples/s  module                function
  nothing yet

0 samples/s · 0 lost · walking copies of stacks
no stacks
tab table · ↑↓ select · enter unfold · / filter · p pause · r reset ·…`)
	v.show(w.rank())
	looks(t, v, 90, 12, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
   self   total samples/s  module                function
 60.0 %  60.0 %       6.0  a.out                 fib
 30.0 %  30.0 %       3.0  [kernel]              k_read
 10.0 %  10.0 %       1.0  [kernel]              k_work
  0.0 %  90.0 %         0  a.out                 main
  0.0 %  30.0 %         0  a.out                 std::vector<int>::at

20 samples/s · 50.0 % idle · 3 lost · walking copies of stacks
60.0 % of stacks whole · 10.0 % without user stack · 30.0 % cut off
tab table · ↑↓ select · enter unfold · / filter · p pause · r reset · ? help · q quit`)
	v.table = stacks
	v.move(1)
	v.open[stacks] = true
	looks(t, v, 60, 13, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
  share samples/s  stack, innermost function first
 60.0 %       6.0  fib ×3 ← main
 30.0 %       3.0  k_read ← std::vector<int>::at ← main ← […
           0  [kernel]              k_read
           1  a.out                 std::vector<int>::at
           2  a.out                 main
              not whole: cut off
 10.0 %       1.0  k_work
20 samples/s · 50.0 % idle · 3 lost · walking copies of sta…
60.0 % of stacks whole · 10.0 % without user stack · 30.0 %…
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	// The selected stack stays selected where it comes to stand elsewhere; where it is no more, its place is.
	w.push(c.interval(t, "9x 11/11 sh truncated: k_read std::vector<int>::at main"))
	v.show(w.rank())
	if v.sel[stacks] != 0 || !v.open[stacks] {
		t.Errorf("selected: %d, open: %v", v.sel[stacks], v.open[stacks])
	}
	w.reset()
	w.push(c.interval(t, "9x 11/11 sh\x1b[2J outermost: main", "3x 12/12 b no-info: b main"))
	v.show(w.rank())
	if v.sel[stacks] != 0 || !v.open[stacks] {
		t.Errorf("selected: %d, open: %v", v.sel[stacks], v.open[stacks])
	}
	// Much recursion is one line, and of many lines the middle is left out.
	w.reset()
	w.push(c.interval(t, "9x 11/11 sh outermost: a a a a b c d e f g h i j k l m n main"))
	v.show(w.rank())
	v.open[stacks] = true
	looks(t, v, 60, 18, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
  share samples/s  stack, innermost function first
100.0 %       9.0  a ×4 ← b ← c ← d ← e ← f ← g ← h ← i ← j…
           0  a.out                 a ×4
           4  a.out                 b
           5  a.out                 c
           6  a.out                 d
          … 9 more lines
          16  a.out                 n
          17  a.out                 main
              whole



9.0 samples/s · 3 lost · walking copies of stacks
100.0 % of stacks whole
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	w.reset()
	w.push(c.interval(t, "9x 11/11 sh\x1b[2J outermost: main", "3x 12/12 b no-info: b main"))
	v.show(w.rank())
	// Other people's bytes do not reach the terminal.
	v.table = processes
	v.open[processes] = true
	looks(t, v, 60, 10, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
    pid   share samples/s   whole  command
     11  75.0 %       9.0 100.0 %  sh?[2J
        in 100.0 %       9.0  main
     12  25.0 %       3.0   0.0 %  b

12 samples/s · 3 lost · walking copies of stacks
75.0 % of stacks whole · 25.0 % code without unwind informa…
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	v.setFilter(regexp.MustCompile("^b$"))
	v.open[processes] = false
	v.paused = true
	if s := v.plainText(0, 20); s != `unspool top · whole machine · last 1 s · paused · /^b$/
12 samples/s · 3 lost · walking copies of stacks
75.0 % of stacks whole · 25.0 % code without unwind information

    pid   share samples/s   whole  command
     12  25.0 %       3.0   0.0 %  b
` {
		t.Errorf("got\n%s", s)
	}
	v.help = true
	if s := v.text(100, 24); !strings.Contains(s, "regular expression; escape: all") {
		t.Errorf("help:\n%s", s)
	}
}

// TestViewScrolls: at every size, wherever one is, the selected row is there once and nothing is too wide or too high.
func TestViewScrolls(t *testing.T) {
	c, w := newScene(), window{size: 10}
	var lines []string
	for i := range 40 {
		lines = append(lines, fmt.Sprintf("%dx %d/%d p%d outermost: f%d 木木木木木 %s main", 100-i, i+1, i+1, i, i, strings.Repeat("deep<a,b> ", i)))
	}
	w.push(c.interval(t, lines...))
	v := newView()
	v.paint = func(st style, s string) string {
		if st == chosen && !strings.HasPrefix(s, " 1 ") && !strings.HasPrefix(s, " 2 ") && !strings.HasPrefix(s, " 3 ") {
			return "▶" + s
		}
		return s
	}
	v.show(w.rank())
	for table := range numTables {
		v.table = table
		for _, height := range []int{1, 6, 7, 8, 13, 30, 100} {
			for _, width := range []int{1, 2, 17, 60, 300} {
				for step, by := range []int{0, 1, 7, -3, 100, -1, -50, -1000, 20} {
					v.move(by)
					v.open[table] = step%2 == 1
					s := v.text(width, height)
					rows := strings.Split(s, "\n")
					if n := strings.Count(s, "▶"); len(rows) != height || n != 1 && height > 6 {
						t.Fatalf("table %d, %dx%d: %d lines, %d selected\n%s", table, width, height, len(rows), n, s)
					}
					for _, l := range rows {
						if n := lipgloss.Width(strings.TrimPrefix(l, "▶")); n > width {
							t.Fatalf("table %d, %dx%d: %d columns: %q", table, width, height, n, l)
						}
					}
				}
			}
		}
	}
}

func TestBrief(t *testing.T) {
	for _, c := range [][2]string{
		{"main", "main"},
		{"std::vector<int>::at(unsigned long)", "std::vector<int>::at(unsigned long)"},
		{"std::map<std::string, std::vector<std::pair<int, long>>>::operator[](std::string const&)", "std::map<…>::operator[](…)"},
		{"ns::operator<(std::basic_string_view const&, std::basic_string_view)", "ns::operator<(…)"},
		{"github.com/unspool/unspool/source/perfevent.(*Recorder).drainAll", "github.com/unspool/unspool/source/perfe…"},
	} {
		if got := brief(c[0]); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}

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
	r := runProgram(t, "top", "-n", "3", "--interval", "300ms", "-p", fmt.Sprint(spin.Process.Pid))
	r.want(t, 0, "")
	tables := strings.Split(strings.TrimSpace(r.out), "\n\nunspool top")
	if len(tables) != 3 || !regexp.MustCompile(`(?m)^ *[1-9][\d.]+ % .* spinner +spins_here$`).MatchString(tables[2]) ||
		!strings.Contains(tables[2], " % of stacks whole") || !strings.Contains(tables[2], "outer_of_it") {
		t.Errorf("%d tables\n%s%s", len(tables), r.out, r.stderr)
	}
	// A command's end is the recording's. Its output does not mix with the tables, and its status is passed on.
	r = runProgram(t, "top", "--table", "stacks", "--interval", "100ms", "--", "sh", "-c", "echo out''put; "+busy[2])
	if r.want(t, 7, "output"); !strings.Contains(r.out, " ← ") || strings.Contains(r.out, "output") {
		t.Errorf("%s%s", r.out, r.stderr)
	}
	for _, c := range [][2]string{
		{"top --table x", "functions, stacks, processes"}, {"top --window 1ms", "--interval is"}, {"top --interval soon", "--interval is a time"},
		{"top --limit 0", "from 1 on"}, {"top -p 1 -- true", "exclude each other"}, {"top --comm (", "--comm"},
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
		t.Fatal("it does not end")
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
