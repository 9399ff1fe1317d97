package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A project is a library in C or C++, of a source package of Debian.
type project struct {
	name, pkg string
	sources   string   // a pattern, in the package
	not       []string // of those
	flags     []string
}

var projects = []project{
	{"tinyxml2", "tinyxml2", "tinyxml2.cpp", nil, nil},
	{"zlib", "zlib", "*.c", nil, []string{"-DHAVE_UNISTD_H=1"}},
	{"lua", "lua5.4", "src/*.c", []string{"lua.c", "luac.c"}, []string{"-DLUA_USE_POSIX"}},
	{"pugixml", "pugixml", "src/pugixml.cpp", nil, nil},
	{"sqlite3", "libdbd-sqlite3-perl", "sqlite3.c", nil, nil},
}

// files returns the sources of a project, and the source package with its version.
func (p *project) files(t testing.TB) (list []string, version string) {
	dir := oracle.Source(t, "bookworm", "source-"+p.pkg, p.pkg, "*")
	list, _ = filepath.Glob(filepath.Join(dir, p.sources))
	list = slices.DeleteFunc(list, func(path string) bool { return slices.Contains(p.not, filepath.Base(path)) })
	dsc, _ := filepath.Glob(filepath.Join(dir, "../*.dsc"))
	if len(list) == 0 || len(dsc) != 1 {
		t.Fatalf("the source of %s has %d files, %q", p.pkg, len(list), dsc)
	}
	return list, strings.TrimSuffix(filepath.Base(dsc[0]), ".dsc")
}

// compiler returns clang's or GCC's name for a language.
func compiler(name, source string) string {
	if strings.HasSuffix(source, ".c") {
		return name
	}
	return map[string]string{"clang-19": "clang++-19", "gcc": "g++"}[name]
}

var (
	// Mach-O has neither groups of sections nor sections with such names. A library of one module needs no groups.
	comdats  = regexp.MustCompile(`(?m)^\$.* = comdat .*\n|,? comdat(\(\$[^)]*\))?|,? section "\.text\.startup"`)
	attrsAre = regexp.MustCompile(`(?m)^(attributes #\d+ = \{ )`)
)

// intermediate compiles a project to one module of LLVM's intermediate code, optimised for x86-64, without and with frame pointers.
func (p *project) intermediate(t testing.TB, dir string, sources []string) (plain, framed string) {
	link := []string{"-S", "-o", filepath.Join(dir, "linked.ll")}
	for i, s := range sources {
		to := filepath.Join(dir, fmt.Sprint(i, ".ll"))
		oracle.Run(t, compiler("clang-19", s), append(slices.Clone(p.flags), "-O2", "-fPIC", "-w", "-S", "-emit-llvm", "-o", to, s)...)
		link = append(link, to)
	}
	oracle.Run(t, "llvm-link-19", link...)
	text, err := os.ReadFile(link[2])
	if err != nil {
		t.Fatal(err)
	}
	text = comdats.ReplaceAll(text, nil)
	plain, framed = filepath.Join(dir, "plain.ll"), filepath.Join(dir, "framed.ll")
	for path, b := range map[string][]byte{plain: text, framed: attrsAre.ReplaceAll(text, []byte(`${1}"frame-pointer"="all" `))} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return plain, framed
}

// A target is a system that intermediate code is compiled and linked for.
type target struct {
	triple, ending string
	link           func(to, object string) []string
}

var (
	forELF = target{"x86_64-linux-gnu", "so", func(to, object string) []string {
		return []string{"ld.lld-19", "-shared", "--eh-frame-hdr", "-z", "undefs", "-o", to, object}
	}}
	forMachO = target{"x86_64-apple-macos13", "dylib", func(to, object string) []string {
		return []string{"ld64.lld-19", "-arch", "x86_64", "-platform_version", "macos", "13", "13", "-dylib", "-undefined", "dynamic_lookup", "-o", to, object}
	}}
	forPE = target{"x86_64-w64-windows-gnu", "dll", func(to, object string) []string {
		return []string{"lld-link-19", "/dll", "/noentry", "/force:unresolved", "/nodefaultlib", "/out:" + to, object}
	}}
)

// build makes a shared library of intermediate code.
func (x *target) build(t testing.TB, code string) string {
	to := strings.TrimSuffix(code, "ll") + x.ending
	oracle.Run(t, "llc-19", "-O2", "-relocation-model=pic", "-mtriple="+x.triple, "-filetype=obj", "-o", to+".o", code)
	link := x.link(to, to+".o")
	oracle.Run(t, link[0], link[1:]...)
	return to
}

// A measured is what a format takes for one project, or for all.
type measured struct {
	format            string
	text              int // bytes of code
	standard          string
	of                int // bytes that standard takes
	bytes             int
	entries, lacking  int    // functions, or what the format has for them; those that it leaves out, or to another format
	code, left, right uint64 // bytes of code that were looked at; of these without an answer; of these where the format finds the caller
}

func (m *measured) add(z *measured) {
	m.format, m.standard = z.format, z.standard
	m.text += z.text
	m.of += z.of
	m.bytes += z.bytes
	m.entries += z.entries
	m.lacking += z.lacking
	m.code += z.code
	m.left += z.left
	m.right += z.right
}

func open(t testing.TB, path string) (*module.Image, *dwarf.Frames) {
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	return img, f
}

func sectionSize(img *module.Image, name string) int {
	if s := img.Section(name); s != nil {
		return int(s.Size)
	}
	return 0
}

// What the other formats' sizes are relative to.
const (
	forELFPlain  = "`.eh_frame` + hdr"
	forELFFramed = "`.eh_frame` + hdr, frame pointers"
	forELFGCC    = "`.eh_frame` + hdr, GCC"
	forARM       = "`.debug_frame`, Arm"
)

// define adds a symbol of the compiler's own files to assembly, without which ld links no library of C++.
func define(t testing.TB, asm string) {
	f, err := os.OpenFile(asm, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("\n.weak __dso_handle\n.hidden __dso_handle\n.data\n__dso_handle: .quad 0\n"); err != nil {
		t.Fatal(err)
	}
}

// measure compiles a project for all systems.
func (p *project) measure(t testing.TB, binutils [2]string, arm string) (list []measured, version string) {
	dir := t.TempDir()
	sources, version := p.files(t)
	plain, framed := p.intermediate(t, dir, sources)
	library := func(code, name string) (so string, c *compared, standard measured) {
		so = forELF.build(t, code)
		c, err := compareFile(so)
		if c == nil || err != nil {
			t.Fatalf("%s: %v", so, err)
		}
		img, _ := open(t, so)
		return so, c, measured{format: name, text: sectionSize(img, ".text"), standard: name, of: c.standard, bytes: c.standard, entries: c.all.functions, code: c.all.code}
	}
	so, c, standard := library(plain, forELFPlain)
	list = append(list, standard)
	for i, f := range written[:len(written)-1] {
		x := c.forms[i]
		m := standard
		m.format, m.bytes, m.left, m.lacking = byUs(f.name), x.bytes, x.left.code, x.left.functions
		list = append(list, m)
	}
	asm := filepath.Join(dir, "plain.s")
	oracle.Run(t, "llc-19", "-O2", "-relocation-model=pic", "-mtriple="+forELF.triple, "-filetype=asm", "-o", asm, plain)
	define(t, asm)
	for _, root := range binutils {
		list = append(list, measureGas(t, root, asm))
	}
	list = append(list, measureApple(t, forMachO.build(t, plain), so, standard), measurePE(t, forPE.build(t, plain), standard))

	soFramed, cFramed, standardFramed := library(framed, forELFFramed)
	list = append(list, standardFramed, measureApple(t, forMachO.build(t, framed), soFramed, standardFramed))
	pointers := standard
	x := cFramed.forms[len(written)-1]
	pointers.format, pointers.bytes = "frame pointers: code added by clang", standardFramed.text-standard.text
	pointers.code, pointers.left, pointers.entries = cFramed.all.code, x.left.code, 0
	list = append(list, pointers)

	gcc, ofGCC, _ := measureGCC(t, dir, p.flags, sources, "-fomit-frame-pointer")
	gccFramed, _, cGCC := measureGCC(t, dir, p.flags, sources, "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer")
	x = cGCC.forms[len(written)-1]
	list = append(list, measured{format: "frame pointers: code added by GCC", text: gcc, standard: forELFGCC, of: ofGCC, bytes: gccFramed - gcc, code: cGCC.all.code, left: x.left.code})
	return append(list, measureARM(t, dir, p.flags, sources, arm)...), version
}

// compiled compares the formats of other systems on sources that are compiled for each.
func (ev *evaluation) compiled(t testing.TB, say func(string, ...any)) {
	oracle.Need(t, "clang-19", "clang++-19", "llc-19", "llvm-link-19", "ld.lld-19", "ld64.lld-19", "lld-link-19", "gcc", "g++", "dwz", "objcopy")
	var binutils [2]string
	for i, suite := range []string{"trixie", "sid"} {
		binutils[i] = oracle.Debian(t, suite, "amd64", "binutils", "binutils", "binutils-aarch64-linux-gnu", "binutils-s390x-linux-gnu")
	}
	arm := oracle.Debian(t, "bookworm", "amd64", "armhf-c++", "libc6-dev-armhf-cross", "libstdc++-12-dev-armhf-cross")
	some := projects
	if !ev.whole {
		some = some[:2]
	}
	byLibrary := [][]string{{"format"}}
	var sum []measured
	for i, p := range some {
		list, version := p.measure(t, binutils, arm)
		byLibrary[0] = append(byLibrary[0], version)
		for k := range list {
			if i == 0 {
				byLibrary = append(byLibrary, []string{list[k].format})
				sum = append(sum, measured{})
			}
			sum[k].add(&list[k])
			byLibrary[k+1] = append(byLibrary[k+1], list[k].size())
		}
	}
	say("### The same sources, for each system\n\n%d libraries are compiled from Debian's sources. clang-19 -O2 -fPIC compiles each for x86-64, to one module of LLVM's intermediate code. From this module, llc-19 -O2 makes code for Linux, macOS and Windows, and lld-19 links it. "+
		"So the sources and LLVM's optimisations are the same. The machine code differs: calls, prologues and addresses of data follow each system's convention. The column *code* has the sizes of `.text`.\n\n", len(some))
	for _, line := range []string{
		"**unspool**: this project's writers, from the rows of the library for Linux.",
		"**binutils**: `as --gsframe` and `ld` of Debian's trixie and sid make the same library of llc's assembly. Its sizes are relative to the `.eh_frame` that these tools write. `as` leaves out functions in which clang states the size of pushed arguments (`DW_CFA_GNU_args_size`).",
		"**entries**: functions or parts of functions; of compact unwind and EHABI, what the linker leaves after it has merged equal neighbours.",
		"**compact unwind**: `__unwind_info`, and the `__eh_frame` that the linker keeps for functions without an encoding. A page of `__unwind_info` takes 4,096 bytes, however few entries it has. Apple's compilers keep frame pointers, so the lines with frame pointers are closer to their output.",
		"**code where it finds the caller**: for compact unwind, its CFA is compared with the CFA of `.eh_frame` for Linux at each byte, in functions of the same length. Its table alone is judged, without `__eh_frame`.",
		"**`.pdata` + `.xdata`**: the directory, and each record once, without the handlers' data. Leaf functions without a frame need no entry.",
		"**frame pointers**: there is no table. The bytes are those by which `.text` grows when all functions, leaves included, keep a frame pointer. Code without an answer is prologues, epilogues, linkage tables, and early returns before the frame is set up.",
		"**GCC**: gcc and g++ -O2 of this machine, from the sources, with `-fno-omit-frame-pointer -mno-omit-leaf-frame-pointer` and without.",
		"**Arm**: clang-19 -O2 -g for armv7 from the sources, in Arm's instructions. `.debug_frame` and EHABI's tables describe the same code. `.debug_frame` has no index. clang describes no epilogues in it, so both may be wrong there.",
	} {
		say("- %s\n", line)
	}
	say("\n%s\nBytes, and × as above, by library and its version:\n\n%s\n", markdown(byFormat(sum)), markdown(byLibrary))
	say("dwz and `objcopy --compress-debug-sections` leave `.eh_frame` of these libraries, compiled by GCC with -g, as it is, byte for byte. Both change sections for debuggers only.\n\n")
	say("### A Go program\n\nThe program is this project's, linked by Go without C. pclntab also has names, lines and inlined calls. The part that unwinding reads is counted apart: 12 bytes for each function, and each table of deltas once. "+
		"`.debug_frame` is counted expanded, and has no index; the file holds it compressed. Both recover the stack pointer and the return address only. The other formats are made from `.debug_frame`.\n\n%s", markdown(byFormat(measureGo(t))))
}

// byUs names a format that this project writes.
func byUs(format string) string {
	if strings.HasPrefix(format, "unspool") {
		return format
	}
	return format + ", by unspool"
}

// size has bytes, and how many times as many as the standard these are. Code may become smaller.
func (m *measured) size() string {
	if m.bytes < 0 {
		return fmt.Sprintf("none: %d less", -m.bytes)
	}
	return fmt.Sprintf("%d (%s ×)", m.bytes, times(m.bytes, m.of))
}

// byFormat has a line for each format.
func byFormat(list []measured) [][]string {
	cells := [][]string{{"format", "code", "bytes", "×", "relative to", "% of code", "entries", "of these left out, or to another format", "code without an answer", "code where it finds the caller"}}
	for _, m := range list {
		line := []string{m.format, fmt.Sprint(m.text), fmt.Sprint(m.bytes), times(m.bytes, m.of), m.standard, fmt.Sprintf("%.1f", 100*float64(m.bytes)/float64(m.text)), "", "", "", ""}
		if m.entries > 0 {
			line[6], line[7] = fmt.Sprint(m.entries), portion(m.lacking, m.entries)
		}
		if m.code > 0 {
			line[8] = portion(m.left, m.code)
		}
		if m.right > 0 {
			line[9] = portion(m.right, m.code)
		}
		cells = append(cells, line)
	}
	return cells
}
