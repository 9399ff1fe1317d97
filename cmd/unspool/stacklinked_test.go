package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// withoutFiles copies a core without its NT_FILE note, as systems write them that have none.
func withoutFiles(t *testing.T, core string) string {
	t.Helper()
	b, err := os.ReadFile(core)
	if err != nil {
		t.Fatal(err)
	}
	const ntFILE = 0x46494c45
	mark := append(binary.LittleEndian.AppendUint32(nil, ntFILE), "CORE\x00"...)
	i := bytes.Index(b, mark)
	if i < 0 {
		t.Fatalf("%s has no NT_FILE note", core)
	}
	copy(b[i:], "\x78\x56\x34\x12NONE") // what nobody knows
	path := filepath.Join(t.TempDir(), "core")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Cores that do not say which files were mapped have the same stacks as those that do, with the program's name or without: it is in the auxiliary
// vector and in the dynamic linker's list. gdb and eu-stack agree, given the program.
func TestCoresWithoutFiles(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gdb", "eu-stack", "gcc")
	for _, p := range stackPrograms {
		switch p.name {
		case "abort", "segv", "threads", "static", "python3", "child of vfork":
		default:
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			args := p.args(t)
			core := p.anyCore(t, args)
			plain := func(s *stackJSON) *stackJSON { // the linker's list has other names of the same files
				s.Exe, _ = filepath.EvalSymlinks(s.Exe)
				for i := range s.Threads {
					for j := range s.Threads[i].Frames {
						f := &s.Threads[i].Frames[j]
						f.Module, _ = filepath.EvalSymlinks(f.Module)
					}
				}
				return s
			}
			want := plain(runStack(t, core))
			bare := withoutFiles(t, core)
			for _, exe := range [][]string{nil, {args[0]}} {
				got := plain(runStack(t, append([]string{bare}, exe...)...))
				if len(got.Notes) > 0 || got.Exe != want.Exe || len(got.Threads) == 0 || !reflect.DeepEqual(got.Threads, want.Threads) {
					t.Errorf("with %q: notes %q, exe %s, want %s\n%s\nwant %s", exe, got.Notes, got.Exe, want.Exe, got.functions(), want.functions())
				}
			}
			got := runStack(t, bare, args[0])
			for name, d := range map[string][]string{"gdb": got.compare(gdbStacks(t, args[0], bare, judgeDepth)), "eu-stack": got.compare(euStacks(t, args[0], bare, judgeDepth))} {
				if len(d) > 0 {
					t.Errorf("%s: %s", name, strings.Join(d, "\n"))
				}
			}
		})
	}
}
