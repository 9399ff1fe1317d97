package random

import (
	"regexp"
	"slices"
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
		name: "gcc-xlogues", program: regexp.MustCompile(`-mcall-ms2sysv-xlogues`), own: true,
		is:     registersOnly,
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
		name: "llvm-push", program: regexp.MustCompile(`, rustc.* -Copt-level=z .*-Cforce-frame-pointers|, clang-.* -Oz`), own: true, is: popsConstant,
		reason: "a constant that is pushed before the frame pointer is set has no rule",
	},
	{
		name: "clang-probe", program: regexp.MustCompile(`, clang-.* -fstack-clash-protection.*aligned`), own: true,
		is:     func(f *shadow.Finding) bool { return strings.HasPrefix(f.Row, "cfa=rsp+8 ") },
		reason: "the prologue is lost but for its loop, and the rows are those of the frame that was meant",
	},
	{
		name: "morestack", program: regexp.MustCompile(`-fsplit-stack`), own: true, function: regexp.MustCompile(`^__morestack`),
		reason: "libgcc's rows lead to the caller of the function that calls it in its prologue",
	},
}

// savesVector says whether a row is wrong first at the store of a vector register.
func savesVector(f *shadow.Finding) bool {
	return slices.ContainsFunc(f.Code, func(l shadow.Line) bool {
		return l.Addr == f.Addr && regexp.MustCompile(`^v?mov[au]ps %xmm`).MatchString(l.Text)
	})
}

// realigned says whether a row is of the epilogue of a function that has aligned its stack, and has the CFA and the return address right:
// the rules for registers count from the caller's %rbp, or there is none for %r13, which is used as %r10 is elsewhere.
func realigned(f *shadow.Finding) bool {
	return registersOnly(f) && (strings.Contains(f.Row, "  rbp=[DW_OP_breg6 RBP+0]") || slices.Equal(f.What(), []string{"r13"}) &&
		slices.ContainsFunc(f.Code, func(l shadow.Line) bool { return l.Text == "lea -0x10(%r13),%rsp" }))
}

// registersOnly says whether a row has the CFA and the return address right.
func registersOnly(f *shadow.Finding) bool {
	return !slices.Contains(f.What(), "cfa") && !slices.Contains(f.What(), "ra")
}

// popsConstant says whether a row is wrong first between the push of a constant and the pop that follows.
func popsConstant(f *shadow.Finding) bool {
	for i, l := range f.Code {
		if l.Addr == f.Addr && i > 0 {
			return strings.HasPrefix(l.Text, "pop %") && strings.HasPrefix(f.Code[i-1].Text, "pushq $")
		}
	}
	return false
}
