package random

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A cost is what frame pointers cost a program: compiled with -O2, and with what flags add.
type cost struct {
	Program, Compiler, Flags string

	Text         int        // bytes of .text
	Tables       int        // bytes of .eh_frame and its index
	Instructions uint64     // of a short run
	Seconds      float64    // user time of a longer run: the median
	Ratio        [3]float64 // of it, to that of the program without flags: quartiles of pairs
}

// costFlags are what programs are compiled with besides -O2; the first is what the others are compared with.
var costFlags = []string{"", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables -funwind-tables"}

// costly are the programs whose cost is measured: sources of Debian's, and what they do.
var costly = []struct {
	name, pkg string
	sources   string // a pattern in the package
	not       []string
	flags     []string
	driver    string // a file of testdata, or none
	args      func(n int) []string
	short     int // of which instructions are counted
	long      int // of which the time is measured
}{
	{"zlib", "zlib", "*.c", nil, []string{"-DHAVE_UNISTD_H=1"}, "zlib.c", repeat, 1, 12},
	{"lua", "lua5.4", "src/*.c", []string{"luac.c"}, []string{"-DLUA_USE_POSIX"}, "", luaScript, 1, 16},
	{"sqlite3", "libdbd-sqlite3-perl", "sqlite3.c", nil, nil, "sqlite3.c", repeat, 1, 12},
	{"pugixml", "pugixml", "src/pugixml.cpp", nil, nil, "pugixml.cc", repeat, 2, 400},
}

func repeat(n int) []string { return []string{strconv.Itoa(n)} }

func luaScript(n int) []string {
	return []string{"-e", fmt.Sprintf(`for k = 1, %d do
		local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
		local t = {}
		for i = 1, 20000 do t[i] = (i * 7919 %% 10007) .. "x" end
		table.sort(t)
		local s = table.concat(t, ","):gsub("%%d+", function(d) return #d end)
		assert(fib(22) == 17711 and #s > 0)
	end`, n)}
}

// measureCosts compiles the programs in each way, and runs rounds of them, one after the other.
func measureCosts(t *testing.T, rounds int) (out []cost) {
	for _, p := range costly {
		dir := oracle.Source(t, "bookworm", "source-"+p.pkg, p.pkg, "*")
		sources, _ := filepath.Glob(filepath.Join(dir, p.sources))
		sources = slices.DeleteFunc(sources, func(path string) bool { return slices.Contains(p.not, filepath.Base(path)) })
		if len(sources) == 0 {
			t.Fatalf("the source of %s has no files", p.name)
		}
		include := filepath.Dir(sources[0])
		if p.driver != "" {
			sources = append(sources, absolute(t, filepath.Join("testdata/cost", p.driver)))
		}
		for _, compiler := range []string{"gcc-12", "clang-19"} {
			driver := compiler
			if strings.HasSuffix(sources[0], ".cpp") {
				driver = strings.NewReplacer("gcc", "g++", "clang", "clang++").Replace(compiler)
			}
			var these []cost
			var paths []string
			for i, flags := range costFlags {
				path := filepath.Join(t.TempDir(), fmt.Sprint(p.name, i))
				args := append(strings.Fields(flags), p.flags...)
				args = append(args, "-O2", "-w", "-I", include, "-o", path)
				args = append(append(args, sources...), "-lm", "-ldl", "-lpthread")
				oracle.Run(t, driver, args...)
				c := cost{Program: p.name, Compiler: compiler, Flags: flags}
				c.Text, c.Tables = sizes(t, path)
				c.Instructions = instructions(t, path, p.args(p.short))
				these, paths = append(these, c), append(paths, path)
			}
			times := make([][]float64, len(paths))
			for range rounds {
				for i, path := range paths {
					cmd := exec.Command(path, p.args(p.long)...)
					if b, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%s: %v\n%s", path, err, b)
					}
					times[i] = append(times[i], cmd.ProcessState.UserTime().Seconds())
				}
			}
			for i := range these {
				var ratios []float64
				for k, s := range times[i] {
					ratios = append(ratios, s/times[0][k])
				}
				slices.Sort(ratios)
				n := len(ratios)
				these[i].Seconds, these[i].Ratio = median(times[i]), [3]float64{ratios[n/4], ratios[n/2], ratios[3*n/4]}
				t.Logf("%+v", these[i])
			}
			out = append(out, these...)
		}
	}
	return out
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}

// sizes returns the bytes of a program's code, and of its .eh_frame with its index.
func sizes(t *testing.T, path string) (text, tables int) {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	d, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	s := d.Sizes()
	return int(f.Section(".text").Size), int(s.EHFrame + s.EHFrameHdr)
}

var collected = regexp.MustCompile(`Collected : (\d+)`)

// instructions counts the instructions of a run (valgrind's callgrind).
func instructions(t *testing.T, path string, args []string) uint64 {
	cmd := exec.Command("valgrind", append([]string{"--tool=callgrind", "--callgrind-out-file=/dev/null", path}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	m := collected.FindSubmatch(out)
	if err != nil || m == nil {
		t.Fatalf("valgrind %s: %v\n%s", path, err, out)
	}
	n, _ := strconv.ParseUint(string(m[1]), 10, 64)
	return n
}
