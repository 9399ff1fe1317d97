package native

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// mnemonics are all that the emitter may write, as a disassembler has them.
var mnemonics = map[*arch.Machine]string{
	arch.AMD64: `add and btr bts call clc cmova cmove cmp cqo div idiv imul ja jae jb je jmp jne
		lea leave mov movabs movd movdqa movdqu movzx neg not or pcmpeqb pminub pmovmskb pop pshuflw punpcklbw punpcklqdq push ret
		sar sbb sete setg setge setl setle setne shl shr stc sub test tzcnt xor`,
	arch.ARM64: `add adr adrp and asr b b.eq b.hi b.hs b.lo b.ne bic bl blr br cbnz cbz clz cmhs cmp cset csel dup eor fmov ldp ldr ldrb ldrh
		ldurb lsl lsr mov movk msub mul mvn neg orr rbit ret sdiv shrn stp str sub tbnz tbz udiv uxth xpaclri`,
}

var disassemblers = map[*arch.Machine][]string{
	arch.AMD64: {"objdump", "-d", "-M", "intel", "--no-show-raw-insn"},
	arch.ARM64: {"llvm-objdump-19", "-d", "--mattr=+pauth", "--no-show-raw-insn"},
}

// TestInstructions disassembles all that is written for real modules and for nonsense: there is no instruction among it
// that the emitter does not know, and none is cut.
func TestInstructions(t *testing.T) {
	oracle.Long(t)
	eachMachine(t, testInstructions)
}

func testInstructions(t *testing.T, m *arch.Machine) {
	dis := disassemblers[m]
	if len(dis) == 0 || mnemonics[m] == "" {
		t.Fatalf("disassemblers and mnemonics do not have %s", m.Name)
	}
	oracle.Need(t, dis[0])
	known := map[string]bool{}
	for _, m := range strings.Fields(mnemonics[m]) {
		known[m] = true
	}
	used := map[string]bool{}
	r := rand.New(rand.NewPCG(8, 9))
	files := []string{ld, libc}
	if m == arch.ARM64 {
		files = []string{armRoot + "ld-linux-aarch64.so.1", armRoot + "libc.so.6"}
	}
	tables := []*rows.Table{readTable(t, files[0]), readTable(t, files[1])}
	for range 4 {
		tables = append(tables, rowstest.Table(r, m, 100))
	}
	tables = append(tables, oneSet(m, rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: "\x30\x2f\xfc\xff"}})) // a loop that pushes
	line := regexp.MustCompile(`(?m)^ +[0-9a-f]+: *\t(\S+)`)
	all(t, func(t *testing.T, o Options) {
		for i, ref := range tables {
			if o.Layout == Inline && i == 1 {
				continue // like the others, but long
			}
			b, err := Emit(ref, o)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "x.so")
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(dis[0], append(dis[1:len(dis):len(dis)], path)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range line.FindAllSubmatch(out, -1) {
				used[string(m[1])] = true
				if !known[string(m[1])] {
					t.Fatalf("%v, table %d: %s", o, i, m[0])
				}
			}
		}
	})
	for m := range known {
		if !used[m] {
			t.Errorf("%s is in the list and was never written", m)
		}
	}
}

// TestAbsurd: tables that no compiler makes give code in proportion, or a clear error, in reasonable time.
func TestAbsurd(t *testing.T) {
	oracle.Long(t)
	eachMachine(t, testAbsurd)
}

func testAbsurd(t *testing.T, m *arch.Machine) {
	cfa := func(off int64) rows.CFA { return rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: off} }
	ra := rows.Rule{Of: m.RA, Kind: rows.Offset, Off: -8}
	n := 1_000_000
	if !callable(m) {
		n = 50_000 // interpreted
	}
	many := func(n, distinct int) *rows.Table {
		b := rows.NewBuilder(m)
		b.Begin(0x1000, 0x1000+arch.Vaddr(n))
		for i := range arch.Vaddr(n) {
			b.Row(0x1000+i, b.Intern(rows.Set{RA: m.RA, CFA: cfa(int64(i) % int64(distinct) * 8), Rules: []rows.Rule{ra}}))
		}
		return rows.Build(b)
	}
	long := func(op string) *rows.Table {
		return oneSet(m, rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: "\x77\x00" + strings.Repeat(op, 65_000/len(op))}, Rules: []rows.Rule{ra}})
	}
	spread := func() *rows.Table {
		b := rows.NewBuilder(m)
		for i := range arch.Vaddr(200) {
			b.Begin(i<<55, i<<55+1<<50)
			b.Row(i<<55, b.Intern(rows.Set{RA: m.RA, CFA: cfa(int64(i)), Rules: []rows.Rule{ra}}))
		}
		return rows.Build(b)
	}
	for _, x := range []struct {
		name string
		t    *rows.Table
		max  int // bytes
	}{
		{"offsets", oneSet(m, rows.Set{RA: m.RA, CFA: cfa(-1 << 63), Rules: []rows.Rule{{Of: 3, Kind: rows.Offset, Off: 1<<63 - 1}, {Of: m.RA, Kind: rows.Offset, Off: 1 << 62}}}), 4 << 10},
		{"many rows", many(n, 1000), 8 << 20},
		{"many rules", many(n, n/10), 60 << 20},
		{"no end", oneSet(m, rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: "\x2f\xfd\xff"}, Rules: []rows.Rule{ra}}), 4 << 10},
		{"a loop that pushes", oneSet(m, rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: "\x30\x2f\xfc\xff"}, Rules: []rows.Rule{ra}}), 4 << 10},
		{"jumps everywhere", long("\x28\x01\x00"), 16 << 20},
		{"jumps backward", long("\x28\xf0\xff"), 16 << 20},
		{"additions", long("\x23\x80\x01"), 16 << 20},
		{"values", long("\x12"), 4 << 10},
		{"far apart", spread(), 32 << 10},
		{"nothing", rows.Build(rows.NewBuilder(m)), 4 << 10},
	} {
		for l := range Inline {
			o := Options{Layout: l, Deref: Slice}
			start := time.Now()
			b, err := Emit(x.t, o)
			if err != nil {
				t.Errorf("%s, %v: %v", x.name, l, err)
				continue
			}
			took := time.Since(start)
			if limit := x.max + int(l)*len(x.t.Rows)*24; len(b) > limit || took > 10*time.Second {
				t.Errorf("%s, %v: %d bytes in %v; want %d at most", x.name, l, len(b), took, limit)
			}
			c, err := Load(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(c, x.t, 1); err != nil {
				t.Errorf("%s, %v: %v", x.name, l, err)
			}
			c.Close()
		}
	}
	if _, err := Emit(rows.Build(rows.NewBuilder(arch.ByELF(arch.EM_ARM))), Options{}); err != ErrMachine {
		t.Errorf("ARM: %v, want %v", err, ErrMachine)
	}
}

// TestBroken: where an instruction of code for AArch64 is missing, Verify finds it, if it runs it at all. What it does not run belongs to expressions
// that fail in all states.
func TestBroken(t *testing.T) {
	oracle.Long(t)
	if callable(arch.ARM64) {
		t.Skip("for machines other than AArch64: here, broken code would run")
	}
	ref := rowstest.Table(rand.New(rand.NewPCG(4, 4)), arch.ARM64, 3)
	b, err := Emit(ref, Options{Deref: Slice})
	if err != nil {
		t.Fatal(err)
	}
	in, _, err := check(b)
	if err != nil {
		t.Fatal(err)
	}
	const undefined, nop = 0, 0xd503201f // which the emitter never writes
	all, run, found := 0, 0, 0
	for at := int(in.TextLo); at < int(in.TextHi); at += 4 * 7 {
		finds := func(instruction uint32) bool {
			broken := bytes.Clone(b)
			le.PutUint32(broken[at:], instruction)
			sum := bytes.Index(b, le.AppendUint32(nil, in.Checksum))
			le.PutUint32(broken[sum:], checksum(broken, sum))
			c, err := Load(broken)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			return Verify(c, ref, 1) != nil
		}
		all++
		if finds(undefined) {
			run++
			if finds(nop) {
				found++
			}
		}
	}
	if t.Logf("%d of %d run, %d found", run, all, found); run*5 < all*4 || found*100 < run*99 {
		t.Errorf("of %d instructions, %d are run, %d found missing", all, run, found)
	}
}

// TestDamaged: a file with any byte changed, and one that is cut, is refused.
func TestDamaged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	b, err := Emit(rowstest.Table(r, arch.AMD64, 3), Options{ID: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range b {
		flip := byte(1) << r.IntN(8)
		b[i] ^= flip
		if _, _, err := check(b); err == nil {
			t.Fatalf("byte %#x: not refused", i)
		}
		b[i] ^= flip
	}
	for n := range len(b) {
		if _, _, err := check(b[:n]); err == nil {
			t.Fatalf("%d bytes of %d: not refused", n, len(b))
		}
	}
}

// infoPlace is where Emit puts a file's info.
const infoPlace = headSize + numProgs*progSize + 12 + len(noteOwner)

// TestPlaces: an error says where in the file it is.
func TestPlaces(t *testing.T) {
	good, err := Emit(rowstest.Table(rand.New(rand.NewPCG(1, 1)), arch.AMD64, 3), Options{ID: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	in, _, err := check(good)
	if err != nil {
		t.Fatal(err)
	}
	const notes = headSize + 3*progSize // the program header
	long := []byte{0xff, 0xff, 0xff, 0x7f}
	for _, c := range []struct {
		what  string
		at    int
		b     []byte
		off   int
		error string
	}{
		{"magic number", 0, []byte("\x7fELG"), 0, "not an ELF file"},
		{"e_phoff", 32, long, 32, "program header 0 lies outside"},
		{"offset of the notes", notes + 8, long, notes + 8, "the notes lie outside"},
		{"size of the notes", notes + 32, []byte{8}, infoPlace - 12 - len(noteOwner), "bytes of notes, and none of unspool"},
		{"size of a note", infoPlace - 16, long, infoPlace - 20, "a note lies outside"},
		{"owner", infoPlace - 8, []byte("U"), infoPlace - 20, "none of unspool"},
		{"version", infoPlace, []byte{Version + 1}, infoPlace, fmt.Sprintf("version %d, not %d", Version+1, Version)},
		{"layout", infoPlace + 2, []byte{9}, infoPlace + 2, "layout 9"},
		{"memory kind", infoPlace + 3, []byte{9}, infoPlace + 2, "memory 9"},
		{"machine", infoPlace + 4, []byte{40}, infoPlace + 2, "machine 40"},
		{"size", infoPlace + 8, []byte{good[infoPlace+8] + 1}, infoPlace + 8, "bytes, not"},
		{"entry point", infoPlace + 20, []byte{1, 0, 0, 0}, infoPlace + 20, "eh_elf_apply at 0x1, outside of the code"},
		{"number of rules", infoPlace + 32, long, infoPlace + 28, "2147483647 rules at"},
		{"end of the code", infoPlace + 40, long, infoPlace + 36, "code at"},
		{"rule", int(in.Rules) + 4, []byte{0, 0, 0, 0}, int(in.Rules) + 4, "rule 1 at 0x0, outside of the code"},
	} {
		b := bytes.Clone(good)
		copy(b[c.at:], c.b)
		le.PutUint32(b[infoPlace+infoChecksum:], checksum(b, infoPlace+infoChecksum))
		_, _, err := check(b)
		if e, ok := err.(*Error); !ok || e.Off != c.off || !strings.Contains(e.Msg, c.error) {
			t.Errorf("%s: %v, want eh_elf+%#x: … %s", c.what, err, c.off, c.error)
		}
	}
	b := bytes.Clone(good)
	b[len(b)-1] ^= 1
	path := filepath.Join(t.TempDir(), "x.so")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`x\.so: eh_elf\+0x1b0: checksum 0x[0-9a-f]+, not 0x[0-9a-f]+: the file is damaged$`)
	if _, err := Open(path); err == nil || !want.MatchString(err.Error()) {
		t.Errorf("Open: %v, want %s", err, want)
	}
}

// TestOpen refuses files that others could have written, and takes those of the user.
func TestOpen(t *testing.T) {
	good, err := Emit(oneSet(arch.AMD64, rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAReg, Reg: 7, Off: 8}, Rules: []rows.Rule{{Of: 16, Kind: rows.Offset, Off: -8}}}), Options{Deref: Slice, ID: "abc"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode)
		return path
	}
	path := write("good", good, 0o600)
	c, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if id, ok := c.Find(0x1800); !ok || c.ID() != "abc" || c.Deref() != Slice {
		t.Errorf("rule %d %v of %q", id, ok, c.ID())
	}
	c.Close()
	os.Symlink(path, filepath.Join(dir, "link"))
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 1
	refused := []string{write("group", good, 0o660), write("others", good, 0o606), filepath.Join(dir, "link"), dir, filepath.Join(dir, "none"),
		write("bad", bad, 0o600), write("empty", nil, 0o600), write("text", []byte(strings.Repeat("text ", 1000)), 0o600)}
	if os.Geteuid() == 0 {
		foreign := write("foreign", good, 0o600)
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		refused = append(refused, foreign)
	}
	for _, path := range refused {
		if c, err := Open(path); err == nil {
			c.Close()
			t.Errorf("%s: not refused", path)
		}
	}
}

// FuzzCheck changes files whose checksum is made right again: no file makes the loader read outside of it.
func FuzzCheck(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 3 {
		b, err := Emit(rowstest.Table(r, arch.AMD64, 2), Options{ID: "abc"})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// Where the checksum is expected in files of ours; elsewhere it stays wrong.
		const at = infoPlace + infoChecksum
		if len(b) > at+4 {
			le.PutUint32(b[at:], checksum(b, at))
		}
		in, _, err := check(b)
		if err == nil && (int(in.TextHi) > len(b) || int(in.Rules)+4*int(in.NumRules) > len(b)) {
			t.Errorf("%+v", in)
		}
	})
}
