package unwind

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// linked are rows as compilers for AArch64 write them.
var linked = []string{
	"400000  cfa=sp+0", // a function that has not used the stack yet, or never does
	"400100  cfa=sp+32  x19=c-16  x29=c-32  ra=c-24",         // gcc: the record at the frame's end
	"400200  cfa=x29+16  x29=c-16  ra=c-8",                   // clang: the record at its beginning
	"400300  cfa=sp+48  ra=c-48",                             // Go
	"400400  cfa=sp+16  x29=c-16  ra=c-8  ra-signed",         // a signed return address
	"400500  cfa=sp+32  x29=c-32  ra=c-24  ra-signed  b-key", // by the other key
	"400600  cfa=x19+16  ra=c-8",                             // of another register
	"400700  cfa=sp+16  ra=u",                                // outermost
	"400800  cfa=sp+40000  x29=c-40000  ra=c-39992",          // too far for a plain rule
	"400900  cfa=sp+16  x29=c-16  ra=x19",                    // the return address in another register
	"400a00  gap",
}

// linkedSnap is a snapshot at pc of a process with these rows, as words lie on its stack.
func linkedSnap(t testing.TB, plain bool, pc uint64, words ...uint64) *Snapshot {
	s := snap(worldBy(t, arch.ARM64, func(x *rows.Table) rows.Stepper {
		if plain {
			return rows.Interp{Table: x}
		}
		return opaque{rows.Interp{Table: x}}
	}, linked...), pc, words...)
	s.Machine, s.Known = arch.ARM64, 1<<33-1
	s.Regs[31], s.Regs[30], s.Regs[29], s.Regs[19] = stackLo, 0x400101, stackLo, stackLo+16
	return s
}

// TestLinked: rules of a machine with a link register are plain, too, and lead where Stepper.Apply leads.
func TestLinked(t *testing.T) {
	const sign = 0x55 << 48
	for _, c := range []struct {
		name, want string
		pc         uint64
		words      []uint64
	}{
		{"gcc, clang, Go", "400000:start 400100:cfi 400200:cfi 400300:cfi 400700:cfi outermost", 0x400000,
			[]uint64{stackLo + 40, 0x400201, 0, 0, 9, stackLo + 64, 0x400301, 0x400701}},
		{"signed", "400100:start 400400:cfi 400500:cfi 400700:cfi outermost", 0x400100,
			[]uint64{0, 0x400401, 0, 0, 0, 0x400501 | sign, 0, 0x400701 | sign}},
		{"the signature of a rule that knows none", "400100:start 400200:cfi bad-return", 0x400100,
			[]uint64{stackLo + 32, 0x400201, 0, 0, 0, 0x400401 | sign}},
		{"a frame too large", "400100:start 400800:cfi truncated", 0x400100, []uint64{0, 0x400801, 0, 0}},
		{"a rule that is not plain needs what plain ones have saved", "400100:start 400300:cfi 400600:cfi 400700:cfi outermost", 0x400100,
			[]uint64{0, 0x400301, stackLo + 80, 0, 0x400601, 0, 0, 0, 0, 0, 0, 0x400701}},
		{"the return address where a plain rule has it last", "400100:start 400900:cfi 400700:cfi outermost", 0x400100,
			[]uint64{0, 0x400901, 0x400701, 0, 0, 0}},
	} {
		for _, plain := range []bool{true, false} {
			if got := chain(NewWalker(0).Walk(linkedSnap(t, plain, c.pc, c.words...), nil)); got != c.want {
				t.Errorf("%s, plain rules %v\n got %s\nwant %s", c.name, plain, got, c.want)
			}
		}
	}
	s := linkedSnap(t, true, 0x400000)
	code := s.Space.maps[0].Module.Code()
	w := NewWalker(0)
	for v, want := range map[arch.Vaddr]plain{
		0x400100: {off: 32, fp: -32, ra: -24, kind: plainSP}, 0x400200: {off: 16, fp: -16, ra: -8, kind: plainFP},
		0x400300: {off: 48, ra: -48, kind: plainSP}, 0x400400: {off: 16, fp: -16, ra: -8, kind: plainSP, signed: true},
		0x400000: {kind: plainNot}, 0x400600: {kind: plainNot}, 0x400800: {kind: plainNot}, 0x400900: {kind: plainNot},
	} {
		id, _ := code.Stepper.Find(v)
		if got := w.plain(code, id); got != want {
			t.Errorf("the rule at %#x: %+v, want %+v", v, got, want)
		}
	}
}

// TestSignatures: a process says which bits its signatures use, or maps what says it; a page of 4, 16 or 64 KiB makes no difference.
func TestSignatures(t *testing.T) {
	const high = 0xa_8000_0040_0000 // where only 52 bits lead
	for _, c := range []struct {
		name  string
		at    uint64 // where the code is
		signs uint64 // what the process says
		sign  uint64
		want  string
	}{
		{"48 bits", 0x400000, 0, 0x7f << 48, "outermost"},
		{"48 bits, as it says", 0x400000, 0x7f << 48, 0x7f << 48, "outermost"},
		{"52 bits", high, 0, 7 << 52, "outermost"},
		{"52 bits, as it says", high, 7 << 52, 7 << 52, "outermost"},
		{"52 bits, where it says 48", high, 0x7f << 48, 7 << 52, "bad-return"},
		{"48 bits, where it says 52", 0x400000, 7 << 52, 0x7f << 48, "bad-return"},
		{"42 bits, as it says", 0x400000, 0x1fff << 42, 0x1fff << 42, "outermost"},
		{"47 bits", 0x7fff_8040_0000, 0, 0xff << 47, "outermost"},
		{"39 bits", 0x7f_8040_0000, 0, 0xffff << 39, "outermost"},
		{"39 bits, at the end", 1<<39 - 1<<16, 0, 0xffff << 39, "outermost"},
	} {
		for _, page := range []uint64{1 << 12, 1 << 14, 1 << 16} {
			for _, plain := range []bool{true, false} {
				s := linkedSnap(t, plain, c.at+0x100, 0, c.at+0x401, 0, 0, 0, c.at+0x701|c.sign)
				mod := s.Space.maps[0].Module
				s.Space, s.Signs = NewSpace(Mapping{Lo: arch.Addr(c.at), Hi: arch.Addr(c.at + page), Module: mod}), c.signs
				if fs, stop := NewWalker(0).Walk(s, nil); stop.String() != c.want {
					t.Errorf("%s, plain rules %v: %s, want %s", c.name, plain, chain(fs, stop), c.want)
				}
				// The same by the frame pointer.
				s = linkedSnap(t, plain, c.at+0xa00, stackLo+16, c.at+0xa05|c.sign, 0, c.at+0x701|c.sign)
				s.Space, s.Signs = NewSpace(Mapping{Lo: arch.Addr(c.at), Hi: arch.Addr(c.at + page), Module: mod}), c.signs
				if fs, stop := NewWalker(0).Walk(s, nil); (stop == Outermost) != (c.want == "outermost") {
					t.Errorf("%s, by the frame pointer: %s, want %s", c.name, chain(fs, stop), c.want)
				}
			}
		}
	}
}

// TestOtherMachine: code for another machine than the stack's has no rules for it.
func TestOtherMachine(t *testing.T) {
	s := linkedSnap(t, true, 0x400100, 0, 0x400701, 0, 0)
	s.Machine = arch.AMD64
	s.Regs[7], s.Regs[6] = stackLo, 0
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400100:start no-info"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestTags: the processor ignores the high byte of an address that it loads from; x86-64 does not.
func TestTags(t *testing.T) {
	const tag = 0xb4 << 56
	for _, plain := range []bool{true, false} {
		// x29 has a tag: the code behind it is found, as is a register that a tagged address leads to.
		s := linkedSnap(t, plain, 0x400600, 0, 0, 0, 0x400701)
		s.Regs[19] |= tag
		if got, want := chain(NewWalker(0).Walk(s, nil)), "400600:start 400700:cfi outermost"; got != want {
			t.Errorf("plain rules %v\n got %s\nwant %s", plain, got, want)
		}
	}
	space, _ := world(t, "400000  cfa=rbx+16  ra=c-8", "400100  cfa=rsp+8  ra=u", "400200  gap")
	s := snap(space, 0x400000, 0, 0x400101)
	s.Regs[3] = stackLo | tag
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400000:start bad-memory"; got != want {
		t.Errorf("on x86-64\n got %s\nwant %s", got, want)
	}
}

// TestLinkedRandom: on random stacks, plain rules lead where Stepper.Apply leads, and the registers of all frames are the same.
func TestLinkedRandom(t *testing.T) {
	oracle.Long(t)
	walkers := [2]*Walker{NewWalker(50), NewWalker(50)}
	long := 0
	for seed := range uint64(10000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		words := make([]uint64, 20+rnd.IntN(40))
		for i := range words {
			switch n := rnd.IntN(8); { // mostly records of a frame pointer and a return address
			case n == 0 && rnd.IntN(4) == 0:
				words[i] = rnd.Uint64()
			case (n < 1) == (i&1 == 0):
				words[i] = 0x400001 + uint64("\x01\x01\x02\x02\x02\x03\x04\x04\x04\x05\x05\x06\x07\x08\x09"[rnd.IntN(15)])<<8
				if rnd.IntN(8) == 0 {
					words[i] |= rnd.Uint64() << 48
				}
			default:
				words[i] = stackLo + uint64(i/2+rnd.IntN(10))*16
			}
		}
		pc, x30, x29 := 0x400000+uint64(rnd.IntN(6))<<8, words[rnd.IntN(len(words))], stackLo+uint64(rnd.IntN(10))*16
		var got [2]string
		for i, plain := range []bool{true, false} {
			s := linkedSnap(t, plain, pc, words...)
			s.Regs[30], s.Regs[29] = x30, x29
			fs, stop := walkers[i].Walk(s, nil)
			got[i] = chain(fs, stop)
			var b []byte
			walkers[i].Registers(s, fs, func(_ int, known uint64, regs *[arch.NumSlots]uint64) {
				for slot, v := range regs {
					if known>>slot&1 != 0 {
						b = binary.AppendUvarint(append(b, byte(slot)), v)
					}
				}
			})
			if i == 0 && len(fs) > 3 {
				long++
			}
			got[i] += string(b)
		}
		if got[0] != got[1] {
			t.Fatalf("seed %d\nby plain rules %q\n       without %q", seed, got[0], got[1])
		}
	}
	if long < 2000 {
		t.Errorf("%d walks of more than three frames are too few to say anything", long)
	}
}

// BenchmarkWalkLinked walks a stack as gcc for AArch64 makes them.
func BenchmarkWalkLinked(b *testing.B) {
	var words []uint64
	for range 20 {
		words = append(words, 0, 0x400101, 0, 0)
	}
	words = append(words, 0, 0x400701, 0, 0)
	for _, name := range []string{"plain", "not"} {
		b.Run(strings.ToLower(name), func(b *testing.B) {
			s := linkedSnap(b, name == "plain", 0x400100, words...)
			w := NewWalker(0)
			var fs []Frame
			n := 0
			for b.Loop() {
				fs, _ = w.Walk(s, fs[:0])
				n += len(fs)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/frame")
		})
	}
}
