package usdt

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// probes is a program with probes of its own, written as <sys/sdt.h> has them: with and without a semaphore, and of another provider.
const probes = `
#define PROBE(provider, name, semaphore, args) "1: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 3f-2f,5f-4f,3\n2: .asciz \"stapsdt\"\n" \
	"3: .balign 4\n4: .8byte 1b,_.stapsdt.base," semaphore "\n.asciz \"" provider "\",\"" name "\",\"" args "\"\n5: .balign 4\n.popsection\n"
__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n.weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"
	".size _.stapsdt.base,1\n.popsection\n");
volatile unsigned short counts __attribute__((section(".probes"), used)) = 0;
int main(int n, char **v)
{
	__asm__ volatile(PROBE("one", "first", "counts", "8@%0 -4@%1") : : "r"(v), "r"(n));
	__asm__ volatile(PROBE("one", "second", "0", ""));
	__asm__ volatile(PROBE("two", "first", "0", "-4@%0") : : "nor"(n));
	return 0;
}`

func compiled(t testing.TB, cc string, flags ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	path := filepath.Join(t.TempDir(), "prog")
	c := exec.Command(cc, append([]string{"-O1", "-x", "c", "-o", path, "-"}, flags...)...)
	c.Stdin = strings.NewReader(probes)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// readelf returns what it prints of a file's probes: as TestReadelf writes them.
func readelf(t *testing.T, path string) (list []string) {
	t.Helper()
	oracle.Need(t, "readelf")
	out, err := exec.Command("readelf", "-nW", path).Output()
	if err != nil {
		t.Fatalf("readelf -n %s: %v", path, err)
	}
	var provider, name string
	var pc, base, sem uint64
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := lines.Text()
		if i := strings.Index(line, "Provider: "); i >= 0 { // behind the note's type
			line = line[i:]
		}
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Provider":
			provider = value
		case "Name":
			name = value
		case "Location":
			if _, err := fmt.Sscanf(value, "0x%x, Base: 0x%x, Semaphore: 0x%x", &pc, &base, &sem); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
		case "Arguments", "Arguments:":
			list = append(list, fmt.Sprintf("%s:%s %#x %v %s", provider, name, pc, sem != 0, strings.TrimSpace(value)))
		}
	}
	return list
}

// TestReadelf: probes are those that readelf finds, in all programs and libraries of this machine that have some, and in our own for both machines.
func TestReadelf(t *testing.T) {
	oracle.Long(t)
	var files []string
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/lib*.so.*", "/usr/bin/python3*", "/usr/bin/*g++*"} {
		some, _ := filepath.Glob(pattern)
		files = append(files, some...)
	}
	files = append(files, compiled(t, "gcc"), compiled(t, "gcc", "-static-pie"))
	if _, err := exec.LookPath("aarch64-linux-gnu-gcc"); err == nil {
		files = append(files, compiled(t, "aarch64-linux-gnu-gcc"))
	}
	with, n := 0, 0
	for _, path := range files {
		img, err := module.Open(path)
		if err != nil {
			continue // a script
		}
		if img.Section(section) != nil {
			list, err := Read(img, "")
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			var got []string
			for _, p := range list {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s:%s %#x %v %s", p.Provider, p.Name, p.Vaddr, p.Semaphore != 0, p.Args)))
				if off, ok := img.VaddrToOff(p.Vaddr); !ok || off != p.Off {
					t.Errorf("%s: %+v lies at %#x", path, p, off)
				}
				if m := img.Machine(); m == arch.AMD64 || m == arch.ARM64 {
					if _, err := p.Arguments(m); err != nil && !errors.Is(err, ErrUnsupported) {
						t.Errorf("%s: %v", path, err)
					}
				}
			}
			want := readelf(t, path)
			for i := range want {
				want[i] = strings.TrimSpace(want[i])
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got\n%s\nwant\n%s", path, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			with, n = with+1, n+len(list)
		}
		img.Close()
	}
	t.Logf("%d probes in %d files", n, with)
	if n < 6 {
		t.Errorf("%d probes", n)
	}
}

// TestMoved: where the file was moved since it was linked, so were its probes and semaphores.
func TestMoved(t *testing.T) {
	path := compiled(t, "gcc", "-no-pie")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func() []Probe {
		t.Helper()
		img, err := module.New("prog", b)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		list, err := Read(img, "one")
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list
	}
	want := read()
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	// As a file is that was linked 64 KiB lower: its notes' addresses are lower, and the section's is not.
	notes := f.Section(section)
	data := b[notes.Offset : notes.Offset+notes.FileSize]
	for i := 0; i+8 <= len(data); i += 4 {
		v := f.ByteOrder.Uint64(data[i:])
		if v >= 0x400000 && v < 0x500000 {
			f.ByteOrder.PutUint64(data[i:], v-0x10000)
		}
	}
	if got := read(); !slices.Equal(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if want[0].Semaphore == 0 || want[1].Semaphore != 0 {
		t.Errorf("%+v", want)
	}
}

// TestArguments: arguments as compilers write them.
func TestArguments(t *testing.T) {
	none := Argument{Reg: NoReg, Index: NoReg}
	with := func(change func(*Argument)) Argument { a := none; change(&a); return a }
	constant := func(size uint8, signed bool, n int64) Argument {
		return with(func(a *Argument) { a.Size, a.Signed, a.Value = size, signed, n })
	}
	register := func(size uint8, signed bool, r arch.Reg) Argument {
		return with(func(a *Argument) { a.Kind, a.Size, a.Signed, a.Reg = Register, size, signed, r })
	}
	memory := func(size uint8, r arch.Reg, off int64) Argument {
		return with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.Value = Memory, size, r, off })
	}
	for _, c := range []struct {
		m    *arch.Machine
		args string
		want []Argument
	}{
		{arch.AMD64, "8@%rdi -4@$5 8@-8(%rbp)", []Argument{register(8, false, 5), constant(4, true, 5), memory(8, 6, -8)}},
		{arch.AMD64, "8@$-1 8@$0xffffffffffffffff %rax", []Argument{constant(8, false, -1), constant(8, false, -1), register(8, false, 0)}},
		{arch.AMD64, "1@%al -1@%sil 2@%cx 4@%r8d 2@%r15w 1@%r9b -4@%ebp", []Argument{register(1, false, 0), register(1, true, 4), register(2, false, 2),
			register(4, false, 8), register(2, false, 15), register(1, false, 9), register(4, true, 6)}},
		{arch.AMD64, "1@%bh 8@(%rsp) 8@16(%rax,%rbx,4)", []Argument{with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.High = Register, 1, 3, true }), memory(8, 7, 0),
			with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.Index, a.Scale, a.Value = Memory, 8, 0, 3, 2, 16 })}},
		{arch.AMD64, "4@8(,%r9,8)  4@(%rdi, %rsi)", []Argument{with(func(a *Argument) { a.Kind, a.Size, a.Index, a.Scale, a.Value = Memory, 4, 9, 3, 8 }),
			with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.Index = Memory, 4, 5, 4 })}},
		{arch.AMD64, "8@%r8 -8@%r9 2@%r9w", []Argument{register(8, false, 8), register(8, true, 9), register(2, false, 9)}},
		{arch.AMD64, "", nil},
		{arch.AMD64, "8@foo(%rip)", nil}, {arch.AMD64, "8@foo+4(%rip)", nil}, {arch.AMD64, "8@foo", nil}, {arch.AMD64, "8@%fs:8(%rax)", nil}, {arch.AMD64, "8f@%xmm0", nil},
		{arch.AMD64, "8@%xmm0", nil}, {arch.AMD64, "3@%rax", nil}, {arch.AMD64, "8@(%rax,%rbx,3)", nil}, {arch.AMD64, "8@%rip", nil}, {arch.AMD64, "8@foo(%rax)", nil},
		{arch.AMD64, "8@(%rax,%rbx,1,2)", nil}, {arch.AMD64, "8@(", nil}, {arch.AMD64, "@", nil}, {arch.AMD64, "-9223372036854775808@%rax", nil},
		{arch.ARM64, "8@x0 -4@w1 8@[sp, 16] 4@-12", []Argument{register(8, false, 0), register(4, true, 1), memory(8, 31, 16), constant(4, false, -12)}},
		{arch.ARM64, "8@[x19] 8@[x20, -8] 8@[x0, x1] 8@[x2, x3, lsl 3] 8@sp 8@xzr 8@#3", []Argument{memory(8, 19, 0), memory(8, 20, -8),
			with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.Index = Memory, 8, 0, 1 }),
			with(func(a *Argument) { a.Kind, a.Size, a.Reg, a.Index, a.Scale = Memory, 8, 2, 3, 3 }), register(8, false, 31), constant(8, false, 0), constant(8, false, 3)}},
		{arch.ARM64, "8@[x0, w1, sxtw 3]", nil}, {arch.ARM64, "8@[x0], 8", nil}, {arch.ARM64, "8@[x0, 8]!", nil}, {arch.ARM64, "8@d0", nil}, {arch.ARM64, "8@[x0, #:lo12:foo]", nil},
		{arch.RISCV64, "8@a0", nil},
	} {
		p := Probe{Provider: "p", Name: "n", Args: c.args}
		got, err := p.Arguments(c.m)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s on %s\n got %+v, %v\nwant %+v", c.args, c.m.Name, got, err, c.want)
		}
		if c.want == nil && c.args != "" && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s on %s: %v, which is no ErrUnsupported", c.args, c.m.Name, err)
		}
	}
	p := Probe{Provider: "otel_memory", Name: "alloc", Args: "8@%rax 8@size(%rip)"}
	if _, err := p.Arguments(arch.AMD64); err == nil ||
		err.Error() != `argument 2 of probe otel_memory:alloc, "8@size(%rip)": unsupported: memory relative to the code, which takes the program's symbols` {
		t.Errorf("Arguments of %q = %v, want that argument 2 is unsupported", p.Args, err)
	}
}

// TestHostile: sections that overlap have each probe once, messages are short, and no probe lies in the file's header. Files with as many sections and
// segments as there is room for are read in seconds.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	le := binary.LittleEndian
	note := func(vaddr uint64, args string) []byte {
		desc := slices.Concat(le.AppendUint64(nil, vaddr), make([]byte, 16), []byte("p\x00n\x00"), []byte(args), []byte{0})
		b := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 8), uint32(len(desc))), version)
		return append(append(b, owner...), append(desc, make([]byte, -len(desc)&3)...)...)
	}
	// file has the same notes in each section. The last segment is the whole file. The first section says how many sections and segments there are, and
	// has the names.
	file := func(sections, segments int, notes []byte) []byte {
		const names, header, segment, sectionSize = "\x00" + section + "\x00", 64, 56, 64
		text := header + segment*segments
		at := (text + len(names) + 7) &^ 7
		secs := (at + len(notes) + 7) &^ 7
		b := make([]byte, secs+sectionSize*(sections+1))
		copy(b, elf.ELFMAG+"\x02\x01\x01")
		le.PutUint16(b[16:], uint16(elf.ET_DYN))
		le.PutUint16(b[18:], uint16(elf.EM_X86_64))
		le.PutUint64(b[32:], header)
		le.PutUint64(b[40:], uint64(secs))
		le.PutUint16(b[54:], segment)
		le.PutUint16(b[56:], 0xffff)
		le.PutUint16(b[58:], sectionSize)
		for i := range segments {
			p := b[header+segment*i:]
			le.PutUint32(p, uint32(elf.PT_LOAD))
			le.PutUint64(p[16:], 1<<40+uint64(i))
			le.PutUint64(p[32:], 1)
			if i == segments-1 {
				le.PutUint64(p[16:], 0)
				le.PutUint64(p[32:], uint64(len(b)))
			}
		}
		copy(b[text:], names)
		copy(b[at:], notes)
		for i := range sections + 1 {
			s := b[secs+sectionSize*i:]
			if i == 0 {
				le.PutUint64(s[24:], uint64(text))
				le.PutUint64(s[32:], uint64(sections+1))
				le.PutUint32(s[44:], uint32(segments))
				continue
			}
			le.PutUint32(s, 1)
			le.PutUint32(s[4:], uint32(elf.SHT_NOTE))
			le.PutUint64(s[24:], uint64(at))
			le.PutUint64(s[32:], uint64(len(notes)))
		}
		return b
	}
	probe := note(100, "8@%rdi")
	for _, c := range []struct {
		name  string
		file  []byte
		want  int
		error string
	}{
		{"few sections", file(20, 1, probe), 1, "overlap"},
		{"in the header", file(20, 1, note(0, "")), 0, "or its header"},
		{"long", file(20, 1, note(1<<30, strings.Repeat("long", 1000))), 0, "in no segment"},
		{"many sections", file(1<<16, 1, bytes.Repeat(probe, 1<<16)), 1 << 16, "overlap"},
		{"large notes", file(1<<14, 1, note(100, strings.Repeat("x", 8<<20))), 1, "overlap"},
		{"many segments", file(20, 1<<19, bytes.Repeat(probe, 1<<16)), 256, "too many segments"},
	} {
		began := time.Now()
		img, err := module.New("prog", c.file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Read(img, "p")
		if img.Close(); len(got) != c.want || err == nil || !strings.Contains(err.Error(), c.error) || len(err.Error()) > 500 {
			t.Errorf("%s: %d probes, want %d; %v", c.name, len(got), c.want, err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: read in %v", c.name, took)
		}
	}
	p := Probe{Provider: "p", Name: strings.Repeat("n", 1<<20), Args: strings.Repeat("%", 1<<20)}
	if _, err := p.Arguments(arch.AMD64); err == nil || len(err.Error()) > 500 {
		t.Errorf("a message of %d bytes", len(fmt.Sprint(err)))
	}
}

// FuzzRead: whatever a file has, reading its probes ends, and each lies in the file.
func FuzzRead(f *testing.F) {
	b, err := os.ReadFile(compiled(f, "gcc"))
	if err != nil {
		f.Fatal(err)
	}
	e, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		f.Fatal(err)
	}
	s := e.Section(section)
	f.Add(b[s.Offset:s.Offset+s.FileSize], uint64(0))
	f.Add([]byte{}, uint64(8))
	f.Fuzz(func(t *testing.T, data []byte, base uint64) {
		file := slices.Clone(b)
		copy(file[s.Offset:s.Offset+s.FileSize], data)
		if at := int(base % uint64(len(file))); base != 0 && at+8 <= len(file) {
			e.ByteOrder.PutUint64(file[at:], base) // and the rest of the file
		}
		img, err := module.New("prog", file)
		if err != nil {
			return
		}
		defer img.Close()
		list, _ := Read(img, "")
		for _, p := range list {
			if p.Off >= uint64(len(file)) || p.Semaphore >= uint64(len(file)) {
				t.Fatalf("%+v, in a file of %d bytes", p, len(file))
			}
			for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
				all, err := p.Arguments(m)
				if len(all) > maxArguments || err != nil && all != nil {
					t.Fatalf("%+v, %v", all, err)
				}
			}
		}
	})
}

// FuzzArguments: whatever a probe says of its arguments, each is of a kind that is known, in a register that there is.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"8@%rdi -4@$5 8@-8(%rbp)", "8@16(%rax,%rbx,4)", "8@[x2, x3, lsl 3] 4@w1", "1@%ah", "8@foo(%rip)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
			p := Probe{Args: s}
			all, _ := p.Arguments(m)
			for _, a := range all {
				known := func(r arch.Reg) bool { return r < m.PC || m == arch.ARM64 && r <= m.SP }
				if a.Size != 1 && a.Size != 2 && a.Size != 4 && a.Size != 8 || a.Kind > Memory || a.Kind == Register && !known(a.Reg) ||
					a.Kind == Memory && (!known(a.Reg) && a.Reg != NoReg || !known(a.Index) && a.Index != NoReg || a.Scale > 4) {
					t.Fatalf("%q on %s: %+v", s, m.Name, a)
				}
			}
		}
	})
}
