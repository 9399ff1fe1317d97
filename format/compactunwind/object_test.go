package compactunwind_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/format/compactunwind"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

var recordLine = regexp.MustCompile(`(?m)^    (start|length|compact encoding|personality function|LSDA): +0x([0-9a-f]+)(?: (.*))?$`)

// objdumpRecords returns the records of an object file as llvm-objdump prints them.
func objdumpRecords(t *testing.T, path string) (list []string) {
	t.Helper()
	out := oracle.Run(t, "llvm-objdump-19", "--macho", "--unwind-info", path)
	for _, record := range strings.Split(string(out), "  Entry at offset ")[1:] {
		var lo, length, encoding uint64
		personality, lsda := "", false
		for _, m := range recordLine.FindAllStringSubmatch(record, -1) {
			switch v := hex(t, m[2]); m[1] {
			case "start":
				lo = v
			case "length":
				length = v
			case "compact encoding":
				encoding = v
			case "personality function":
				personality = strings.TrimPrefix(m[3], "_")
			case "LSDA":
				lsda = true
			}
		}
		list = append(list, fmt.Sprintf("%x %x %08x %q %v", lo, length, encoding, personality, lsda))
	}
	return list
}

// TestObjects: files that are not linked, of all machines, with and without frame pointers. Their records are what llvm-objdump prints, functions
// left to DWARF have an FDE at their beginning, and at calls both say the same.
func TestObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-objdump-19")
	const text = 0x1000 // where the first section is
	for _, target := range []string{"i386-apple-macos10.6", "x86_64-apple-macos12", "arm64-apple-macos12"} {
		for _, flag := range []string{"-fomit-frame-pointer", "-fno-omit-frame-pointer"} {
			t.Run(target+flag, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "o.o")
				cmd := exec.Command("clang-19", "--target="+target, "-O2", "-fexceptions", "-femit-dwarf-unwind=always", "-Wno-vla-cxx-extension", flag, "-c", "testdata/frames.cc", "-o", path)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", cmd, err, out)
				}
				img, err := module.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer img.Close()
				table, err := compactunwind.Open(img)
				if err != nil || table == nil || img.Linked() {
					t.Fatalf("Open(%s): a table: %v, %v, linked: %v; want a table, not linked", path, table != nil, err, img.Linked())
				}
				u, err := format.Open(img)
				if err != nil {
					t.Fatal(err)
				}
				var starts []arch.Vaddr
				u.Entries(func(e format.Entry) bool {
					if e.IsFDE {
						starts = append(starts, e.FDE.Lo)
					}
					return true
				})
				dwarf := uint32(0x04000000)
				if img.Machine() == arch.ARM64 {
					dwarf = 0x03000000
				}
				var got []string
				for e := range table.Entries {
					name, _ := img.Place(e.Personality)
					got = append(got, fmt.Sprintf("%x %x %08x %q %v", uint64(e.Lo)-text, uint64(e.Hi-e.Lo), e.Encoding, name, e.HasLSDA))
					if section, off := img.Place(e.Lo); section != "__TEXT,__text" || off != uint64(e.Lo)-text {
						t.Errorf("function %#x is at %s+%#x", e.Lo, section, off)
					}
					if section, _ := img.Place(e.LSDA); e.HasLSDA && section != "__TEXT,__gcc_except_tab" {
						t.Errorf("the data of function %#x is at %s", e.Lo, section)
					}
					if e.Encoding&0x0f000000 == dwarf && !slices.Contains(starts, e.Lo) {
						t.Errorf("function %#x is left to DWARF, which has none there", e.Lo)
					}
				}
				want := objdumpRecords(t, path)
				if !slices.Equal(got, want) || len(want) < 10 {
					t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				list, damage := compile.Compare(img, u)
				if len(damage) > 0 {
					t.Errorf("Compare(%s) has damage %v, want none", path, damage)
				}
				equal := uint64(0)
				for _, c := range list {
					equal += c.Equal
					if c.Differ+c.OtherBase > 0 {
						t.Errorf("%s and %s differ at %d calls, count from other registers at %d: %v", c.First, c.Second, c.Differ, c.OtherBase, c.Differences)
					}
				}
				t.Logf("%d records, equal to DWARF at %d calls", len(got), equal)
				if least := uint64(20); equal < least && !(img.Machine() == arch.ARM64 && flag == "-fomit-frame-pointer") { // there, nearly all is left to DWARF
					t.Errorf("equal at %d calls, want %d or more", equal, least)
				}
			})
		}
	}
}
