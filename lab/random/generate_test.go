package random

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// text is the program's text; csmith's has none here.
func (p *plan) text() string {
	switch p.kind {
	case "csmith":
		return ""
	case "rust":
		return p.rustSource()
	}
	return p.cSource()
}

// TestSeeds holds plans and programs of the first seeds against those of this version of the generator: who changes one changes the version, as
// outcomes name programs by their seeds.
func TestSeeds(t *testing.T) {
	h := sha256.New()
	kinds := map[string]int{}
	for seed := range uint64(1000) {
		p := newPlan(seed)
		kinds[p.kind]++
		fmt.Fprintln(h, p, p.text())
	}
	const want = "version 1: 9da6a3385fecaa11"
	if got := fmt.Sprintf("version %d: %x", version, h.Sum(nil)[:8]); got != want {
		t.Errorf("%s, not %s", got, want)
	}
	for _, kind := range []string{"csmith", "c", "c++", "rust"} {
		if kinds[kind] < 50 {
			t.Errorf("%d programs of 1000 are %s", kinds[kind], kind)
		}
	}
}

// TestReduction reduces a program that is wrong with one flag of two words, one feature, and at least three functions.
func TestReduction(t *testing.T) {
	p := &plan{seed: 1, kind: "c", compiler: "clang-19", flags: strings.Fields("-O2 -mllvm -x -g -mllvm -y"), features: alloca | tail | cold, funcs: 9}
	got := p.reduce(func(q *plan) bool {
		return strings.Contains(q.String(), "-mllvm -y") && q.features.has(tail) && q.funcs >= 3
	})
	if s := fmt.Sprint(got, " ", got.funcs); s != "seed 1: c, clang-19 -mllvm -y, with tail 3" {
		t.Errorf("reduce = %s, want seed 1: c, clang-19 -mllvm -y, with tail 3", s)
	}
	if len(p.flags) != 6 {
		t.Errorf("the plan itself was changed: %s", p)
	}
}
