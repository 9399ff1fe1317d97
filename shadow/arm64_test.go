package shadow

import (
	"bytes"
	"debug/elf"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// assembleARM64 returns the code of instructions, as the assembler has them.
func assembleARM64(t *testing.T, text string) []byte {
	t.Helper()
	oracle.Need(t, "aarch64-linux-gnu-gcc")
	obj := filepath.Join(t.TempDir(), "a.o")
	cmd := exec.Command("aarch64-linux-gnu-gcc", "-march=armv8.5-a+memtag+sve", "-c", "-x", "assembler", "-o", obj, "-")
	cmd.Stdin = strings.NewReader(text + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(obj)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	code, err := f.Section(".text").Data()
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// TestDecodeARM64 holds instructions, as the assembler has them, against what they are.
func TestDecodeARM64(t *testing.T) {
	direct := inst{kind: call, direct: true, size: 4, rel: 12}
	back := direct
	back.rel = -12
	indirect := inst{kind: call, size: 4}
	writes := inst{writes: true}
	sequence := inst{kind: exclusive, writes: true}
	cases := []struct {
		text string
		want inst
	}{
		{"bl .+16", direct}, {"bl .-8", back},
		{"blr x3", indirect}, {"blraa x3, x4", indirect}, {"blrab x3, sp", indirect}, {"blraaz x3", indirect}, {"blrabz x3", indirect},
		{"ret", inst{kind: ret}}, {"ret x9", inst{kind: ret}}, {"retaa", inst{kind: ret}}, {"retab", inst{kind: ret}},
		{"br x17", inst{kind: jump}}, {"braa x1, x2", inst{kind: jump}}, {"brabz x1", inst{kind: jump}},
		{"svc #0", inst{kind: kernel, writes: true}}, {"brk #1000", inst{kind: trap, writes: true}},
		{"b .+8", inst{}}, {"b.ne .+8", inst{}}, {"cbz x1, .+8", inst{}}, {"tbnz x1, #63, .+8", inst{}}, {"nop", inst{}}, {"bti c", inst{}}, {"paciasp", inst{}},
		{"mov sp, x29", inst{kind: setSP}}, {"add sp, x29, #16", inst{kind: setSP}}, {"sub sp, x0, #1", inst{kind: setSP}}, {"add sp, sp, x5", inst{kind: setSP}},
		{"sub sp, x1, x2", inst{kind: setSP}}, {"and sp, x1, #0xfffffffffffffff0", inst{kind: setSP}}, {"addg sp, x0, #16, #1", inst{kind: setSP}},
		{"add sp, sp, #16", inst{}}, {"sub sp, sp, #1, lsl #12", inst{}}, {"sub sp, sp, x1", inst{}}, {"mov x29, sp", inst{}}, {"cmp x1, #4", inst{}},
		{"cmn sp, x1", inst{}}, {"tst x1, #1", inst{}}, {"mov x30, x9", inst{}}, {"mov wsp, w1", inst{}}, {"addg sp, sp, #16, #1", inst{}},
		{"ldxr x1, [x0]", sequence}, {"ldaxrb w1, [x0]", sequence}, {"ldaxp x1, x2, [x0]", sequence},
		{"stxr w2, x1, [x0]", writes}, {"stlxp w2, x1, x3, [x0]", writes}, {"ldar x1, [x0]", writes}, {"stlr x1, [x0]", writes}, {"casal x1, x2, [x0]", writes},
		{"casp x0, x1, x2, x3, [x4]", writes}, {"ldaddal x1, x2, [x0]", writes}, {"swp x1, x2, [x0]", writes},
		{"ldr x1, [x0]", inst{}}, {"ldr x1, [x0], #8", inst{}}, {"ldr x1, [x0, x2]", inst{}}, {"ldur x1, [x0, #-8]", inst{}}, {"ldrsw x1, [x0]", inst{}},
		{"ldrsb w1, [x0, #1]", inst{}}, {"ldr q1, [x0]", inst{}}, {"ldr x1, .+8", inst{}}, {"ldp x1, x2, [x0]", inst{}}, {"ldp d1, d2, [x0], #16", inst{}},
		{"ldpsw x1, x2, [x0]", inst{}}, {"ldraa x1, [x0]", writes}, {"prfm pldl1keep, [x0]", inst{}},
		{"str x1, [x0]", writes}, {"strb w1, [x0, #1]!", writes}, {"str q1, [x0]", writes}, {"str q1, [x0, x2]", writes}, {"stur x1, [x0, #-8]", writes},
		{"stp x29, x30, [sp, #-16]!", writes}, {"stnp q1, q2, [x0]", writes}, {"st1 {v0.16b}, [x0]", writes}, {"stg x1, [x0]", writes}, {"dc zva, x0", writes},
		{"str z0, [x0]", writes}, {"mrs x1, tpidr_el0", inst{}}, {"fmov d1, d2", inst{}}, {"add x1, x2, x3", inst{}}, {"adrp x1, .", inst{}},
	}
	var text strings.Builder
	for _, c := range cases {
		text.WriteString(c.text + "\n")
	}
	code := assembleARM64(t, text.String())
	if len(code) != 4*len(cases) {
		t.Fatalf("%d bytes of %d instructions", len(code), len(cases))
	}
	for i, c := range cases {
		if got := decodeARM64(code[4*i:]); got != c.want {
			t.Errorf("%s (% x)\ngot  %+v\nwant %+v", c.text, code[4*i:4*i+4], got, c.want)
		}
	}
	for _, b := range [][]byte{nil, {0xc0, 3, 0x5f}} {
		if got := decodeARM64(b); got != writes {
			t.Errorf("% x: %+v", b, got)
		}
	}
}

// TestSequences: where execution leaves loops of exclusive loads and stores.
func TestSequences(t *testing.T) {
	const pc = 0x1000
	for _, c := range []struct {
		text string
		want []uint64
	}{
		{"1: ldaxr x1, [x0]\nadd x1, x1, #1\nstlxr w2, x1, [x0]\ncbnz w2, 1b", []uint64{pc + 12}},
		{"1: ldxr x1, [x0]\ncmp x1, x3\nb.ne 2f\nstxr w2, x1, [x0]\ncbnz w2, 1b\n2: nop", []uint64{pc + 16, pc + 20}},
		{"1: ldxr x1, [x0]\ncbnz x1, 1b\nstxr w2, x1, [x0]", []uint64{pc + 12}},               // a lock that is waited for
		{"1: ldaxr w1, [x0]\ncbz w1, 2f\nwfe\nb 1b\n2: stxr w2, w3, [x0]", []uint64{pc + 20}}, // and with less heat
		{"1: ldxp x1, x2, [x0]\ncbnz x1, 2f\ncbnz x2, 2f\nstxp w3, x4, x5, [x0]\ncbnz w3, 1b\nb 3f\n2: stxp w3, x1, x2, [x0]\ncbnz w3, 1b\n3: nop",
			[]uint64{pc + 16, pc + 28}}, // stores what it has loaded
		{"ldxr x1, [x0]\ncbz x1, 1f\nstxr w2, x1, [x0]\n.rept 12\nnop\n.endr\n1: stxr w2, x1, [x0]", []uint64{pc + 12, pc + 64}},
		{"ldxr x1, [x0]\ntbz x1, #3, 1f\nnop\n1: stxr w2, x1, [x0]", []uint64{pc + 16}},                  // within
		{"ldxr x1, [x0]\nb .-64\nstxr w2, x1, [x0]", []uint64{pc + 12, pc + 4 - 64}},                     // in front
		{"ldxp x1, x2, [x0]\ntbnz x1, #40, .+64\nstxp w2, x1, x3, [x0]", []uint64{pc + 12, pc + 4 + 64}}, // pairs
		{"ldxr x1, [x0]\nbl .+64\nstxr w2, x1, [x0]", nil},
		{"ldxr x1, [x0]\nret\nstxr w2, x1, [x0]", nil},
		{"ldxr x1, [x0]\nclrex", nil},
		{"ldxr x1, [x0]\n.rept 20\nnop\n.endr\nstxr w2, x1, [x0]", nil},
	} {
		code := assembleARM64(t, c.text)
		if got := sequenceARM64(code, pc); !slices.Equal(got, c.want) {
			t.Errorf("%s\ngot  %#x\nwant %#x", c.text, got, c.want)
		}
		sequenceARM64(code[:len(code)-1], pc)
	}
}

// TestDisassembleARM64: the text of some instructions.
func TestDisassembleARM64(t *testing.T) {
	for _, c := range []struct {
		code []byte
		want string
		n    int
	}{
		{[]byte{0xfd, 0x7b, 0xbf, 0xa9}, "stp x29, x30, [sp,#-16]!", 4},
		{[]byte{0xc0, 0x03, 0x5f, 0xd6}, "ret", 4},
		{[]byte{0, 0, 0, 0}, ".inst 0x00000000", 4},
		{[]byte{0xc0, 0x03}, ".byte c0 03", 2},
		{nil, ".byte ", 0},
	} {
		if n, text := disassembleARM64(c.code, 0x1000); n != c.n || text != c.want {
			t.Errorf("% x: %d %q, not %d %q", c.code, n, text, c.n, c.want)
		}
	}
}

// FuzzDecodeARM64 decodes any bytes, and looks for sequences in them.
func FuzzDecodeARM64(f *testing.F) {
	f.Add([]byte{0, 0x7c, 0x5f, 0xc8, 0, 0x7c, 2, 0xc8})
	f.Add(bytes.Repeat([]byte{0xff, 0x03, 0, 0x91}, 20))
	f.Fuzz(func(t *testing.T, b []byte) {
		if x := decodeARM64(b); x.kind == call != (x.size == 4) || x.direct && x.kind != call {
			t.Errorf("% x: %+v", b, x)
		}
		for _, e := range sequenceARM64(b, 1<<40) {
			if e%4 != 0 {
				t.Errorf("% x: leaves to %#x", b, e)
			}
		}
		if n, text := disassembleARM64(b, 0); n > 4 || n > len(b) || text == "" {
			t.Errorf("% x: %d bytes, %q", b, n, text)
		}
	})
}
