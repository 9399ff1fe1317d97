package agent

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
)

// maxPasswd bounds what is read of a file of users, in bytes.
const maxPasswd = 4 << 20

// passwd are the names of this machine's users, by number, as they were when the first was asked for.
var passwd = sync.OnceValue(func() map[string]string { return readUsers("/etc/passwd", 0) })

// readUsers reads a file like /etc/passwd (passwd(5)), if it is owner's and nobody else may write to it; nil otherwise. The first name of a number holds.
func readUsers(path string, owner uint32) map[string]string {
	f, err := procfs.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	if s, ok := st.Sys().(*syscall.Stat_t); !ok || s.Uid != owner || s.Mode&0o022 != 0 {
		return nil
	}
	return parseUsers(f)
}

func parseUsers(r io.Reader) map[string]string {
	users := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxPasswd))
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), ":", 4)
		if len(f) < 4 || f[0] == "" {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		if id := strconv.FormatUint(n, 10); users[id] == "" {
			users[id] = name(f[0])
		}
	}
	return users
}

// userName returns the name of a process's user, by its number; empty if there is none. Containers have users of their own, whose names are not known here.
func userName(pid int32, uid string) string {
	if uid == "" || !procroot.Same(int(pid)) {
		return ""
	}
	return passwd()[uid]
}

// asks says whether a rule reads a label.
func asks(rules []*Rule, label string) bool {
	for _, r := range rules {
		for _, l := range r.SourceLabels {
			if l == label {
				return true
			}
		}
	}
	return false
}

// user returns the number of a process's effective user; empty if it has gone.
func user(pid int32) string {
	f := strings.Fields(procfs.Status(int(pid), "Uid")) // the real, effective, saved and file system's
	if len(f) < 2 {
		return ""
	}
	return f[1]
}
