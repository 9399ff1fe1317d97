package oracle

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// A ScriptFrame is a frame as perf script prints it.
type ScriptFrame struct {
	// IP is an offset in the file of DSO; where DSO is "[unknown]", or in the kernel, an address. perf
	// has taken one off return addresses.
	IP  uint64
	DSO string
}

// Kernel says whether the frame is the kernel's.
func (f ScriptFrame) Kernel() bool { return f.IP >= 1<<63 }

// A ScriptSample is a sample as perf script prints it, innermost frame first.
type ScriptSample struct {
	Comm     string
	PID, TID int
	Time     uint64 // ns
	Frames   []ScriptFrame
}

// PerfScript runs perf script, without inlined functions, and calls yield for each sample in perf's
// order, until yield returns false. The sample is valid during the call.
func PerfScript(file string, yield func(*ScriptSample) bool) error {
	cmd := exec.Command("perf", "script", "--no-inline", "--ns", "-F", "comm,pid,tid,time,ip,sym,dso", "-i", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	whole, err := ParseScript(out, yield)
	if err != nil || !whole {
		cmd.Process.Kill()
		cmd.Wait()
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("perf script: %w\n%s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// ParseScript reads what perf script -F comm,pid,tid,time,ip,sym,dso prints; sym may be missing. whole is
// false where yield ended it.
func ParseScript(r io.Reader, yield func(*ScriptSample) bool) (whole bool, err error) {
	var s ScriptSample
	have := false
	dsos := map[string]string{}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 1<<16), 1<<24) // C++ names can be long
	for n := 1; in.Scan(); n++ {
		line := in.Bytes()
		switch {
		case len(line) == 0:
			if have && !yield(&s) {
				return false, nil
			}
			have = false
		case line[0] == '\t':
			f, err := scriptFrame(line, dsos)
			if err != nil || !have {
				return false, fmt.Errorf("perf script, line %d: %q is no frame: %v", n, line, err)
			}
			s.Frames = append(s.Frames, f)
		default:
			if have && !yield(&s) { // perf leaves the empty line out after a sample without frames
				return false, nil
			}
			s.Frames, have = s.Frames[:0], true
			if err := s.head(string(line)); err != nil {
				return false, fmt.Errorf("perf script, line %d: %q: %v", n, line, err)
			}
		}
	}
	if err := in.Err(); err != nil {
		return false, err
	}
	return !have || yield(&s), nil
}

// head reads "COMM PID/TID SECONDS.NANOSECONDS:"; COMM may contain anything.
func (s *ScriptSample) head(line string) error {
	line = strings.TrimRight(line, " ")
	line, ok := strings.CutSuffix(line, ":")
	i := strings.LastIndexByte(line, ' ')
	if !ok || i < 0 {
		return fmt.Errorf("no time")
	}
	sec, ns, _ := strings.Cut(line[i+1:], ".")
	a, err1 := strconv.ParseUint(sec, 10, 64)
	b, err2 := strconv.ParseUint(ns, 10, 64)
	if err1 != nil || err2 != nil || len(ns) != 9 {
		return fmt.Errorf("no time in ns")
	}
	s.Time = a*1e9 + b
	line = strings.TrimRight(line[:i], " ")
	i = strings.LastIndexByte(line, ' ')
	pid, tid, ok := strings.Cut(line[i+1:], "/")
	if i < 0 || !ok {
		return fmt.Errorf("no pid/tid")
	}
	if s.PID, err1 = strconv.Atoi(pid); err1 != nil {
		return err1
	}
	if s.TID, err1 = strconv.Atoi(tid); err1 != nil {
		return err1
	}
	s.Comm = strings.TrimSpace(line[:i])
	return nil
}

// scriptFrame reads "IP SYM (DSO)" or "IP (DSO)". SYM may contain anything.
func scriptFrame(line []byte, dsos map[string]string) (f ScriptFrame, err error) {
	line = bytes.TrimLeft(line, "\t ")
	ip, rest, _ := bytes.Cut(line, []byte(" "))
	if f.IP, err = strconv.ParseUint(string(ip), 16, 64); err != nil {
		return f, err
	}
	rest = bytes.TrimRight(rest, " ")
	i := bytes.LastIndex(rest, []byte("("))
	if i < 0 || rest[len(rest)-1] != ')' {
		return f, fmt.Errorf("no file")
	}
	dso := rest[i+1 : len(rest)-1]
	var ok bool
	if f.DSO, ok = dsos[string(dso)]; !ok {
		f.DSO = string(dso)
		dsos[f.DSO] = f.DSO
	}
	return f, nil
}
