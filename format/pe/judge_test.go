package pe

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// x64Names are the general registers by Windows's numbers.
var x64Names = [16]string{"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"}

// readobjCode spells a code as llvm-readobj does.
func readobjCode(x *amd64Info, c amd64Code) string {
	s := fmt.Sprintf("0x%02X: ", c.off)
	reg := strings.ToUpper(x64Names[c.info])
	switch c.op {
	case UWOP_PUSH_NONVOL:
		return s + "PUSH_NONVOL reg=" + reg
	case UWOP_ALLOC_LARGE, UWOP_ALLOC_SMALL:
		return s + fmt.Sprintf("%s size=%d", map[uint8]string{UWOP_ALLOC_LARGE: "ALLOC_LARGE", UWOP_ALLOC_SMALL: "ALLOC_SMALL"}[c.op], c.n)
	case UWOP_SET_FPREG:
		return s + fmt.Sprintf("SET_FPREG reg=%s, offset=0x%X", strings.ToUpper(x64Names[x.frame]), x.frameOff)
	case UWOP_SAVE_NONVOL, UWOP_SAVE_NONVOL_FAR:
		return s + fmt.Sprintf("SAVE_NONVOL%s reg=%s, offset=0x%X", map[bool]string{true: "_FAR"}[c.op == UWOP_SAVE_NONVOL_FAR], reg, c.n)
	case UWOP_SAVE_XMM128, UWOP_SAVE_XMM128_FAR:
		return s + fmt.Sprintf("SAVE_XMM128%s reg=XMM%d, offset=0x%X", map[bool]string{true: "_FAR"}[c.op == UWOP_SAVE_XMM128_FAR], c.info, c.n)
	case UWOP_PUSH_MACHFRAME:
		return s + "PUSH_MACHFRAME errcode=" + []string{"no", "yes"}[c.info]
	}
	return s + "?"
}

// objdumpCode spells a code as objdump does.
func objdumpCode(x *amd64Info, c amd64Code) string {
	s := fmt.Sprintf("pc+0x%02x: ", c.off)
	switch c.op {
	case UWOP_PUSH_NONVOL:
		return s + "push " + x64Names[c.info]
	case UWOP_ALLOC_SMALL:
		return s + fmt.Sprintf("alloc small area: rsp = rsp - 0x%x", c.n)
	case UWOP_ALLOC_LARGE:
		return s + fmt.Sprintf("alloc large area: rsp = rsp - 0x%x", c.n)
	case UWOP_SET_FPREG:
		return s + fmt.Sprintf("FPReg: %s = rsp + 0x%x (info = 0x%x)", x64Names[x.frame], x.frameOff, c.info)
	case UWOP_SAVE_NONVOL, UWOP_SAVE_NONVOL_FAR:
		return s + fmt.Sprintf("save %s at rsp + 0x%x", x64Names[c.info], c.n)
	case UWOP_SAVE_XMM128:
		return s + fmt.Sprintf("save xmm%d at rsp + 0x%x", c.info, c.n)
	case UWOP_SAVE_XMM128_FAR: // objdump (2.40) scales this offset, too; the documentation says that it is in bytes, and llvm-readobj agrees
		return s + fmt.Sprintf("save xmm%d at rsp + 0x%x", c.info, 16*c.n)
	case UWOP_PUSH_MACHFRAME:
		return s + "interrupt entry (SS, old RSP, EFLAGS, CS, RIP" + []string{")", ",ErrorCode)"}[c.info]
	}
	return s + "?"
}

// readAll reads an UNWIND_INFO and its codes.
func (t *Table) readAll(r *reader, rva uint32) (x amd64Info, codes []amd64Code, err error) {
	x, err = t.readInfo(r, rva)
	for i := 0; err == nil && 2*i < len(x.codes); {
		var c amd64Code
		if c, i, err = x.code(t, i); err == nil {
			codes = append(codes, c)
		}
	}
	return x, codes, err
}

// readobj returns what llvm-readobj says of each function, a text each; whole is false where it crashed, as version 19 does on version 2.
func readobj(t *testing.T, path string) (list []string, whole bool) {
	out, err := exec.Command("llvm-readobj-19", "--unwind", path).Output()
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	var cur []string
	in := false
	for lines.Scan() {
		switch l := lines.Text(); {
		case l == "  RuntimeFunction {":
			cur, in = nil, true
		case l == "  }" && in:
			list, in = append(list, strings.Join(cur, "\n")), false
		case in:
			cur = append(cur, strings.TrimSpace(l))
		}
	}
	return list, err == nil
}

var named = regexp.MustCompile(`(?m)^(\w+:) (?:.* )?\((0x[0-9A-F]+)\)$`)

// likeReadobj writes an entry of x86-64 as llvm-readobj does.
func (t *Table) likeReadobj(r *reader, e entry) (string, error) {
	var b strings.Builder
	va := func(v uint32) uint64 { return uint64(t.base) + uint64(v) }
	where := func(e entry) {
		fmt.Fprintf(&b, "StartAddress: 0x%X\nEndAddress: 0x%X\nUnwindInfoAddress: 0x%X\n", va(e.begin), va(e.end), va(e.data))
	}
	where(e)
	x, codes, err := t.readAll(r, e.data)
	fmt.Fprintf(&b, "UnwindInfo {\nVersion: %d\nFlags [ (0x%X)\n", x.version, x.flags)
	for _, f := range []struct {
		bit  uint8
		name string
	}{{4, "ChainInfo"}, {1, "ExceptionHandler"}, {2, "TerminateHandler"}} {
		if x.flags&f.bit != 0 {
			fmt.Fprintf(&b, "%s (0x%X)\n", f.name, f.bit)
		}
	}
	fmt.Fprintf(&b, "]\nPrologSize: %d\n", x.prolog)
	if x.frame != 0 {
		fmt.Fprintf(&b, "FrameRegister: 0x%X\nFrameOffset: 0x%X\n", x.frame, x.frameOff/16)
	} else {
		fmt.Fprint(&b, "FrameRegister: -\nFrameOffset: -\n")
	}
	fmt.Fprintf(&b, "UnwindCodeCount: %d\nUnwindCodes [\n", len(x.codes)/2)
	for _, c := range codes {
		fmt.Fprintln(&b, readobjCode(&x, c))
	}
	fmt.Fprintln(&b, "]")
	switch {
	case x.flags&UNW_FLAG_CHAININFO != 0:
		fmt.Fprintln(&b, "Chained {")
		where(x.chained)
		fmt.Fprintln(&b, "}")
	case x.handler != 0:
		fmt.Fprintf(&b, "Handler: 0x%X\n", va(x.handler))
	}
	b.WriteString("}")
	return b.String(), err
}

// TestReadobj compares every entry and code of x86-64 images with what llvm-readobj reads.
func TestReadobj(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-readobj-19")
	files, functions := 0, 0
	for _, path := range images(t) {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		tab := Open(img)
		if tab == nil || tab.machine != arch.WindowsAMD64 {
			img.Close()
			continue
		}
		want, whole := readobj(t, path)
		r := tab.reader()
		two := slices.ContainsFunc(tab.entries, func(e entry) bool { x, _ := tab.readInfo(r, e.data); return x.version == 2 })
		if !whole && !two || whole && len(want) != len(tab.entries) {
			t.Errorf("%s: the judge has %d functions of %d; it crashed: %v", path, len(want), len(tab.entries), !whole)
		}
		slices.SortStableFunc(tab.entries, func(a, b entry) int { return cmp.Compare(a.at, b.at) }) // of Go's images, they are not sorted
		for i, w := range want[:min(len(want), len(tab.entries))] {
			got, err := tab.likeReadobj(r, tab.entries[i])
			if w = named.ReplaceAllString(w, "$1 $2"); got != w || err != nil {
				t.Errorf("%s: function %d: %v\n got\n%s\n want\n%s", path, i, err, got, w)
				break
			}
		}
		files, functions = files+1, functions+len(want)
		img.Close()
	}
	if functions < 9_000 {
		t.Errorf("%d functions of %d files, want 9,000", functions, files)
	}
	t.Logf("%d functions of %d files", functions, files)
}

// likeObjdump writes the codes of an UNWIND_INFO as objdump does.
func (t *Table) likeObjdump(r *reader, e entry) (string, error) {
	x, codes, err := t.readAll(r, e.data)
	var b strings.Builder
	frame := "none"
	if x.frame != 0 {
		frame = x64Names[x.frame]
	}
	fmt.Fprintf(&b, "Version: %d\nNbr codes: %d, Prologue size: 0x%02x, Frame offset: 0x%x, Frame reg: %s\n", x.version, len(x.codes)/2, x.prolog, x.frameOff/16, frame)
	tail := codes[:0:0]
	for len(codes) > 0 && codes[0].op == UWOP_EPILOG {
		tail, codes = append(tail, codes[0]), codes[1:]
	}
	if len(tail) > 0 {
		fmt.Fprintf(&b, "v2 epilog (length: %02x) at pc+:", tail[0].off)
		if tail[0].info&1 != 0 {
			fmt.Fprintf(&b, " 0x%x", e.end-e.begin-uint32(tail[0].off))
		}
		for _, c := range tail[1:] {
			if c.n == 0 {
				b.WriteString(" [pad]")
			} else {
				fmt.Fprintf(&b, " 0x%x", int64(e.end-e.begin)-c.n)
			}
		}
		b.WriteString("\n")
	}
	for _, c := range codes {
		fmt.Fprintln(&b, objdumpCode(&x, c))
	}
	return b.String(), err
}

var objdumpInfo = regexp.MustCompile(`^ [0-9a-f]{16} \(rva: ([0-9a-f]{8})\): ([0-9a-f]{16}) - ([0-9a-f]{16})$`)

// TestObjdump compares the unwind information of x86-64 images with what objdump reads: it knows version 2.
func TestObjdump(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "objdump")
	infos, two := 0, 0
	for _, path := range append(images(t), "testdata/amd64.dll") {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		tab := Open(img)
		if tab == nil || tab.machine != arch.WindowsAMD64 {
			img.Close()
			continue
		}
		out := oracle.Run(t, "objdump", "-p", path)
		var e entry
		var got, want string
		in := false
		r := tab.reader()
		check := func() {
			if infos++; strings.HasPrefix(want, "Version: 2\n") {
				two++
			}
			if got != want && !t.Failed() {
				t.Errorf("%s: %#x\n got\n%s\n want\n%s", path, e.begin, got, want)
			}
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSuffix(line, "\n")
			if m := objdumpInfo.FindStringSubmatch(line); m != nil || strings.HasPrefix(line, "\tUser data:") {
				if in {
					check()
				}
				if in = m != nil; in {
					var lo, hi uint64
					fmt.Sscanf(m[1]+" "+m[2]+" "+m[3], "%x %x %x", &e.data, &lo, &hi)
					e.begin, e.end = uint32(lo-uint64(tab.base)), uint32(hi-uint64(tab.base))
					if got, err = tab.likeObjdump(r, e); err != nil {
						in = false // of the golden image's damage
					}
					want = ""
				}
				continue
			}
			if l := strings.TrimSpace(line); in && (strings.HasPrefix(l, "Version:") || strings.HasPrefix(l, "Nbr codes:") || strings.HasPrefix(l, "v2 epilog") || strings.HasPrefix(l, "pc+")) {
				l, _, _ = strings.Cut(l, ", Flags")
				l = strings.TrimSuffix(l, " [Unexpected!]") // it expects codes in another order than GNAT's
				want += l + "\n"
			} else if in && !strings.HasPrefix(line, "\t") {
				check()
				in = false
			}
		}
		img.Close()
	}
	if two == 0 {
		t.Errorf("%d of %d records have version 2, want 1 or more", two, infos)
	}
	if infos < 9_000 {
		t.Errorf("%d records, want 9,000", infos)
	}
	t.Logf("%d records, %d of version 2", infos, two)
}
