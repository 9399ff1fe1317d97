package agent

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/profile"
)

// An asked is what rules ask of a process. What none asks is empty: each of these can make many places of one.
type asked struct {
	uid, user  string
	comm       string // of the first thread
	executable string // the path of the program's file, in the process's mount namespace
	buildID    string // of that file, in hexadecimal
	cmdline    string // with blanks between arguments
}

const (
	maxCmdline = 1024 // bytes read of a command line

	askPatience = 50 * time.Millisecond // for what a process, or its program's file system, can hold up
	maxLate     = 5                     // reads that are waited for so long in vain, in lateWindow
	lateWindow  = 10 * time.Second
	maxHeld     = 8 // threads that such reads hold
)

// asks says whether a label is one of those in an asked, and a rule reads it.
func (s *Settings) asks(label string) bool {
	switch label {
	case "cmdline":
		return s.CommandLines && asks(s.Rules, label)
	case "uid", "user", "comm", "executable", "executable_build_id":
		return asks(s.Rules, label)
	}
	return false
}

// ask finds out what rules ask of the process of a sample, which is to be m. What is slow to read is as it was, if the program is. a.mu is held.
func (a *Agent) ask(s *profile.Sample, m, was *member) {
	pid, rules := s.PID, a.settings
	if id, name := rules.asks("uid"), rules.asks("user"); id || name {
		uid := user(pid)
		if id {
			m.uid = uid
		}
		if name {
			m.user = userName(pid, uid)
		}
	}
	if rules.asks("comm") {
		m.comm = name(cmp.Or(command(pid), s.Comm))
	}
	if rules.asks("executable") {
		m.executable = m.path
	}
	id, line := rules.asks("executable_build_id"), rules.asks("cmdline")
	if !id && !line {
		return
	}
	if was != nil && was.path == m.path { // also what could not be read in time is not tried again in this interval
		m.buildID, m.cmdline = was.buildID, was.cmdline
		return
	}
	slow, ok := a.reader.read(func() (out asked) {
		if id {
			b, _ := procfs.FileBuildID(fmt.Sprintf("/proc/%d/exe", pid), 0)
			out.buildID = hex.EncodeToString(b)
		}
		if line {
			out.cmdline = cmdline(pid)
		}
		return out
	})
	m.buildID, m.cmdline = slow.buildID, slow.cmdline
	if !ok {
		a.stats.Unread++
	}
}

// executable returns the path of a process's program as /proc has it: a text, which is not followed. Empty: the process has gone.
func executable(pid int32) string {
	s, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return strings.ToValidUTF8(strings.TrimSuffix(s, " (deleted)"), "\ufffd")
}

// cmdline returns the beginning of a process's command line, at most 1,024 bytes as the process has them. It reads the process's memory.
func cmdline(pid int32) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxCmdline))
	return strings.ToValidUTF8(strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " "), "\ufffd")
}

// A patient reads what may never answer. Its method read is for one goroutine at a time.
type patient struct {
	patience time.Duration
	held     atomic.Int32 // threads
	late     int          // reads that came too late, since began
	began    time.Time
}

// read returns what f does. ok is false if that takes longer than p.patience, which happens five times in 10 s at most: then, and while eight threads are
// held up, it is not tried.
func (p *patient) read(f func() asked) (out asked, ok bool) {
	if now := time.Now(); now.Sub(p.began) >= lateWindow {
		p.began, p.late = now, 0
	}
	if p.late >= maxLate || p.held.Load() >= maxHeld {
		return asked{}, false
	}
	p.held.Add(1)
	done := make(chan asked, 1)
	go func() {
		defer p.held.Add(-1)
		done <- f()
	}()
	t := time.NewTimer(p.patience)
	defer t.Stop()
	select {
	case out = <-done:
		return out, true
	case <-t.C:
		p.late++
		return asked{}, false
	}
}
