package random

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/shadow"
)

// permits are the wrong rows that are not errors of unspool: docs/FINDINGS.md explains each, by its name.
var permits = []permit{
	{
		name: "gcc-realigned", program: regexp.MustCompile(`, gcc-1[12] `), own: true,
		is:     realigned,
		reason: "registers are looked for at %rbp, which has been restored",
	},
	{
		name: "gcc-xlogues", program: regexp.MustCompile(`, gcc-.* -mcall-ms2sysv-xlogues.*foreign`), own: true,
		is:     savedByStub,
		reason: "libgcc's subroutines save registers, and no row says so",
	},
	{
		name: "clang-xmm", program: regexp.MustCompile(`, clang-.*foreign`), own: true, is: savesVector,
		reason: "the rule for the stack pointer's change is behind the stores of XMM registers",
	},
	{
		name: "clang-outliner", program: regexp.MustCompile(`-enable-machine-outliner`), own: true, function: regexp.MustCompile(`^OUTLINED_FUNCTION_`), is: registersOnly,
		reason: "outlined code changes callee-saved registers, and its rows do not say so",
	},
	{
		name: "llvm-push", program: regexp.MustCompile(`, rustc.* -Copt-level=z\b`), own: true, is: popsConstant,
		reason: "a constant that is pushed before the frame pointer is set has no rule",
	},
	{
		name: "clang-probe", program: regexp.MustCompile(`, clang-(19|22) .*-mstack-probe-size=256 -fstack-clash-protection.*aligned`), own: true,
		is:     func(_ *plan, f *shadow.Finding) bool { return strings.HasPrefix(f.Row, "cfa=rsp+8 ") },
		reason: "the prologue is lost but for its loop, and the rows are those of the frame that was meant",
	},
	{
		name: "clang-probe", program: regexp.MustCompile(`, clang-(19|22) .*-mstack-probe-size=256 -fstack-clash-protection.*aligned`), is: lostBelow,
		reason: "a function without its prologue restores what it has not saved: its callers' registers are others when it has returned",
	},
	{
		name: "morestack", program: regexp.MustCompile(`-fsplit-stack`), own: true, function: regexp.MustCompile(`^__morestack`),
		reason: "libgcc's rows lead to the caller of the function that calls it in its prologue",
	},
}

// savesVector says whether a row is wrong first at the store of a vector register that the allocation of the frame precedes, in a function with
// Microsoft's calling convention: it is wrong by what has been allocated.
func savesVector(p *plan, f *shadow.Finding) bool {
	before, here := around(f)
	m := regexp.MustCompile(`^sub \$(0x[0-9a-f]+),%rsp$`).FindStringSubmatch(before)
	if m == nil || !regexp.MustCompile(`^v?mov[au]ps %xmm([6-9]|1[0-5]),`).MatchString(here) {
		return false
	}
	n, err := strconv.ParseUint(m[1], 0, 64)
	return err == nil && p.foreign(f.Function) && lacks(f, n)
}

// around returns the instruction at which a row was found wrong first, and the one before it.
func around(f *shadow.Finding) (before, here string) {
	for i, l := range f.Code {
		if l.Addr == f.Addr && i > 0 {
			return f.Code[i-1].Text, l.Text
		}
	}
	return "", ""
}

// lacks says whether the CFA is n too low, with the return address, and nothing else is wrong.
func lacks(f *shadow.Finding, n uint64) bool {
	i := slices.IndexFunc(f.Wrong, func(d shadow.Difference) bool { return d.Register == "cfa" })
	return i >= 0 && f.Wrong[i].Want-f.Wrong[i].Got == n && strings.HasPrefix(f.Row, "cfa=rsp+") &&
		!slices.ContainsFunc(f.What(), func(what string) bool { return what != "cfa" && what != "ra" })
}

var stub = regexp.MustCompile(`^__(sse|avx)_(sav|res)ms64f?x?_\d+$`)

// savedByStub says whether a row has no rule for registers that libgcc's subroutines have saved: it is a row of those, or of a function with
// Microsoft's calling convention. Such a function's CFA and return address are right.
func savedByStub(p *plan, f *shadow.Finding) bool {
	if !registersOnly(p, f) || !p.foreign(f.Function) && !stub.MatchString(f.Function) {
		return false
	}
	return !ruled(f)
}

// realigned says whether a row is of the epilogue of a function that has aligned its stack, and has the CFA and the return address right:
// the rules for registers count from the caller's %rbp, or there is none for %r13, which is used as %r10 is elsewhere.
func realigned(p *plan, f *shadow.Finding) bool {
	return registersOnly(p, f) && (strings.Contains(f.Row, "  rbp=[DW_OP_breg6 RBP+0]") || slices.Equal(f.What(), []string{"r13"}) &&
		slices.ContainsFunc(f.Code, func(l shadow.Line) bool { return l.Text == "lea -0x10(%r13),%rsp" }))
}

// registersOnly says whether a row has the CFA and the return address right.
func registersOnly(_ *plan, f *shadow.Finding) bool {
	return !slices.Contains(f.What(), "cfa") && !slices.Contains(f.What(), "ra")
}

// lostBelow says whether only registers for which a row has no rule are others than when the function was called.
func lostBelow(p *plan, f *shadow.Finding) bool { return registersOnly(p, f) && !ruled(f) }

// ruled says whether the row has a rule for a register that is wrong.
func ruled(f *shadow.Finding) bool {
	return slices.ContainsFunc(f.What(), func(reg string) bool { return strings.Contains(f.Row, "  "+reg+"=") })
}

// popsConstant says whether a row is wrong first between the push of a constant and the pop that follows, by the word that was pushed.
func popsConstant(_ *plan, f *shadow.Finding) bool {
	before, here := around(f)
	return strings.HasPrefix(before, "pushq $") && strings.HasPrefix(here, "pop %") && lacks(f, 8)
}
