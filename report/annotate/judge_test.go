package annotate

import (
	"bufio"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A judged is an instruction as objdump has it.
type judged struct {
	addr   arch.Vaddr
	text   string
	target arch.Vaddr // of a direct branch; 0: none
}

// objdump returns the functions of a file, each as its instructions.
func objdump(t *testing.T, tool, path string) (fns [][]judged) {
	cmd := exec.Command(tool, "-d", "-w", "--no-show-raw-insn", path)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		l := sc.Text()
		if strings.HasSuffix(l, ">:") {
			fns = append(fns, nil)
			continue
		}
		head, text, ok := strings.Cut(l, ":\t")
		addr, err := strconv.ParseUint(strings.TrimSpace(head), 16, 64)
		if !ok || err != nil || len(fns) == 0 {
			continue
		}
		fns[len(fns)-1] = append(fns[len(fns)-1], judged{arch.Vaddr(addr), text, target(text)})
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return fns
}

// target returns where the direct branch of a line of objdump leads: "b.ne 1234 <f+0x10>  // b.any".
func target(text string) arch.Vaddr {
	text, _, _ = strings.Cut(text, " //")
	words := strings.Fields(text)
	if len(words) < 2 || !strings.HasSuffix(text, ">") || strings.Contains(text, "#") {
		return 0
	}
	w := words[len(words)-2]
	w = w[strings.LastIndexByte(w, ',')+1:]
	v, _ := strconv.ParseUint(strings.TrimPrefix(w, "0x"), 16, 64)
	return arch.Vaddr(v)
}

// Extensions whose instructions arm64asm does not know.
const (
	mte = "Memory Tagging Extension"
	sve = "Scalable Vector Extension"
)

// atomics match what the decoder here writes, not that of golang.org/x/arch.
var atomics = regexp.MustCompile(`^(cas|swp|ld(add|clr|eor|set))[albh]*\t`)

// TestObjdump compares where instructions begin and where branches lead with objdump, in all of a shell and a C library.
func TestObjdump(t *testing.T) {
	oracle.Long(t)
	for _, c := range []struct {
		tool, path string
		m          *arch.Machine
		unknown    map[string]string // instructions that golang.org/x/arch does not know, and what they are
	}{
		{"objdump", "/bin/bash", arch.AMD64, nil},
		{"objdump", "/lib/x86_64-linux-gnu/libc.so.6", arch.AMD64, nil},
		{"aarch64-linux-gnu-objdump", "/usr/aarch64-linux-gnu/lib/libc.so.6", arch.ARM64, map[string]string{
			"gmi": mte, "irg": mte, "ldg": mte, "stg": mte, "st2g": mte, "stzg": mte, "stz2g": mte,
			"cntb": sve, "ld1b": sve, "st1b": sve, "ptrue": sve, "whilelo": sve, "mov": sve,
			"udf": "permanently undefined",
		}},
	} {
		t.Run(c.path, func(t *testing.T) {
			oracle.Need(t, c.tool)
			img, err := module.Open(c.path)
			if err != nil {
				oracle.Lacks(t, c.path)
			}
			defer img.Close()
			insts, branches, wrong, used := 0, 0, 0, map[string]int{}
			fail := func(format string, args ...any) {
				if wrong++; wrong <= 20 {
					t.Errorf(format, args...)
				}
			}
			for _, fn := range objdump(t, c.tool, c.path) {
				if len(fn) < 2 {
					continue
				}
				// The last instruction's length is not known here.
				lo, hi := fn[0].addr, fn[len(fn)-1].addr
				b := &builder{a: &Annotation{}}
				b.part(newDecoder(c.m, "intel"), &part{lo: lo, hi: hi}, img.Tail(lo)[:hi-lo])
				fn = fn[:len(fn)-1]
				for i := range b.a.Insts {
					x := &b.a.Insts[i]
					if strings.Trim(x.Bytes, "0 ") == "" && (len(fn) == 0 || x.Addr < fn[0].addr) {
						continue // objdump leaves out zeros
					}
					if len(fn) == 0 || x.Addr != fn[0].addr {
						fail("%#x: %s; objdump has %v", x.Addr, x.Text, fn[:min(1, len(fn))])
						break
					}
					j := &fn[0]
					fn = fn[1:]
					insts++
					if op, _, _ := strings.Cut(j.text, "\t"); x.Unknown && c.unknown[op] != "" {
						used[op]++
						continue
					} else if x.Unknown && op != ".word" {
						fail("%#x: %s; objdump has %s", x.Addr, x.Text, j.text)
					}
					if atomics.MatchString(j.text) && x.Text != strings.Replace(j.text, "\t", " ", 1) {
						fail("%#x: %s; objdump has %s", x.Addr, x.Text, j.text)
					}
					if j.target != 0 {
						branches++
						if !x.HasTarget || x.Target != j.target {
							fail("%#x: %s leads to %#x; objdump has %s", x.Addr, x.Text, x.Target, j.text)
						}
					}
				}
				if len(fn) > 0 {
					fail("%#x: nothing; objdump has %s", fn[0].addr, fn[0].text)
				}
			}
			for op, why := range c.unknown {
				if used[op] == 0 {
					t.Errorf("no %s (%s) is unknown any more", op, why)
				}
			}
			t.Logf("%d instructions, %d targets, %d differences; unknown: %v", insts, branches, wrong, used)
			if insts < 100000 || branches < 10000 {
				t.Errorf("%d instructions and %d targets are too few for a judgement", insts, branches)
			}
		})
	}
}
