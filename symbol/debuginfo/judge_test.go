package debuginfo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A sample is a file to look at. The judge may need another one, with the same code: it does not read all that we read.
type sample struct {
	name  string
	tools []string
	build string // a shell script: $src has testdata; it makes out, and judge where that differs; 77 is a missing package
}

var samples = []sample{
	{"g++ heavy", []string{"g++"}, `g++ -g -O2 -o out $src/heavy.cc`},
	{"clang++ heavy", []string{"clang++-19"}, `clang++-19 -g -O2 -w -o out $src/heavy.cc`},
	{"clang++ without bases", []string{"clang++-19"}, `clang++-19 -g -O2 -w -S -o judge.s $src/heavy.cc
		sed '/DW_AT_[a-z_]*_base$/s/11[456]/0xff, 0x3f/' judge.s >out.s
		! cmp -s judge.s out.s
		for f in judge out; do clang++-19 -o $f $f.s; done`},
	{"g++ DWARF 4, types in sections of their own", []string{"g++"}, gxx + `-gdwarf-4 -fdebug-types-section`},
	{"g++ types in units of their own", []string{"g++"}, gxx + `-fdebug-types-section`},
	{"g++ DWARF 3, not optimised", []string{"g++"}, gxx + `-gdwarf-3 -gstrict-dwarf -O0`},
	{"g++ DWARF 2, functions in sections", []string{"g++"}, gxx + `-gdwarf-2 -gstrict-dwarf -ffunction-sections -Wl,--gc-sections`},
	{"g++ 64-bit DWARF", []string{"g++"}, gxx + `-gdwarf64`},
	{"clang++ DWARF 4", []string{"clang++-19"}, clangxx + `-gdwarf-4`},
	{"clang++ 64-bit DWARF, lld", []string{"clang++-19", "ld.lld-19"}, clangxx + `-gdwarf64 -fuse-ld=lld -ffunction-sections -Wl,--gc-sections`},
	{"clang++ lines only", []string{"clang++-19"}, clangxx + `-gline-tables-only`},
	{"clang++ aranges", []string{"clang++-19"}, clangxx + `-gdwarf-aranges`},
	{"clang++ for 32 bits", []string{"clang++-19", "ld.lld-19"}, cross("i386")},
	{"clang++ for AArch64", []string{"clang++-19", "ld.lld-19"}, cross("aarch64")},
	{"clang++ for big-endian s390x", []string{"clang++-19", "ld.lld-19"}, cross("s390x")},
	{"clang++ for big-endian 32-bit MIPS", []string{"clang++-19", "ld.lld-19"}, cross("mips")},
	{"g++ compressed", []string{"g++"}, gxx + `-gz`},
	{"g++ compressed as before", []string{"g++", "objcopy"}, gxx + `; objcopy --compress-debug-sections=zlib-gnu out out2; mv out judge; mv out2 out`},
	{"g++ split", []string{"g++"}, gxx + `-gsplit-dwarf`},
	{"g++ split DWARF 4", []string{"g++"}, gxx + `-gsplit-dwarf -gdwarf-4`},
	{"clang++ split", []string{"clang++-19"}, clangxx + `-gsplit-dwarf`},
	{"clang++ split DWARF 4", []string{"clang++-19"}, clangxx + `-gsplit-dwarf -gdwarf-4`},
	{"g++ package", []string{"g++", "llvm-dwp-19"}, gxx + `-gsplit-dwarf` + dwp},
	{"clang++ package", []string{"clang++-19", "llvm-dwp-19"}, clangxx + `-gsplit-dwarf` + dwp},
	{"clang++ package DWARF 4", []string{"clang++-19", "llvm-dwp-19"}, clangxx + `-gsplit-dwarf -gdwarf-4` + dwp},
	{"dwz", []string{"g++", "dwz"}, gxx + `; cp out judge; dwz out`},
	{"dwz DWARF 4", []string{"g++", "dwz"}, gxx + `-gdwarf-4; cp out judge; dwz out`},
	{"dwz, alternate file", []string{"g++", "dwz"}, gxx + `; cp out judge; cp out out2; dwz -m alt out out2; test -f alt`},
	{"dwz DWARF 5, supplementary file", []string{"g++", "dwz"}, gxx + `; cp out judge; cp out out2; dwz --dwarf-5 -m alt out out2; test -f alt`},
	{"separate", []string{"g++", "objcopy"}, gxx + `; cp out judge; objcopy --only-keep-debug out out.debug; mv out.debug out`},
	{"link-time optimisation", []string{"g++"}, gxx + `-flto`},
	{"gcc, nested functions", []string{"gcc"}, `gcc -g -O2 -w -o out $src/code.c`},
	{"gcc, OpenMP", []string{"gcc"}, `gcc -g -O2 -fopenmp -w -o out $src/code.c`},
	{"clang", []string{"clang-19"}, `clang-19 -g -O2 -w -o out $src/code.c`},
	{"assembly", []string{"gcc"}, `gcc -g -o out $src/code.s`},
	{"assembly DWARF 3", []string{"gcc"}, `gcc -Wa,-gdwarf-3 -o out $src/code.s`},
	{"rustc", []string{"rustc"}, `rustc -g -O -o out $src/code.rs`},
	{"go", []string{"go"}, `cp $src/code.txt code.go; CGO_ENABLED=0 go build -o out code.go`},
	{"libc, by several assemblers and compilers", []string{"readelf"}, `id=$(readelf -n /lib/*-linux-gnu/libc.so.6 | sed -n 's/.*Build ID: //p')
		file=/usr/lib/debug/.build-id/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-).debug
		test -f $file || exit 77
		cp $file out`},
}

// How the two units of light.cc are compiled; options follow.
const (
	units   = `build() { $c -g -O2 "$@" -c -DMAIN -o main.o $src/light.cc; $c -g -O2 "$@" -c -o other.o $src/light.cc; $c -g -O2 "$@" -o out main.o other.o; }; `
	gxx     = units + `c=g++; build `
	clangxx = units + `c=clang++-19; build `
	dwp     = `; llvm-dwp-19 -e out -o out.dwp; rm *.dwo`
)

// cross compiles for another machine.
func cross(machine string) string {
	return `for m in MAIN OTHER; do clang++-19 --target=` + machine + `-linux-gnu -g -O2 -fPIC -D$m -c -o $m.o $src/light.cc; done; ld.lld-19 -shared -o out MAIN.o OTHER.o`
}

// make runs a sample's script and returns our file and the judge's.
func (s *sample) make(t *testing.T) (ours, judge string) {
	t.Helper()
	oracle.Need(t, s.tools...)
	src, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("sh", "-ec", s.build)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "src="+src)
	if out, err := cmd.CombinedOutput(); cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
		oracle.Lacks(t, "libc6-dbg")
	} else if err != nil {
		t.Fatalf("%s: %v\n%s", s.build, err, out)
	}
	ours, judge = filepath.Join(dir, "out"), filepath.Join(dir, "judge")
	if _, err := os.Stat(judge); err != nil {
		judge = ours
	}
	return ours, judge
}

// An answer is the judge's, in JSON.
type answer struct {
	Symbol []struct {
		FunctionName, FileName string
		Line, Column           uint32
		StartLine              uint32
	}
}

func hexLines(addrs []arch.Vaddr) *bytes.Buffer {
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", uint64(a))
	}
	return &in
}

// ask asks llvm-symbolizer for all addresses at once. Names are those of DWARF, and not of the symbol table.
func ask(t testing.TB, file string, addrs []arch.Vaddr, functions string) []answer {
	t.Helper()
	var out, stderr bytes.Buffer
	cmd := exec.Command("llvm-symbolizer-19", "--inlines", "--functions="+functions, "--no-demangle", "--output-style=JSON", "-e", file)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = hexLines(addrs), &out, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, stderr.Bytes())
	}
	var list []answer
	for d := json.NewDecoder(&out); d.More(); {
		var a answer
		if err := d.Decode(&a); err != nil {
			t.Fatalf("%v: %v", cmd.Args, err)
		}
		list = append(list, a)
	}
	if len(list) != len(addrs) {
		t.Fatalf("%v: %d answers to %d questions\n%s", cmd.Args, len(list), len(addrs), stderr.Bytes())
	}
	return list
}

// textAddrs returns n addresses spread over the executable sections.
func textAddrs(t testing.TB, img *module.Image, n uint64) []arch.Vaddr {
	var addrs []arch.Vaddr
	total := uint64(0)
	var secs []module.Section
	for _, s := range img.Sections() {
		if s.Perm&module.Exec != 0 {
			secs = append(secs, s)
			total += s.Size
		}
	}
	step := max(1, total/n)
	for _, s := range secs {
		for off := uint64(0); off < s.Size; off += step {
			addrs = append(addrs, s.Addr+arch.Vaddr(off))
		}
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

func openAny(path string, _ []byte) (*module.Image, error) { return module.Open(path) }

func openInfo(t testing.TB, path string, o Options) *Info {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	if o.Open == nil {
		o.Open = openAny
	}
	in, err := Open(img, o)
	if err != nil || in == nil {
		t.Fatalf("Open(%s) = %v, %v", path, in, err)
	}
	t.Cleanup(func() { in.Close() })
	return in
}

// show prints places as ours and as the judge's are compared.
func showPlaces(list []Place) string {
	var b strings.Builder
	for _, p := range list {
		name := p.Linkage
		if name == "" {
			name = p.Name
		}
		fmt.Fprintf(&b, "%s %s:%d:%d (%d)\n", name, p.File, p.Line, p.Column, p.Decl)
	}
	return b.String()
}

func showAnswer(a answer) string {
	var b strings.Builder
	for _, p := range a.Symbol {
		if p.FunctionName == "" && p.FileName == "" && len(a.Symbol) == 1 {
			break
		}
		fmt.Fprintf(&b, "%s %s:%d:%d (%d)\n", p.FunctionName, p.FileName, p.Line, p.Column, p.StartLine)
	}
	return b.String()
}

func TestLLVM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-symbolizer-19", "llvm-objcopy-19")
	total := 0
	for _, s := range samples {
		t.Run(s.name, func(t *testing.T) {
			ours, judge := s.make(t)
			in := openInfo(t, ours, Options{})
			addrs := textAddrs(t, in.main.img, 16000)
			plain := judge + ".plain"
			oracle.Run(t, "llvm-objcopy-19", "-R", ".symtab", "-R", ".strtab", judge, plain)
			if _, err := os.Stat(judge + ".dwp"); err == nil {
				if err := os.Symlink(judge+".dwp", plain+".dwp"); err != nil {
					t.Fatal(err)
				}
			}
			want := ask(t, plain, addrs, "linkage")
			known, bad := 0, 0
			places := in.Places(addrs)
			for i, got := range places {
				g, w := showPlaces(got), showAnswer(want[i])
				if w != "" {
					known++
				}
				if g != w {
					if bad++; bad <= 5 {
						t.Errorf("%s: Places(%#x)\n got\n%s want\n%s", s.name, uint64(addrs[i]), g, w)
					}
				}
			}
			for _, n := range in.Notes() {
				t.Errorf("%s has the note %q, want none", s.name, n)
			}
			checkLines(t, in, addrs, places)
			t.Logf("%d addresses, %d known, %d differ", len(addrs), known, bad)
			total += len(addrs)
		})
	}
	t.Logf("%d addresses", total)
}

// checkLines holds Lines against Places, which were held against the judge: the row that an address has says the same line,
// up to what units say of addresses that they do not have.
func checkLines(t *testing.T, in *Info, addrs []arch.Vaddr, all [][]Place) {
	t.Helper()
	rows := in.Lines(addrs[0], addrs[len(addrs)-1]+1)
	bad := 0
	for i, places := range all {
		j, found := slices.BinarySearchFunc(rows, addrs[i], func(r Row, a arch.Vaddr) int { return cmp.Compare(r.Addr, a) })
		if !found {
			j--
		}
		var want Row
		if len(places) > 0 {
			want = Row{File: places[0].File, Line: places[0].Line}
		}
		var got Row
		if j >= 0 {
			got = Row{File: rows[j].File, Line: rows[j].Line}
		}
		if got != want {
			if bad++; bad < 5 {
				t.Errorf("Lines: at %#x %v, Places has %v", uint64(addrs[i]), got, want)
			}
		}
	}
}

// named returns the sample of a name.
func named(t *testing.T, name string) *sample {
	t.Helper()
	i := slices.IndexFunc(samples, func(s sample) bool { return s.name == name })
	if i < 0 {
		t.Fatalf("BUG: no sample %q", name)
	}
	s := samples[i]
	return &s
}

// TestNames compares the names that the source has.
func TestNames(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-symbolizer-19")
	for _, name := range []string{"g++ DWARF 4, types in sections of their own", "gcc, nested functions"} {
		path, _ := named(t, name).make(t)
		in := openInfo(t, path, Options{})
		addrs := textAddrs(t, in.main.img, 16000)
		want := ask(t, path, addrs, "short")
		compared := 0
		for i, places := range in.Places(addrs) {
			for j := range places {
				compared++
				if got, want := places[j].Name, want[i].Symbol[j].FunctionName; got != want {
					t.Errorf("%s: Places(%#x)[%d].Name = %q, want %q", name, uint64(addrs[i]), j, got, want)
				}
			}
		}
		if compared < 100 {
			t.Errorf("%s: Places gives %d names for %d addresses, want at least 100", name, compared, len(addrs))
		}
	}
}

// TestConcurrent asks from several goroutines at once.
func TestConcurrent(t *testing.T) {
	oracle.Need(t, "g++")
	s := named(t, "g++ split")
	path, _ := s.make(t)
	addrs := textAddrs(t, openInfo(t, path, Options{}).main.img, 16000)
	want := openInfo(t, path, Options{}).Places(addrs)
	in := openInfo(t, path, Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := in.Places(addrs); !reflect.DeepEqual(got, want) {
				t.Errorf("four goroutines get other places than one: %s", others(addrs, got, want))
			}
			in.Lines(addrs[0], addrs[len(addrs)-1])
			in.Notes()
		})
	}
	wg.Wait()
}

// TestMissing asks where a split file, a package or an alternate file is not there, or is another one: the lines stay, and a
// note tells.
func TestMissing(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++", "llvm-symbolizer-19", "dwz")
	for _, c := range []struct {
		sample, damage, note string
	}{
		{"g++ split", "rm *.dwo", "the split file"},
		{"g++ split", "for f in *.dwo; do : >$f; done", "the split file"},
		{"g++ split", "for f in *.dwo; do mv $f x; done; for f in out.split-* main.dwo other.dwo; do cp x $f; done", "no unit with the ID"},
		{"dwz, alternate file", "rm alt", "the alternate file"},
		{"dwz, alternate file", "cp judge alt", "not the alternate file"},
	} {
		s := named(t, c.sample)
		s.build += "\n" + c.damage
		path, judge := s.make(t)
		in := openInfo(t, path, Options{})
		img, err := module.Open(judge)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		addrs := textAddrs(t, img, 500)
		known := 0
		for _, p := range in.Places(addrs) {
			if len(p) > 0 && p[0].Line > 0 {
				known++
			}
		}
		if known < len(addrs)/2 {
			t.Errorf("%s, %s: %d of %d addresses have a line", c.sample, c.damage, known, len(addrs))
		}
		if !strings.Contains(strings.Join(in.Notes(), "\n"), c.note) {
			t.Errorf("%s, %s: notes %q, want %q", c.sample, c.damage, in.Notes(), c.note)
		}
	}
}
