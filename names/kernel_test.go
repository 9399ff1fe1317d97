package names

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
)

const codeBase = 0xffffffffc0000000

// ksymbols gives a Namer the record of code at an offset from codeBase.
func ksymbols(n *Namer, off, size uint64, name string, flags uint16) {
	n.Observe(&source.Record{Type: source.RecordKsymbol, Addr: codeBase + off, Len: size, SymbolType: source.SymbolBPF, SymbolFlags: flags, Symbol: []byte(name)})
}

// keyed returns what a sample at an offset from codeBase asks for now.
func keyed(n *Namer, off uint64) uint64 {
	if key := n.KernelKey(); key != nil {
		return key(codeBase + off)
	}
	return codeBase + off
}

func kernelName(n *Namer, key uint64) profile.Name {
	var names [1]profile.Name
	n.Kernel([]uint64{key}, names[:])
	return names[0]
}

// TestKernelCode: code that comes where other code was has the name of its time, in whatever order samples are named; code that goes and was not
// known was there before the records.
func TestKernelCode(t *testing.T) {
	n := New(Options{Recorded: true})
	defer n.Close()
	before := keyed(n, 0x1010)
	ksymbols(n, 0x1000, 0x100, "bpf_prog_old", source.SymbolUnregister)
	between := keyed(n, 0x1010)
	if key := n.KernelKey(); key != nil {
		t.Errorf("an address with one code has another key: %#x has %#x; want none", uint64(codeBase+0x1010), key(codeBase+0x1010))
	}
	ksymbols(n, 0x1000, 0x80, "bpf_prog_new", 0)
	after := keyed(n, 0x1010)
	ksymbols(n, 0x1000, 0x80, "bpf_prog_new", source.SymbolUnregister)
	running := keyed(n, 0x1010) // a processor has not left it
	ksymbols(n, 0x1000, 0x100, "bpf_prog_old", 0)
	again := keyed(n, 0x1010)
	ksymbols(n, 0x2000, 0x100, "ftrace_trampoline", 0)
	for what, c := range map[string]struct {
		key  uint64
		name string
	}{
		"before its end was seen": {before, "bpf_prog_old"}, "after it": {between, "bpf_prog_old"}, "the second": {after, "bpf_prog_new"},
		"the second's last": {running, "bpf_prog_new"}, "the first again": {again, "bpf_prog_old"}, "behind the second": {keyed(n, 0x10f0), "bpf_prog_old"},
		"behind all": {keyed(n, 0x1100), ""}, "before all": {keyed(n, 0xfff), ""},
	} {
		got := kernelName(n, c.key)
		if got.Func != c.name || c.name != "" && (got.Start != codeBase+0x1000 || got.Module != "[bpf]" || got.Linkage != c.name) {
			t.Errorf("%s: %+v, want %s", what, got, c.name)
		}
	}
	if again != before {
		t.Errorf("code that comes again has the key %#x, want %#x, which it had before", again, before)
	}
	// In a profile, both are at the address.
	b := profile.NewBuilder()
	for _, key := range []uint64{before, after} {
		b.Add(&profile.Sample{Kernel: []uint64{codeBase + 0x1010}, KernelKey: func(uint64) uint64 { return key }})
	}
	p := b.Profile(n, profile.Info{})
	var got []string
	for i := range p.Locs {
		l := &p.Locs[i]
		got = append(got, fmt.Sprintf("%s+%#x at %#x", p.Funcs[l.Func].Name, l.Off-l.Start, l.Addr))
	}
	if s := strings.Join(got, ", "); s != "bpf_prog_old+0x10 at 0xffffffffc0001010, bpf_prog_new+0x10 at 0xffffffffc0001010" {
		t.Errorf("the profile has %s, want bpf_prog_old+0x10 and bpf_prog_new+0x10, both at 0xffffffffc0001010", s)
	}
}

// TestKernelCodeModel compares random comings and goings with a list of what each byte has been.
func TestKernelCodeModel(t *testing.T) {
	const size = 64
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		n := New(Options{Recorded: true})
		var now [size]string
		asked := map[uint64]string{}
		for range 200 {
			lo := rnd.Uint64N(size - 16)
			name := fmt.Sprint("bpf_prog_", rnd.IntN(6))
			length := 1 + rnd.Uint64N(16)
			ksymbols(n, lo, length, name, 0)
			for i := lo; i < lo+length; i++ {
				now[i] = fmt.Sprintf("%s %d", name, lo)
			}
			if rnd.IntN(2) == 0 {
				ksymbols(n, lo, length, name, source.SymbolUnregister)
			}
			for range 4 { // where the last code is: of what it cut short, nothing is said
				at := lo + rnd.Uint64N(length)
				key := keyed(n, at)
				want := now[at]
				if was, ok := asked[key]; ok && was != want {
					t.Fatalf("seed %d: %#x stands for %s and %s", seed, key, was, want)
				}
				asked[key] = want
			}
		}
		for key, want := range asked {
			got := kernelName(n, key)
			if have := fmt.Sprintf("%s %d", got.Func, got.Start-codeBase); have != want {
				t.Fatalf("seed %d: %#x is %s, want %s", seed, key, have, want)
			}
		}
		n.Close()
	}
}

// TestKernelCodeBounds: what no kernel writes is left out, and too much is counted.
func TestKernelCodeBounds(t *testing.T) {
	n := New(Options{Recorded: true})
	defer n.Close()
	for _, r := range []source.Record{
		{Addr: codeBase, Len: 0, Symbol: []byte("empty")},
		{Addr: ^uint64(0) - 5, Len: 100, Symbol: []byte("around")},
		{Addr: codeBase, Len: 1 << 31, Symbol: []byte("huge")},
		{Addr: 0x1000, Len: 100, Symbol: []byte("user")},
		{Addr: 1 << 62, Len: 100, Symbol: []byte("key")},
		{Addr: codeBase, Len: 100},
		{Addr: codeBase, Len: 100, Symbol: []byte(strings.Repeat("x", 4000))},
	} {
		r.Type = source.RecordKsymbol
		n.Observe(&r)
	}
	if len(n.code.codes) != 0 {
		t.Errorf("%+v", n.code.codes)
	}
	for _, key := range []uint64{0, 1, 1 << 62, 1<<62 + 5<<32, 1<<63 - 1, 1 << 63, ^uint64(0)} {
		if got := kernelName(n, key); strings.HasPrefix(got.Func, "bpf") {
			t.Errorf("%#x is %+v", key, got)
		}
	}
	for i := range uint64(maxKernelCodes + 3) {
		ksymbols(n, i<<8, 1<<8, "bpf_prog_many", 0)
	}
	if notes := n.Notes(); len(notes) != 1 || !strings.HasPrefix(notes[0], "3 programs") {
		t.Errorf("%q", notes)
	}
	if got := kernelName(n, codeBase+maxKernelCodes<<8-1); got.Func != "bpf_prog_many" {
		t.Errorf("%+v", got)
	}
	// What is too much comes where another one was: it has no name, and not the other's.
	before := keyed(n, 0x10)
	ksymbols(n, 0, 0x80, "bpf_prog_too_many", 0)
	after, next, other := keyed(n, 0x10), keyed(n, 0x11), keyed(n, 0x110)
	if a, b := kernelName(n, before), kernelName(n, other); a.Func != "bpf_prog_many" || b.Func != "bpf_prog_many" {
		t.Errorf("before: %+v; elsewhere: %+v", a, b)
	}
	if got := kernelName(n, after); got.Func != "" || after == before || next != after+1 {
		t.Errorf("%#x, and then %#x, is %+v", before, after, got)
	}
	ksymbols(n, 0, 0x80, "bpf_prog_too_many", source.SymbolUnregister)
	if got := keyed(n, 0x10); got != after {
		t.Errorf("when it has gone, a processor in it asks for %#x, was %#x", got, after)
	}
	ksymbols(n, 0, 1<<8, "bpf_prog_many", 0)
	if got := keyed(n, 0x10); got != before {
		t.Errorf("the first one again has the key %#x, want %#x", got, before)
	}
}
