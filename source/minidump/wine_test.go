package minidump

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// wine runs a program for Windows in the root directory of a Debian that has Wine. dir is a directory there for what Wine keeps.
func wine(t testing.TB, root, lib, loader, server, dlls, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, loader, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWPID} // with the program, Wine's services end
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	}
	c.Dir = "/"
	c.WaitDelay = time.Second
	c.Env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin", "WINEPREFIX=" + dir + "/prefix", "WINELOADER=" + loader, "WINESERVER=" + server,
		"WINEDLLPATH=/usr/lib/" + lib + "/wine:" + dlls, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml="}
	out, err := c.Output()
	if len(out) == 0 {
		oracle.Lacks(t, fmt.Sprintf("a Wine that runs: %v", err))
	}
	return string(out)
}

// places are the modules of a chain: offsets are of the file, or of memory.
func places(chain string) string {
	return regexp.MustCompile(`\+0x[0-9a-f]+`).ReplaceAllString(chain, "")
}

// TestWine: of a program for Windows that crashes under Wine, the dump that dbghelp writes has the stacks that the program itself and the system's walk have:
// for x86-64 by .pdata, for i386 by .eh_frame and the shape of the code, through the system's libraries. lldb has the same.
func TestWine(t *testing.T) {
	oracle.Full(t)
	for _, c := range []struct{ arch, pkg, cc, lib, loader, server, dlls string }{
		{"amd64", "wine64", "x86_64-w64-mingw32-gcc", "x86_64-linux-gnu", "/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64", "/usr/x86_64-w64-mingw32/lib"},
		{"i386", "wine32", "i686-w64-mingw32-gcc", "i386-linux-gnu", "/usr/lib/wine/wine", "/usr/lib/wine/wineserver32", "/usr/i686-w64-mingw32/lib"},
	} {
		t.Run(c.arch, func(t *testing.T) {
			oracle.Need(t, c.cc)
			root := oracle.Debian(t, "bookworm", c.arch, "wine", c.pkg, "libz-mingw-w64")
			if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o755); err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp(filepath.Join(root, "tmp"), "wine-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			inside := strings.TrimPrefix(dir, root)
			oracle.Run(t, c.cc, "-O2", "-g", "-o", filepath.Join(dir, "windows.exe"), "testdata/windows.c", "-ldbghelp")
			zlib, err := os.ReadFile(filepath.Join(root, c.dlls, "zlib1.dll")) // of dbghelp, where its package's trigger would have put it
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "zlib1.dll"), zlib, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			out := wine(t, root, c.lib, c.loader, c.server, c.dlls, inside, inside+"/windows.exe", inside+"/x.dmp")
			said := map[string][]uint64{}
			for line := range strings.Lines(out) {
				var who string
				var addr uint64
				if n, _ := fmt.Sscanf(line, "%s %x", &who, &addr); n == 2 {
					said[who] = append(said[who], addr)
				}
			}
			slices.Reverse(said["crashed"])
			if len(said["crashed"]) != 3 || len(said["captured"]) < 4 || len(said["waiting"]) != 1 || len(said["main"]) != 1 {
				t.Fatalf("the program says\n%s", out)
			}

			dump := filepath.Join(dir, "x.dmp")
			dirs := []string{dir, filepath.Join(root, "usr/lib", c.lib, "wine", map[string]string{"amd64": "x86_64-windows", "i386": "i386-windows"}[c.arch])}
			o := options(t)
			o.Files.DebugDirs = dirs
			f, err := Open(dump, o)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			s, err := stacks.Walk(&f.Process, stacks.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Threads) != 2 || !strings.Contains(strings.Join(f.Notes, "|"), "EXCEPTION_ACCESS_VIOLATION (0xc0000005), writing 0x0, at ") {
				t.Fatalf("%d threads, notes %q", len(s.Threads), f.Notes)
			}
			var pcs [2][]uint64
			for i := range s.Threads {
				th := &s.Threads[i]
				for _, fr := range th.Frames {
					pcs[i] = append(pcs[i], uint64(fr.PC))
				}
				if th.Stop != unwind.Outermost {
					t.Errorf("thread %d ends with %v", th.TID, th.Stop)
				}
			}
			callers := pcs[0][1:]
			if got := callers[:min(len(callers), 3)]; !slices.Equal(got, said["crashed"]) {
				t.Errorf("callers %#x, the functions say %#x", got, said["crashed"])
			}
			if !slices.Contains(callers, said["main"][0]) || !slices.Contains(pcs[1], said["waiting"][0]) {
				t.Errorf("stacks %#x\nlack %#x or %#x", pcs, said["main"], said["waiting"])
			}
			if captured := said["captured"]; c.arch == "amd64" { // that of i386 follows frame pointers
				if !slices.Equal(callers, captured) {
					t.Errorf("callers %#x\nthe system walks %#x", callers, captured)
				}
			}
			judge(t, []string{dump}, dirs, map[string]string{"x.dmp module": "lldb gives PE files without a debug directory IDs of their own"})

			// A dump of all memory needs no files, where memory has what walks need.
			wine(t, root, c.lib, c.loader, c.server, c.dlls, inside, inside+"/windows.exe", inside+"/full.dmp", "full")
			o = options(t)
			full, err := Open(filepath.Join(dir, "full.dmp"), o)
			if err != nil {
				t.Fatal(err)
			}
			defer full.Close()
			if want, got := places(chain(t, &f.Process, 0)), places(chain(t, &full.Process, 0)); c.arch == "amd64" && got != want {
				t.Errorf("in a dump of all memory\n got %s\nwant %s", got, want)
			}
			if all := strings.Join(notes(full), "|"); strings.Contains(all, "without it") || !strings.Contains(all, "rebuilt from the dump's memory") {
				t.Errorf("notes of a dump of all memory: %s", all)
			}

			// Each DLL from a symbol server's directory, and from a copy of the drive in other letters.
			for _, place := range []func(m *mapped) string{
				func(m *mapped) string {
					return filepath.Join(m.name(), fmt.Sprintf("%08X%x", m.stamp, m.size), m.name())
				},
				func(m *mapped) string { return strings.ToUpper(strings.ReplaceAll(m.path[3:], `\`, "/")) },
			} {
				tree := t.TempDir()
				for i := range f.modules {
					m := &f.modules[i]
					if m.img == nil {
						continue
					}
					to := filepath.Join(tree, place(m))
					if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(to, bytes.Clone(m.img.Bytes()), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				o := options(t)
				o.Files.Sysroot = tree
				again, err := Open(dump, o)
				if err != nil {
					t.Fatal(err)
				}
				if want, got := chain(t, &f.Process, 0), strings.ToLower(chain(t, &again.Process, 0)); got != want {
					t.Errorf("below --sysroot\n got %s\nwant %s\n%q", got, want, notes(again))
				}
				again.Close()
			}
		})
	}
}
