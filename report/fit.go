package report

import (
	"regexp"
	"strings"

	"github.com/unspool/unspool/internal/printable"
)

// fit shortens the name of a function to n columns, as names.js does on pages: first the parameters go, then the arguments of templates, then
// the namespaces; what is still too long is cut. n of 0 or less is no bound.
func fit(name string, n int) string {
	if n <= 0 || printable.Width(name) <= n {
		return name
	}
	plain := foldBrackets(name, '(', ')', "()")
	bare := foldBrackets(plain, '<', '>', "<…>")
	short := lastName(bare)
	for _, s := range []string{plain, bare, short} {
		if printable.Width(s) <= n {
			return s
		}
	}
	return printable.Clip(short, n)
}

var (
	operators = regexp.MustCompile(`^operator ?(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|<=?|>=?)`)
	pathOnly  = regexp.MustCompile(`[ <(:]`)
)

// foldBrackets replaces what two brackets enclose. "(anonymous namespace)", Go's "(*T)", operators, and what Rust begins with stay.
func foldBrackets(s string, open, closing byte, by string) string {
	var out strings.Builder
	depth := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == 'o' {
			if op := operators.FindString(s[i:]); op != "" {
				if depth == 0 {
					out.WriteString(op)
				}
				i += len(op) - 1
				continue
			}
		}
		keeps := strings.HasPrefix(s[i:], "(anonymous") || strings.HasPrefix(s[i:], "(*")
		switch {
		case c == open && (depth > 0 || open == '<' && i > 0 || open == '(' && !keeps):
			if depth == 0 {
				out.WriteString(by)
			}
			depth++
		case c == closing && depth > 0 && s[i-1] != '-':
			depth--
		case depth == 0:
			out.WriteByte(c)
		}
	}
	if depth > 0 {
		return s
	}
	return out.String()
}

// lastName is a name without the namespaces, or packages, in front.
func lastName(s string) string {
	if i := strings.LastIndexByte(s, '/'); i > 0 && !pathOnly.MatchString(s[:i]) {
		s = s[i+1:]
	}
	if i := strings.LastIndex(strings.TrimSuffix(s, " const"), "::"); i > 0 {
		return s[i+2:]
	}
	return s
}
