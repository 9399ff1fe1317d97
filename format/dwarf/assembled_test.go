package dwarf

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// assembled are functions written with an assembler's directives for call frame information, and the rows that
// they ask for. The escapes are what compilers do not write.
var assembled = []struct {
	target, ld string
	not        string // a judge that cannot read it
	body       string
	want       []string
}{
	{"x86_64-linux-gnu", "ld", "", `
	.cfi_startproc
	nop; .cfi_adjust_cfa_offset 8; .cfi_rel_offset rbp, 0
	nop; .cfi_def_cfa_register rbp
	nop; .cfi_remember_state; .cfi_register rbx, r12; .cfi_same_value r13; .cfi_undefined r14
	nop; .cfi_escape 0x0f,3,0x76,0x78,6
	nop; .cfi_escape 0x10,3,2,0x76,0x70; .cfi_escape 0x16,12,2,0x77,8
	nop; .cfi_escape 0x14,13,2; .cfi_escape 0x15,14,0x7e; .cfi_escape 0x11,15,0x7e
	nop; .cfi_restore_state
	nop; .cfi_def_cfa rsp, 100000; .cfi_escape 0x2e,16
	nop; .cfi_escape 0x12,6,0x7e
	nop; .cfi_escape 0x13,0x7d
	nop; .cfi_restore rbp
	nop; .cfi_undefined rip
	nop; .cfi_endproc

	.cfi_startproc
	.cfi_signal_frame
	.cfi_personality 0x1b, handler
	.cfi_lsda 0x1b, data
	.cfi_return_column rbx
	nop; .cfi_offset rbx, -24
	.space 70000, 0x90; .cfi_def_cfa_offset 24
	nop; .cfi_endproc

	.cfi_startproc simple
	.cfi_def_cfa rsp, 8
	nop; .cfi_endproc
handler:
	nop
	.data
data:	.quad 1
`, []string{
		"1000  cfa=rsp+8  ra=c-8",
		"1001  cfa=rsp+16  rbp=c-16  ra=c-8",
		"1002  cfa=rbp+16  rbp=c-16  ra=c-8",
		"1003  cfa=rbp+16  rbx=r12  rbp=c-16  r13=s  r14=u  ra=c-8",
		"1004  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbx=r12  rbp=c-16  r13=s  r14=u  ra=c-8",
		"1005  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbx=[DW_OP_breg6 RBP-16]  rbp=c-16  r12=DW_OP_breg7 RSP+8  r13=s  r14=u  ra=c-8",
		"1006  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbx=[DW_OP_breg6 RBP-16]  rbp=c-16  r12=DW_OP_breg7 RSP+8  r13=v-16  r14=v+16  r15=c+16  ra=c-8",
		"1007  cfa=rbp+16  rbp=c-16  ra=c-8",
		"1008  cfa=rsp+100000  rbp=c-16  ra=c-8",
		"1009  cfa=rbp+16  rbp=c-16  ra=c-8",
		"100a  cfa=rbp+24  rbp=c-16  ra=c-8",
		"100b  cfa=rbp+24  ra=c-8",
		"100c  cfa=rbp+24  ra=u",
		"100d  cfa=rsp+8  ra-column=rbx  rip=c-8  signal",
		"100e  cfa=rsp+8  ra-column=rbx  ra=c-24  rip=c-8  signal",
		"1217e  cfa=rsp+24  ra-column=rbx  ra=c-24  rip=c-8  signal",
		"1217f  cfa=rsp+8",
		"12180  gap",
	}},
	{"aarch64-linux-gnu", "aarch64-linux-gnu-ld", "", `
	.cfi_startproc
	.cfi_b_key_frame
	.cfi_mte_tagged_frame
	nop; .cfi_negate_ra_state
	nop; .cfi_def_cfa_offset 32; .cfi_offset w29, -32; .cfi_offset w30, -24; .cfi_offset b8, -16
	nop; .cfi_def_cfa w29, 32
	nop; .cfi_restore w30; .cfi_restore w29; .cfi_restore b8; .cfi_negate_ra_state
	.space 5000; .cfi_def_cfa wsp, 0
	nop; .cfi_endproc
`, []string{
		"1000  cfa=sp+0  b-key  tagged",
		"1004  cfa=sp+0  ra-signed  b-key  tagged",
		"1008  cfa=sp+32  x29=c-32  ra=c-24  v8=c-16  ra-signed  b-key  tagged",
		"100c  cfa=x29+32  x29=c-32  ra=c-24  v8=c-16  ra-signed  b-key  tagged",
		"1010  cfa=x29+32  b-key  tagged",
		"2398  cfa=sp+0  b-key  tagged",
		"239c  gap",
	}},
	{"x86_64-linux-gnu", "ld", judge, ".cfi_startproc; nop; .cfi_escape 0x2f,8,2; nop; .cfi_endproc\n", []string{
		"1000  cfa=rsp+8  ra=c-8", "1001  cfa=rsp+8  r8=c+16  ra=c-8", "1002  gap"}},
	{"x86_64-linux-gnu", "ld", "readelf", ".cfi_startproc; nop; .cfi_escape 0x30,6,16,0; nop; .cfi_escape 0x31,6,0x7d,0; nop; .cfi_endproc\n", []string{
		"1000  cfa=rsp+8  ra=c-8", "1001  cfa=rbp+16  ra=c-8", "1002  cfa=rbp+24  ra=c-8", "1003  gap"}},
}

// TestAssembled compares what an assembler makes of directives with what they mean, and with both judges. In
// .debug_frame it does not say that a frame is a signal's, and the like: there the judges have the word.
func TestAssembled(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", judge, "readelf")
	for _, c := range assembled {
		oracle.Need(t, c.ld)
		for _, kind := range []string{".eh_frame", ".debug_frame"} {
			path := filepath.Join(t.TempDir(), "a")
			if err := os.WriteFile(path+".s", []byte("\t.cfi_sections "+kind+"\n\t.text\n"+c.body), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, cmd := range [][]string{{"clang-19", "--target=" + c.target, "-c", "-o", path + ".o", path + ".s"},
				{c.ld, "-shared", "--eh-frame-hdr", "-Ttext=0x1000", "-o", path, path + ".o"}} {
				oracle.Run(t, cmd[0], cmd[1:]...)
			}
			got := built(t, openFrames(t, openImage(t, path)))
			if want := strings.Join(c.want, " | "); kind == ".eh_frame" && got != want {
				t.Errorf("%s\n got %s\nwant %s", c.target, got, want)
			}
			if c.not != judge {
				v := judgeFile(path)
				for _, err := range v.errs {
					t.Errorf("%s: %v", kind, err)
				}
			}
			if c.not != "readelf" {
				readelfFile(t, path)
			}
		}
	}
}
