package ehabi

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A listed is an entry as a judge lists it: its opcodes, byte by byte, with the judge's words for them.
type listed struct {
	lo   arch.Vaddr
	kind string
	ops  [][2]string // bytes in hex, words
}

var (
	opLine   = regexp.MustCompile(`^\s+((?:0x[0-9a-fA-F]{2}\s+)+)(?:; )?(\S.*?)\s*$`)
	entry    = regexp.MustCompile(`^0x([0-9a-f]+)(?: <[^>]*>)?: (.*)$`)
	vspMoves = regexp.MustCompile(`^vsp = vsp ([+-]) (\d+)$`)
	vspIs    = regexp.MustCompile(`^vsp = r(\d+)$`)
	pops     = regexp.MustCompile(`^pop \{(.*?)\}`)
	aRange   = regexp.MustCompile(`^([a-z]+)(\d+)-[a-z]+(\d+)$`)
)

// readelf has binutils list a file's entries.
func readelf(t testing.TB, path string) (list []listed) {
	cmd := exec.Command("readelf", "-u", path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("readelf -u %s: %v", path, err)
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if m := entry.FindStringSubmatch(line); m != nil {
			lo, _ := strconv.ParseUint(m[1], 16, 64)
			e := listed{lo: arch.Vaddr(lo)}
			if strings.Contains(m[2], "[cantunwind]") {
				e.kind = CantUnwind.String()
			}
			list = append(list, e)
			continue
		}
		if len(list) == 0 {
			continue
		}
		e := &list[len(list)-1]
		switch {
		case strings.Contains(line, "Personality routine"):
			e.kind = Generic.String()
		case strings.Contains(line, "Compact model"):
			e.kind = "compact"
		}
		if m := opLine.FindStringSubmatch(line); m != nil {
			e.ops = append(e.ops, [2]string{strings.ReplaceAll(strings.Join(strings.Fields(m[1]), ""), "0x", ""), strings.ToLower(m[2])})
		}
	}
	return list
}

// readobj has LLVM list them.
func readobj(t testing.TB, path string) (list []listed) {
	out := oracle.Run(t, "llvm-readobj-19", "--unwind", path)
	models := map[string]string{"CantUnwind": "cantunwind", "Compact (Inline)": "compact", "Compact": "compact", "Generic": "generic"}
	in := bufio.NewScanner(bytes.NewReader(out))
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case name == "FunctionAddress":
			lo, _ := strconv.ParseUint(value, 0, 64)
			list = append(list, listed{lo: arch.Vaddr(lo)})
		case name == "Model":
			list[len(list)-1].kind = models[value]
		case len(list) > 0:
			if m := opLine.FindStringSubmatch(" " + line); m != nil {
				e := &list[len(list)-1]
				e.ops = append(e.ops, [2]string{strings.ToLower(strings.ReplaceAll(strings.Join(strings.Fields(m[1]), ""), "0x", "")), strings.ToLower(m[2])})
			}
		}
	}
	return list
}

// effect is what the words of a judge do, by the letter: where the CFA is, and each register, "r4" or "d8", as a base and a number. ok is false where
// the words are no opcode's.
func effect(ops [][2]string) (cfa string, saved map[string]string, ok bool) {
	base, off := "r13", 0
	saved = map[string]string{}
	numbers := map[string]int{"fp": 11, "ip": 12, "sp": 13, "lr": 14, "pc": 15}
	for _, op := range ops {
		words := op[1]
		if words == "finish" {
			break
		}
		if m := vspMoves.FindStringSubmatch(words); m != nil {
			n, _ := strconv.Atoi(m[2])
			if m[1] == "-" {
				n = -n
			}
			off += n
			continue
		}
		if m := vspIs.FindStringSubmatch(words); m != nil {
			if at := saved["r"+m[1]]; at != "" {
				base = "*(" + at + ")"
			} else {
				base = "r" + m[1]
			}
			off = 0
			continue
		}
		m := pops.FindStringSubmatch(words)
		if m == nil {
			return "", nil, words == "refuse to unwind"
		}
		stack := ""
		for _, r := range strings.Split(m[1], ", ") {
			list := []string{r}
			if x := aRange.FindStringSubmatch(r); x != nil {
				lo, _ := strconv.Atoi(x[2])
				hi, _ := strconv.Atoi(x[3])
				for list = nil; lo <= hi; lo++ {
					list = append(list, x[1]+strconv.Itoa(lo))
				}
			}
			for _, r := range list {
				if n, ok := numbers[r]; ok {
					r = "r" + strconv.Itoa(n)
				}
				at := fmt.Sprintf("%s%+d", base, off)
				switch {
				case r == "r13":
					stack = at
				case strings.HasPrefix(r, "wr"), strings.HasPrefix(r, "wc"):
				default:
					saved[r] = at
				}
				if strings.HasPrefix(r, "d") || strings.HasPrefix(r, "wr") {
					off += 8
				} else {
					off += 4
				}
			}
		}
		if op[0][:2] == "b3" || op[0][0] == 'b' && op[0][1] >= '8' { // FSTMX: the words do not say it
			off += 4
		}
		if stack != "" {
			base, off = "*("+stack+")", 0
		}
	}
	if at := saved["r15"]; at != "" {
		saved["r14"] = at
		delete(saved, "r15")
	}
	return fmt.Sprintf("%s%+d", base, off), saved, true
}

// meaning is what a set says, as effect puts it; ok is false for an expression.
func meaning(s *rows.Set) (cfa string, saved map[string]string, ok bool) {
	base, off := fmt.Sprintf("r%d", s.CFA.Reg), s.CFA.Off
	switch s.CFA.Kind {
	case rows.CFANone:
		return "", nil, s.Gap()
	case rows.CFARegDeref:
		base, off = fmt.Sprintf("*(r%d%+d)", s.CFA.Reg, s.CFA.Off), s.CFA.Off2
	case rows.CFAReg:
	default:
		base, off = computed(s.CFA.Expr)
	}
	saved = map[string]string{}
	for _, r := range s.Rules {
		name := fmt.Sprintf("r%d", r.Of)
		if r.Of >= regD0 {
			name = fmt.Sprintf("d%d", r.Of-regD0)
		}
		switch r.Kind {
		case rows.Offset:
			saved[name] = fmt.Sprintf("%s%+d", base, off+r.Off)
		case rows.RegDeref:
			saved[name] = fmt.Sprintf("r%d%+d", r.Reg, r.Off)
		case rows.Expr:
			base, off := computed(r.Expr)
			saved[name] = fmt.Sprintf("%s%+d", base, off)
		default:
			return "", nil, false
		}
	}
	return fmt.Sprintf("%s%+d", base, off), saved, true
}

// computed is what an expression comes to, as effect puts it.
func computed(e string) (base string, off int64) {
	number := int64(0)
	for at := 0; at < len(e); {
		op, err := rows.DecodeOp(e, at)
		if err != nil {
			return err.Error(), 0
		}
		at = op.Next
		switch op.Code {
		case rows.DW_OP_deref:
			base, off = fmt.Sprintf("*(%s%+d)", base, off), 0
		case rows.DW_OP_consts:
			number = op.Arg
		case rows.DW_OP_plus:
			off += number
		default:
			base, off = fmt.Sprintf("r%d", op.Reg), op.Arg
		}
	}
	return base, off
}

// agree compares all entries of a file with those of a judge. It returns how many entries there are, and how many the judge has decoded.
func agree(t *testing.T, path, judge string, list []listed, permitted map[string]string) (entries, decoded int) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	x, err := Open(img)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if x == nil {
		if len(list) > 0 {
			t.Errorf("%s: no index, %s lists %d entries", path, judge, len(list))
		}
		return 0, 0
	}
	i, wrong := 0, 0
	x.Entries(func(e *Entry, err error) bool {
		if i >= len(list) {
			t.Errorf("%s: more entries than the %d of %s", path, len(list), judge)
			return false
		}
		want := &list[i]
		i++
		kind := e.Kind.String()
		if e.Kind == Inline {
			kind = "compact"
		}
		fail := func(format string, args ...any) {
			if wrong++; wrong < 20 {
				t.Errorf("%s: %#x, opcodes % x: %s", path, uint64(e.Lo), e.Code, fmt.Sprintf(format, args...))
			}
		}
		if err != nil || e.Lo != want.lo || kind != want.kind {
			fail("%s entry, %v; %s has a %s one at %#x", kind, err, judge, want.kind, uint64(want.lo))
			return true
		}
		if len(want.ops) == 0 {
			return true
		}
		decoded++
		var bytes string
		for _, op := range want.ops {
			bytes += op[0]
		}
		if have := fmt.Sprintf("%x", e.Code); !strings.HasPrefix(have, bytes) {
			fail("%s has %s", judge, bytes)
			return true
		}
		set, err := Decode(e.Code)
		cfa, saved, ok := effect(want.ops)
		gotCFA, gotSaved, plain := meaning(&set)
		for prefix := range permitted {
			if judge != "" && strings.HasPrefix(fmt.Sprintf("%x", e.Code), prefix) {
				permitted[prefix] = ""
				return true
			}
		}
		switch {
		case (err == nil) != ok:
			fail("%v; %s has %v", err, judge, want.ops)
		case err == nil && (!plain || gotCFA != cfa || !maps.Equal(gotSaved, saved)):
			fail("CFA %s, %v; %s has %s, %v", gotCFA, gotSaved, judge, cfa, saved)
		}
		return true
	})
	if i < len(list) {
		t.Errorf("%s: %d entries, %s lists %d", path, i, judge, len(list))
	}
	return i, decoded
}

// fetched returns the ELF files for Arm of packages of Debian.
func fetched(t testing.TB, machine, name string, packages ...string) []string {
	t.Helper()
	return oracle.Files(t, oracle.Debian(t, "bookworm", machine, name, packages...), func(path string) bool {
		f, err := os.Open(path)
		if err != nil {
			return false
		}
		defer f.Close()
		var h [20]byte
		_, err = f.ReadAt(h[:], 0)
		return err == nil && string(h[:4]) == "\x7fELF" && h[18] == arch.EM_ARM && h[16] != 1
	})
}

// TestFiles: every entry of the cross compilers' libraries and of Debian's programs is as readelf and llvm-readobj list it. Programs in C have next to
// no tables, those in C++ and Rust do.
func TestFiles(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "readelf", "llvm-readobj-19")
	cross := fetched(t, "amd64", "armhf-cross", "libc6-armhf-cross", "libstdc++6-armhf-cross")
	programs := fetched(t, "armhf", "armhf", "coreutils", "bash", "perl-base", "apt", "ripgrep")
	list := slices.Concat(cross, oracle.Spread(programs, oracle.Few(60, len(programs))))
	entries, decoded := 0, [2]int{}
	for _, path := range list {
		n, d := agree(t, path, "readelf", readelf(t, path), nil)
		entries, decoded[0] = entries+n, decoded[0]+d
		_, d = agree(t, path, "llvm-readobj", readobj(t, path), nil)
		decoded[1] += d
	}
	t.Logf("%d files, of them %d of cross libraries: %d entries; readelf decodes %d, llvm-readobj %d", len(list), len(cross), entries, decoded[0], decoded[1])
	if entries < 3000 || decoded[0] < 1000 || decoded[1] < 1000 {
		t.Errorf("%d entries, of which readelf decodes %d, llvm-readobj %d", entries, decoded[0], decoded[1])
	}
}

// TestOpcodes: all opcodes, in both byte orders, are as the judges read them.
func TestOpcodes(t *testing.T) {
	oracle.Need(t, "readelf", "llvm-readobj-19")
	for _, name := range []string{"arm", "armeb"} {
		path := "testdata/opcodes-" + name
		for _, j := range []struct {
			judge     string
			list      []listed
			permitted map[string]string
		}{
			{"readelf", readelf(t, path), map[string]string{
				"b5b4": "it does not know pointer authentication, and does not go on",
				"c8f1": "it does not count double registers",
				"b3f1": "the same",
			}},
			{"llvm-readobj", readobj(t, path), map[string]string{
				"b5b4": "it takes b5 for spare",
				"c8f1": "it does not count double registers",
				"b3f1": "the same",
			}},
		} {
			if name == "armeb" && j.judge == "llvm-readobj" {
				continue // it reads tables of little-endian files only
			}
			if n, _ := agree(t, path, j.judge, j.list, j.permitted); n < 40 {
				t.Errorf("%d entries", n)
			}
			for prefix, reason := range j.permitted {
				if reason != "" {
					t.Errorf("%s, %s: no entry differs that begins with %s: %s", name, j.judge, prefix, reason)
				}
			}
		}
	}
}

// TestDebugFrame: at each call, entries of all kinds say what .debug_frame says of the same code: readelf and llvm-readobj do not decode generic ones.
func TestDebugFrame(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "ld.lld-19", "llvm-objdump-19")
	call := regexp.MustCompile(`^\s*([0-9a-f]+):\s+blx?\s`)
	sites, generic, closed := 0, 0, 0
	for _, mode := range [][]string{{"-marm", "-O2"}, {"-mthumb", "-O2"}, {"-marm", "-O0"}, {"-mthumb", "-O1", "-fno-omit-frame-pointer"}, {"-marm", "-O2", "-mbig-endian"}} {
		dir := t.TempDir()
		obj, so := filepath.Join(dir, "a.o"), filepath.Join(dir, "a.so")
		for _, cmd := range [][]string{
			append([]string{"clang-19", "--target=armv7-linux-gnueabihf", "-g", "-fPIC", "-fexceptions", "-ffp-contract=off", "-c", "-o", obj, "testdata/calls.cc"}, mode...),
			{"ld.lld-19", "-shared", "-o", so, obj},
		} {
			oracle.Run(t, cmd[0], cmd[1:]...)
		}
		img, err := module.Open(so)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		frames, err := dwarf.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		want, damage := frames.Build(dwarf.DebugFrame)
		x, err := Open(img)
		if err != nil || x == nil || len(damage) > 0 {
			t.Fatalf("%v, %v, %v", x, err, damage)
		}
		kinds := map[arch.Vaddr]Kind{}
		x.Entries(func(e *Entry, err error) bool { kinds[e.Lo] = e.Kind; return err == nil })
		tab, errs := x.Rows()
		if len(errs) > 0 {
			t.Errorf("%v", errs)
		}
		out := oracle.Run(t, "llvm-objdump-19", "-d", "--no-show-raw-insn", so)
		for line := range strings.Lines(string(out)) {
			m := call.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			at, _ := strconv.ParseUint(m[1], 16, 64)
			pc := arch.Vaddr(at)
			a, b := want.At(pc), tab.At(pc)
			if a.Gap() {
				continue
			}
			cfa, saved, ok := meaning(a)
			gotCFA, gotSaved, plain := meaning(b)
			switch lo, _, ok := x.Bounds(pc); {
			case ok && kinds[lo] == CantUnwind: // __clang_call_terminate: nothing may be thrown through it
				closed++
				continue
			case ok && kinds[lo] == Generic:
				generic++
			}
			sites++
			if !ok || !plain || gotCFA != cfa || !maps.Equal(gotSaved, saved) {
				t.Errorf("%v: %#x: CFA %s, %v; .debug_frame has %s, %v", mode, at, gotCFA, gotSaved, cfa, saved)
			}
		}
	}
	t.Logf("%d calls, %d in functions with generic entries, %d without a table", sites, generic, closed)
	if sites < 100 || generic < 40 || closed > 10 {
		t.Errorf("%d calls, %d in functions with generic entries", sites, generic)
	}
}
