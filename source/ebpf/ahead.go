package ebpf

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// aheadTime bounds how long a command waits for its tables.
const aheadTime = 2 * time.Second

// maxAhead bounds how many files are loaded before a command starts.
const maxAhead = 256

// filesOf returns the files that a command maps when it starts: its program, the interpreter of that, and the libraries that it
// names, as the interpreter itself resolves them. Those that cannot be told come when they are mapped.
func filesOf(command []string) []string {
	if len(command) == 0 {
		return nil
	}
	path, err := exec.LookPath(command[0])
	for depth := 0; err == nil && depth < 4; depth++ {
		args := script(path)
		if len(args) == 0 {
			break
		}
		if path = args[0]; filepath.Base(path) == "env" && len(args) == 2 {
			path, err = exec.LookPath(args[1])
		}
	}
	if err != nil {
		return nil
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil
	}
	files := []string{path}
	interp := interpreter(path)
	if interp == "" {
		return files
	}
	ctx, cancel := context.WithTimeout(context.Background(), aheadTime)
	defer cancel()
	list := exec.CommandContext(ctx, interp, "--list", path) // of glibc and musl
	list.WaitDelay = time.Second
	var out limited
	list.Stdout = &out
	if list.Run() != nil {
		return append(files, interp)
	}
	for line := range strings.Lines(out.String()) {
		if _, to, ok := strings.Cut(line, "=>"); ok {
			line = to
		}
		if f := strings.Fields(line); len(f) > 0 && strings.HasPrefix(f[0], "/") && len(files) < maxAhead {
			if real, err := filepath.EvalSymlinks(f[0]); err == nil {
				files = append(files, real)
			}
		}
	}
	return files
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	l.Buffer.Write(b[:min(len(b), 1<<20-min(1<<20, l.Len()))])
	return len(b), nil
}

// script returns the first line of a script, without the #!, as words; nil where path is none.
func script(path string) []string {
	f, err := procfs.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	head := make([]byte, 256) // BINPRM_BUF_SIZE
	n, _ := io.ReadFull(f, head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	line, ok := bytes.CutPrefix(line, []byte("#!"))
	if !ok {
		return nil
	}
	return strings.Fields(string(line))
}

// interpreter returns the interpreter that a program names; "" where it has none.
func interpreter(path string) (name string) {
	f, err := module.OpenFile(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	img, err := module.Map(f)
	if err != nil {
		return ""
	}
	defer img.Close()
	_ = module.Guard(func() error { name = img.Interp(); return nil })
	return name
}

// ahead brings the tables of files into the kernel before anything maps them. It is called before the tracker's goroutine runs.
func (t *tracker) ahead(files []string, mods func(path, buildID string) *unwind.Module) {
	deadline := time.Now().Add(aheadTime)
	late := time.After(aheadTime)
	var wait []*table
	for _, path := range files {
		id, ok := procfs.FileBuildID(path, 0)
		if !ok || len(id) == 0 {
			continue // it is named otherwise when it is mapped
		}
		if mod := mods(path, hex.EncodeToString(id)); mod != nil {
			wait = append(wait, t.tables.add(mod))
		}
	}
	for _, l := range wait {
		select {
		case <-l.made:
			t.tables.slot(l)
		case <-late:
			return
		}
	}
	for _, l := range wait {
		for l.busy && time.Now().Before(deadline) {
			time.Sleep(200 * time.Microsecond)
			t.tables.settle()
		}
	}
}
