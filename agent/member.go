package agent

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/profile"
)

// A member is a process that has samples in this interval, as it was when it was looked at.
type member struct {
	group
	looked time.Time // at it
	start  uint64    // when the process started, in clock ticks; 0: it had gone
	thread string    // the name of its first thread
	path   string    // of its program
	kernel bool      // it is a thread of the kernel
}

// lookAgain is after how long a process is looked at again. Reading /proc for each sample is too dear.
const lookAgain = 5 * time.Second

// member returns the process of a sample. It looks at the process if it has not yet, if the first thread has another name and runs another program, as
// execve(2) does, if the settings are others, and after lookAgain. A process that has gone meanwhile lived where it did before.
func (a *Agent) member(s *profile.Sample) *member {
	m, now := a.members[s.PID], time.Now()
	same := m != nil && m.settings == a.settings
	renamed := same && s.TID == s.PID && s.Comm != m.thread
	if same && !renamed && now.Sub(m.looked) < lookAgain {
		return m
	}
	start := started(s.PID)
	if same && (start == 0 && !renamed || m.kernel && m.start == start) {
		m.looked = now
		return m
	}
	was := m
	if !same || start != m.start || executable(s.PID) != m.path { // also another process of this number
		was = nil
	} else if renamed && now.Sub(m.looked) < lookAgain { // the process has renamed itself
		m.thread = s.Comm
		if m.settings.asks("comm") {
			m.comm = name(s.Comm)
		}
		return m
	}
	n := a.find(s, was)
	n.looked, n.start = now, start
	if m != nil || len(a.members) < maxMembers {
		a.members[s.PID] = n
	}
	return n
}

// find finds out where the process of a sample lives. It may have gone: then its command is all that is known. was is what was known of this process; nil:
// nothing.
func (a *Agent) find(s *profile.Sample, was *member) *member {
	m := &member{group: group{settings: a.settings}, thread: s.Comm}
	if was == nil && procfs.KernelThread(int(s.PID)) {
		m.kernel, m.service, m.Place = true, "kernel", Place{Cgroup: "/"}
		return m
	}
	if s.TID != s.PID {
		m.thread = command(s.PID)
	}
	m.Place, m.path = PlaceOf(s.PID), executable(s.PID)
	a.ask(s, m, was)
	m.self = a.o.Self.Of(s.PID)
	pod := a.o.Pods != nil && m.Pod != ""
	if pod {
		a.o.Pods.Find(m.Pod, m.named()) // asks for the names, before Cut needs them
	}
	switch {
	case m.self.Name != "":
		m.service = name(m.self.Name)
	case pod: // one service for all of the container's commands: see labels
	case was != nil && was.Place == m.Place && was.self.Name == "": // whatever name the program has given itself
		m.service = was.service
	default:
		m.service = cmp.Or(m.name(), name(cmp.Or(command(s.PID), s.Comm, "unknown")))
	}
	return m
}

// started returns when a process started; 0 if it has ended, as far as its first thread says.
func started(pid int32) uint64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := bytes.Fields(b[max(0, bytes.LastIndexByte(b, ')')):]) // names may have parentheses
	if len(f) < 21 || f[1][0] == 'Z' || f[1][0] == 'X' {
		return 0
	}
	start, _ := strconv.ParseUint(string(f[20]), 10, 64)
	return start
}

// command returns the name of a process's first thread; empty if it has gone.
func command(pid int32) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxService))
	return strings.TrimSuffix(string(b), "\n")
}
