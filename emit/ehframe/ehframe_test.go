package ehframe

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// meaning is what a set says of all registers that a walker carries.
func meaning(s *rows.Set, m *arch.Machine) string {
	if s.Gap() {
		return "gap"
	}
	flags := s.Flags & (rows.Signal | rows.RASigned | rows.BKey | rows.Tagged)
	if s.Outermost() {
		return fmt.Sprint("outermost ", flags)
	}
	x := rows.Set{CFA: s.CFA, RA: s.RA, Flags: flags}
	kept := s.Kept(m)
	for r := range max(m.Regs(), 128) { // vector registers have no slot, and rules that readers keep
		rule, ok := s.Rule(r)
		slot := m.Slot(r)
		switch {
		case ok && rule.Kind == rows.SameValue && slot == arch.NoSlot && slices.Contains(m.CalleeSaved, r):
		case ok && rule.Kind == rows.SameValue && slot != arch.NoSlot:
			ok = false
			kept |= 1 << slot
			fallthrough
		case !ok && slot != arch.NoSlot && r != m.SP && r != s.RA && r != m.PC:
			if kept>>slot&1 == 0 {
				x.Rules = append(x.Rules, rows.Rule{Of: r, Kind: rows.Undefined})
			}
		case ok:
			x.Rules = append(x.Rules, rule)
		}
	}
	return x.Text(m)
}

// check compares what a section says with the table it was made of: equal where it says something, and what it does not say is counted.
func check(t *testing.T, name string, ref *rows.Table, s *Section) {
	t.Helper()
	read := dwarf.New(dwarf.Sections{
		Machine: ref.Machine, Order: binary.LittleEndian, AddrSize: 8,
		EHFrame: []dwarf.Section{{Name: ".eh_frame", Addr: s.Addr, Data: s.Bytes}},
		Hdr:     &dwarf.Section{Name: ".eh_frame_hdr", Addr: s.At, Data: s.Index},
	})
	got, damage := read.Build(dwarf.EHFrame)
	for _, d := range damage {
		t.Errorf("%s: %v", name, d)
	}
	// Each entry of the index leads to the FDE that begins where it says, and they are sorted.
	le := binary.LittleEndian
	if n := int(le.Uint32(s.Index[8:])); n != s.Functions || len(s.Index) != 12+8*n || s.At+4+arch.Vaddr(le.Uint32(s.Index[4:])) != s.Addr {
		t.Errorf("%s: an index of %d bytes for %d functions", name, len(s.Index), s.Functions)
	}
	var last arch.Vaddr
	for x := s.Index[12:]; len(x) > 0; x = x[8:] {
		pc, fde := s.At+arch.Vaddr(int32(le.Uint32(x))), s.At+arch.Vaddr(int32(le.Uint32(x[4:])))-s.Addr
		if field := s.Bytes[fde+8:]; pc <= last || s.Addr+fde+8+arch.Vaddr(int32(le.Uint32(field))) != pc {
			t.Fatalf("%s: the index has %#x, behind %#x, at %#x", name, uint64(pc), uint64(last), uint64(fde))
		}
		last = pc
	}
	var at []arch.Vaddr
	for _, x := range []*rows.Table{ref, got} {
		for _, r := range x.Rows {
			at = append(at, r.Lo)
		}
	}
	slices.Sort(at)
	at = slices.Compact(at)
	missing := uint64(0)
	for i, pc := range at {
		g, w := meaning(got.At(pc), ref.Machine), meaning(ref.At(pc), ref.Machine)
		if g == "gap" && w != g {
			missing += uint64(at[i+1] - pc)
		} else if g != w {
			t.Errorf("%s at %#x\n got %s\nwant %s", name, uint64(pc), g, w)
			return
		}
	}
	for _, l := range s.Left {
		missing -= l.Bytes
	}
	if missing != 0 {
		t.Errorf("%s: %d bytes more are left out than the counts say", name, int64(missing))
	}
}

// TestEmit compares sections with the rows of this machine's programs, and of libraries for AArch64, at every address.
func TestEmit(t *testing.T) {
	oracle.Long(t)
	small := slices.DeleteFunc(oracle.Binaries(t), func(p string) bool {
		st, err := os.Stat(p)
		return err != nil || st.Size() > 4<<20
	})
	others, err := filepath.Glob("/usr/aarch64-linux-gnu/lib/*.so*")
	if err != nil || len(others) == 0 {
		oracle.Lacks(t, "libc6-arm64-cross")
	}
	paths := append(oracle.Spread(small, oracle.Few(20, 1000)), oracle.Spread(others, oracle.Few(5, 100))...)
	least := oracle.Few(15, 200)
	files, functions := 0, 0
	var size, tables uint64
	for _, path := range paths {
		img, err := module.Open(path)
		if err != nil {
			continue // a linker's script
		}
		f, _ := format.Open(img)
		ref, _ := f.Rows()
		if len(ref.Rows) == 0 || img.Machine() != arch.AMD64 && img.Machine() != arch.ARM64 {
			img.Close()
			continue
		}
		files++
		for _, bounds := range []rows.Bounds{f.Bounds, nil} {
			s, err := Emit(ref, (ref.Rows[len(ref.Rows)-1].Lo+4096)&^3, bounds)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			check(t, fmt.Sprintf("%s, %d functions", path, s.Functions), ref, s)
			if bounds != nil {
				size, tables, functions = size+uint64(len(s.Bytes)+len(s.Index)), tables+f.Size(format.EHFrame)+f.IndexSize(), functions+s.Functions
			}
			if len(s.Left) > 0 || s.CallsOnly > 0 {
				t.Errorf("%s: left out %v", path, s.Left)
			}
		}
		img.Close()
	}
	if files < least {
		t.Errorf("%d files", files)
	}
	t.Logf("%d files, %d functions: %d bytes; their own .eh_frame and its index have %d", files, functions, size, tables)
}

// byHand are tables with each kind of rule, and with what is left out.
var byHand = []struct{ table, left string }{
	{`machine x86_64
1000  cfa=rsp+8  ra=c-8
1001  cfa=rsp+16  rbp=c-16  ra=c-8
1004  cfa=rbp+16  rbx=c-24  rbp=c-16  ra=c-8
1005  cfa=rbp+16  rbx=s  rbp=c-16  ra=c-8
1010  cfa=rsp+100000  rbp=c-200  ra=c-8
1110  cfa=rsp+8  rbp=rbx  ra=rdx
21110  cfa=rsp+8  rbp=u  ra=c-8
21111  cfa=rsp+16  rbx=c-24  rbp=c-16  ra=c-8
21112  cfa=rsp+24  rbx=c-24  rbp=c-16  r12=c-32  ra=c-8
21113  cfa=rsp+8  ra=c-8
21114  cfa=rsp+24  rbx=c-24  rbp=c-16  r12=c-32  ra=c-8
21115  cfa=rsp+16  rbx=c-24  rbp=c-16  ra=c-8
21116  cfa=rsp+24  rbx=c-24  rbp=c-16  r12=c-32  ra=c-8
21117  cfa=rsp+8  ra=c-8
21118  cfa=rsp+16  rbx=c-24  rbp=c-16  ra=c-8
21120  gap
`, ""},
	{`machine x86_64
1000  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8
1002  cfa=rsp-8  rbx=c+13  rbp=rbp  ra=c-8
1003  cfa=rsp-16  rbx=c+13  rsp=c+0  ra=c-8
1004  cfa=rbp-16  rsp=c-16  ra=c-8
1005  cfa=rsp+8  ra=c-8  signal
1006  cfa=rsp+8  ra=u
1007  cfa=rsp+8  rbp=c-16  ra=c-8  partial
1009  cfa=rsp+16  rbx=c-24  rbp=s  ra=c-8  partial
100a  cfa=rsp+8  ra=c-8  partial
100b  cfa=rsp+8
100c  cfa=DW_OP_breg7 RSP+8, DW_OP_dup  ra=c-8
100d  cfa=rsp+9999999999  rbp=c-9999999992  ra=c-8
100e  gap
`, ""},
	{`machine aarch64
1000  cfa=sp+0
1004  cfa=sp+32  x29=c-32  ra=c-24  ra-signed
1008  cfa=x29+32  x19=c-16  x29=c-32  ra=c-24  ra-signed
100c  cfa=sp+0
1010  cfa=sp+0  b-key
1014  cfa=sp+16  x29=c-16  ra=c-8  ra-signed  b-key
1018  cfa=sp+0  ra-signed  ra-signed-pc
101c  cfa=sp+0  x29=s  partial
1020  gap
`, "a return address signed with the program counter"},
}

func TestByHand(t *testing.T) {
	for i, c := range byHand {
		ref, err := rows.ParseText(strings.NewReader(c.table))
		if err != nil {
			t.Fatal(err)
		}
		s, err := Emit(ref, 0x30000, nil)
		if err != nil {
			t.Fatal(err)
		}
		check(t, c.table, ref, s)
		left := ""
		if len(s.Left) > 0 {
			left = s.Left[0].Reason
		}
		if left != c.left {
			t.Errorf("left out: %q, want %q", left, c.left)
		}
		again, _ := Emit(ref, 0x30000, nil)
		if string(again.Bytes) != string(s.Bytes) || string(again.Index) != string(s.Index) {
			t.Errorf("table %d gives other bytes the second time\n got %x, index %x\nwant %x, index %x", i, again.Bytes, again.Index, s.Bytes, s.Index)
		}
	}
	for _, m := range []*arch.Machine{arch.ByELF(arch.EM_S390), arch.I386} {
		if _, err := Emit(rows.Build(rows.NewBuilder(m)), 0, nil); err == nil {
			t.Errorf("%s is written", m.Name)
		}
	}
	ref, _ := rows.ParseText(strings.NewReader(byHand[0].table))
	if _, err := Emit(ref, 0x100000000, nil); err == nil || !strings.Contains(err.Error(), "too far") {
		t.Errorf("4 GiB away: %v", err)
	}
}

// warns matches what tools say of a section that is wrong.
var warns = regexp.MustCompile(`(?i)warning|error|corrupt|invalid|overlap|bad `)

// TestFile: the rows of images of Windows are in an ELF file, which tools read without a complaint.
func TestFile(t *testing.T) {
	oracle.Need(t, "readelf", "eu-elflint", "llvm-dwarfdump-19")
	dir := t.TempDir()
	for _, path := range []string{"../../format/pe/testdata/amd64.dll", "../../format/pe/testdata/arm64.dll"} {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := format.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		ref, _ := f.Rows()
		var code []Range
		for _, s := range img.Sections() {
			if s.Perm&module.Exec != 0 {
				code = append(code, Range{s.Addr, s.Addr + arch.Vaddr(s.Size)})
			}
		}
		b, s, err := File(ref, code, f.Bounds)
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, filepath.Base(path)+".elf")
		if err := os.WriteFile(out, b, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, tool := range [][]string{{"readelf", "-aW"}, {"readelf", "-wf"}, {"eu-elflint", "--gnu-ld"}, {"llvm-dwarfdump-19", "--eh-frame"}} {
			text, _ := exec.Command(tool[0], append(tool[1:], out)...).CombinedOutput()
			for line := range strings.Lines(string(text)) {
				if warns.MatchString(line) {
					t.Errorf("%s: %v: %s", path, tool, line)
				}
			}
		}
		read, err := module.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		u, err := format.Open(read)
		if err != nil {
			t.Fatal(err)
		}
		got, errs := u.Rows(format.EHFrame)
		if len(errs) > 0 || len(s.Left) > 0 {
			t.Errorf("Rows(EHFrame) of what was written has damage %v, and %v are left out, want none", errs, s.Left)
		}
		if read.Machine().ELF != target(ref.Machine).ELF {
			t.Errorf("%s: machine %s", path, read.Machine().Name)
		}
		for _, r := range append(slices.Clone(ref.Rows), got.Rows...) {
			if g, w := meaning(got.At(r.Lo), ref.Machine), meaning(ref.At(r.Lo), ref.Machine); g != w {
				t.Fatalf("%s: at %#x: %s, want %s", path, uint64(r.Lo), g, w)
			}
		}
		t.Logf("%s: %d rows in %d bytes", path, s.Rows, len(s.Bytes))
		read.Close()
		img.Close()
	}
}

// TestGo: a stripped program in Go has .eh_frame in a copy, which runs as before. Tools read it without a complaint, gdb walks by it, and it agrees with
// Go's own table at each address.
func TestGo(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go", "readelf", "llvm-dwarfdump-19", "eu-readelf")
	dir := t.TempDir()
	source, program, with := filepath.Join(dir, "a.go"), filepath.Join(dir, "a"), filepath.Join(dir, "b")
	text := `package main

import ("fmt"; "os"; "strings"; "syscall")

//go:noinline
func deep(n int) int { var b [100]int; b[n%100] = n; if n == 0 { if len(os.Args) > 1 { syscall.Kill(os.Getpid(), syscall.SIGTRAP) }; return len(strings.Repeat("x", 9)) }; return deep(n-1) + b[n%100] }

func main() { fmt.Println(deep(50)) }
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	img, err := module.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := format.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Rows()
	b, s, err := Add(img.Bytes(), ref, f.Bounds)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "Go", ref, s)
	if err := os.WriteFile(with, b, 0o755); err != nil {
		t.Fatal(err)
	}
	want, got := oracle.Run(t, program), oracle.Run(t, with)
	if string(want) != string(got) || len(got) == 0 {
		t.Errorf("the copy says %q, want %q", got, want)
	}
	copied, err := module.Open(with)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	c, err := format.Open(copied)
	if err != nil {
		t.Fatal(err)
	}
	again, errs := c.Rows(format.EHFrame)
	if len(errs) > 0 {
		t.Fatalf("Rows(EHFrame) of the copy has damage %v, want none", errs)
	}
	for _, r := range ref.Rows {
		if g, w := meaning(again.At(r.Lo), ref.Machine), meaning(ref.At(r.Lo), ref.Machine); g != w {
			t.Fatalf("at %#x: %s, want %s", uint64(r.Lo), g, w)
		}
	}
	for _, tool := range [][]string{{"readelf", "-aW"}, {"readelf", "-wf"}, {"llvm-dwarfdump-19", "--eh-frame"}, {"eu-readelf", "--debug-dump=frames"}} {
		out, err := exec.Command(tool[0], append(tool[1:], with)...).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v", tool, err)
		}
		if line := warns.Find(out); line != nil {
			i := strings.Index(string(out), string(line))
			t.Errorf("%v: %s", tool, out[max(0, i-100):min(len(out), i+200)])
		}
		if n := strings.Count(string(out), " FDE "); tool[1] == "-wf" && n != s.Functions {
			t.Errorf("%v: %d FDEs, want %d", tool, n, s.Functions)
		}
	}
	if out, again, err := Add(b, ref, f.Bounds); err == nil {
		t.Errorf("Add adds a second .eh_frame, of %d functions: %d bytes become %d; want an error", again.Functions, len(b), len(out))
	}
	t.Logf("%d rows of %d functions: %d bytes and an index of %d; .gopclntab has %d; left out: %v", s.Rows, s.Functions, len(s.Bytes), len(s.Index), f.Size(format.PCLNTab), s.Left)

	t.Run("gdb", func(t *testing.T) {
		oracle.Need(t, "gdb")
		// Without symbols and its script for Go's runtime, gdb has nothing but .eh_frame to walk by.
		depth := func(path string) int {
			out, _ := exec.Command("gdb", "-nx", "-batch", "-iex", "set auto-load off", "-ex", "run x", "-ex", "bt", path).CombinedOutput()
			return len(regexp.MustCompile(`(?m)^#\d+ `).FindAll(out, -1))
		}
		without, n := depth(program), depth(with)
		t.Logf("gdb walks %d frames with .eh_frame, %d without", n, without)
		if n < 54 {
			t.Errorf("gdb walks %d frames, want 54", n)
		}
	})
}
