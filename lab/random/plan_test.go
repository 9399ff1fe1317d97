package random

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// A plan is all that a seed says about a program: it can be changed, to reduce what is wrong.
type plan struct {
	seed     uint64
	kind     string // csmith, c, c++, rust
	compiler string // gcc-12, clang-19, rustc; of C++, too
	flags    []string
	features feature
	funcs    int
}

// A feature is a set of what functions contain.
type feature uint32

const (
	alloca feature = 1 << iota
	variable
	aligned
	large
	vectors
	pressure
	loops
	cold
	tail
	signals
	longjmp
	exceptions
	destructors
	nested
	naked
	foreign
	variadic
	manyArgs
	structs
	indirect
	switches
	features = iota
)

var featureNames = [features]string{"alloca", "variable", "aligned", "large", "vectors", "pressure", "loops", "cold", "tail", "signals", "longjmp",
	"exceptions", "destructors", "nested", "naked", "foreign", "variadic", "many", "structs", "indirect", "switches"}

func (f feature) String() string {
	var out []string
	for i, name := range featureNames {
		if f>>i&1 != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}

// has says whether all of other is in f.
func (f feature) has(other feature) bool { return f&other == other }

func (p *plan) String() string {
	return fmt.Sprintf("seed %d: %s, %s %s, with %s", p.seed, p.kind, p.compiler, strings.Join(p.flags, " "), p.features)
}

// driver is the command that compiles the program's language.
func (p *plan) driver() string {
	if p.kind == "c++" {
		return strings.NewReplacer("gcc", "g++", "clang", "clang++").Replace(p.compiler)
	}
	return p.compiler
}

func (p *plan) has(flag string) bool {
	for _, f := range p.flags {
		if f == flag || strings.HasSuffix(flag, "*") && strings.HasPrefix(f, strings.TrimSuffix(flag, "*")) {
			return true
		}
	}
	return false
}

// A choice is a list of alternatives, each some flags separated by blanks. "" is none.
type choice []string

var common = []choice{
	{"-O0", "-O1", "-O2", "-O2", "-O3", "-Os", "-Og"},
	{"", "", "", "-fasynchronous-unwind-tables", "-fno-asynchronous-unwind-tables", "-funwind-tables", "-fno-asynchronous-unwind-tables -funwind-tables"},
	{"", "", "-fomit-frame-pointer", "-fno-omit-frame-pointer", "-fno-omit-frame-pointer -momit-leaf-frame-pointer", "-fno-omit-frame-pointer -mno-omit-leaf-frame-pointer"},
	{"", "", "-fno-plt", "-Wl,-z,now", "-Wl,-z,lazy"},
	{"", "-fcf-protection=none", "-fcf-protection=full"},
	{"", "", "-no-pie", "-fPIC"},
	{"", "", "", "-fstack-protector-all", "-fstack-clash-protection"},
	{"", "", "", "-mno-red-zone", "-mstackrealign", "-fno-optimize-sibling-calls"},
	{"", "", "", "-mavx2", "-ffunction-sections", "-fno-inline"},
	{"", "", "", "-g"},
}

var gcc = []choice{
	{"", "", "", "-flto", "-fno-shrink-wrap", "-fno-reorder-blocks-and-partition", "-fipa-pta"},
	{"", "", "", "-maccumulate-outgoing-args", "-mno-push-args", "-mcall-ms2sysv-xlogues", "-fno-dwarf2-cfi-asm"},
	{"", "", "", "", "", "-fsplit-stack -fuse-ld=gold", "-finstrument-functions", "-mgeneral-regs-only"},
	{"", "", "-fno-ipa-ra", "-fcaller-saves", "-mpreferred-stack-boundary=5"},
}

var clang = []choice{
	{"", "", "", "-mllvm -enable-machine-outliner", "-mllvm -enable-shrink-wrap=false", "-mllvm -x86-pad-for-align=true"},
	{"", "", "", "-mrelax-all", "-fno-integrated-as"},
	{"", "", "", "-mstack-alignment=32", "-mstack-probe-size=256 -fstack-clash-protection", "-fsplit-stack"},
}

var rust = []choice{
	{"-Copt-level=0", "-Copt-level=1", "-Copt-level=2", "-Copt-level=3", "-Copt-level=s", "-Copt-level=z"},
	{"", "-Cforce-frame-pointers=yes"},
	{"", "", "-Clto=fat", "-Clto=thin"},
	{"", "", "-Ccodegen-units=1"},
	{"", "", "-Cpanic=abort", "-Cpanic=abort -Cforce-unwind-tables=no", "-Cforce-unwind-tables=yes"},
	{"", "", "-Clink-arg=-Wl,-z,now", "-Clink-arg=-Wl,-z,lazy"},
	{"", "", "-Crelocation-model=static", "-Crelocation-model=pic"},
	{"", "", "-Ctarget-feature=+avx2", "-Ctarget-feature=+crt-static"},
	{"", "", "-g"},
}

var rustNightly = []choice{
	{"", "-Zuse-sync-unwind=yes", "-Zuse-sync-unwind=no"},
	{"", "-Zplt=no", "-Zplt=yes"},
	{"", "-Zcf-protection=full"},
}

// newPlan returns the plan of a seed.
func newPlan(seed uint64) *plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &plan{seed: seed, funcs: 6 + r.IntN(20)}
	p.kind = pick(r, []string{"csmith", "csmith", "c", "c", "c", "c++", "c++", "c++", "rust"})
	p.features = feature(r.Uint64()|r.Uint64()) & (1<<features - 1)
	add := func(lists ...[]choice) {
		for _, list := range lists {
			for _, c := range list {
				p.flags = append(p.flags, strings.Fields(pick(r, c))...)
			}
		}
	}
	if p.kind == "rust" {
		p.compiler = pick(r, []string{"rustc", "rustc +nightly"})
		add(rust)
		if p.compiler != "rustc" {
			add(rustNightly)
		}
		return p
	}
	p.compiler = pick(r, []string{"gcc-12", "gcc-12", "gcc-11", "clang-14", "clang-19", "clang-19", "clang-22"})
	add(common)
	if p.gcc() {
		add(gcc)
	} else {
		add(clang)
		if p.compiler == "clang-19" && r.IntN(5) == 0 {
			p.flags = append(p.flags, "-flto", "-fuse-ld=lld")
		}
	}
	p.correct()
	return p
}

func (p *plan) gcc() bool { return strings.HasPrefix(p.compiler, "gcc") }

// correct leaves out what cannot be together.
func (p *plan) correct() {
	without := func(flags ...string) {
		var out []string
		for _, f := range p.flags {
			ok := true
			for _, w := range flags {
				ok = ok && f != w
			}
			if ok {
				out = append(out, f)
			}
		}
		p.flags = out
	}
	if p.has("-fsplit-stack") {
		without("-flto", "-fno-plt", "-fstack-clash-protection", "-fuse-ld=lld", "-fcf-protection=full")
		p.features &^= longjmp | signals | foreign | nested
		if !p.gcc() {
			p.features &^= variadic // "Segmented stacks do not support vararg functions"
			if p.kind == "csmith" {
				without("-fsplit-stack")
			}
		}
	}
	if p.has("-mgeneral-regs-only") {
		without("-mavx2")
		p.features &^= vectors | variadic | foreign
	}
	if p.has("-fno-dwarf2-cfi-asm") || p.has("-fno-asynchronous-unwind-tables") || p.gcc() && (p.has("-O0") || p.has("-fstack-protector-all")) {
		p.features &^= naked // its rows are in assembly; gcc stores arguments and canaries in the caller's frame
	}
	if p.has("-finstrument-functions") {
		p.features &^= foreign | naked
	}
	if p.has("-mcall-ms2sysv-xlogues") {
		without("-fsplit-stack", "-fuse-ld=gold")
	}
	if p.kind != "c" || !p.gcc() {
		p.features &^= nested
	}
	if p.kind == "c" {
		p.features &^= exceptions | destructors
	}
	if p.kind == "csmith" {
		without("-mgeneral-regs-only") // its header has floating point
		p.features = 0
	}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
