package shadow

import (
	_ "embed"
	"encoding/hex"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed known.txt
var knownText string

// A Known is a wrong row of a binary that is listed, because it is wrong in the binary. docs/FINDINGS.md has each, with a
// reproduction.
type Known struct {
	Name     string         // of its section in docs/FINDINGS.md
	Module   string         // base name, as a pattern of path.Match
	Function *regexp.Regexp // nil: Code says which
	Code     *regexp.Regexp // of what the row begins with, or what is where it was found first, in hexadecimal: of a function without a name
	What     []string       // what may be wrong: names as in Finding.What
}

// Knowns returns all that are listed.
var Knowns = sync.OnceValue(func() []*Known { return parseKnown(knownText) })

// parseKnown reads a line each: name, module, function, what, the last separated by commas; lines that start with # are comments. A
// function without a name is "code:" and a regular expression of the bytes that its row begins with.
func parseKnown(text string) (out []*Known) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0][0] == '#' {
			continue
		}
		if len(f) != 4 {
			panic("BUG: known.txt: " + line)
		}
		k := &Known{Name: f[0], Module: f[1], What: strings.Split(f[3], ",")}
		if code, ok := strings.CutPrefix(f[2], "code:"); ok {
			k.Code = regexp.MustCompile("^(?:" + code + ")")
		} else {
			k.Function = regexp.MustCompile("^(?:" + f[2] + ")$")
		}
		out = append(out, k)
	}
	return out
}

// known returns the entry that a finding matches, or nil.
func known(f *Finding) *Known {
	for _, k := range Knowns() {
		if k.matches(f) {
			return k
		}
	}
	return nil
}

func (k *Known) matches(f *Finding) bool {
	if ok, _ := path.Match(k.Module, path.Base(f.Module)); !ok || f.Ours {
		return false
	}
	begins := func(code []byte) bool { return k.Code.MatchString(hex.EncodeToString(code)) }
	if k.Function == nil && !begins(f.code) && !begins(f.first) || k.Function != nil && !k.Function.MatchString(f.Function) {
		return false
	}
	return !slices.ContainsFunc(f.What(), func(what string) bool { return !slices.Contains(k.What, what) })
}
