package dwarf

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A dream is a process that has one module, at a bias, and a stack of random words: addresses in the module,
// and in the stack. Wherever a walker starts, it gets far.
type dream struct {
	img  *module.Image
	t    *rows.Table
	bias uint64
	text module.Segment
	rnd  *rand.Rand
}

const dreamStack = 0x7ffd_0000_0000

// snapshot returns the dream at a program counter.
func (d *dream) snapshot(pc arch.Vaddr) oracle.Snapshot {
	s := oracle.Snapshot{Space: 1, Base: dreamStack, Stack: make([]byte, 1<<15)}
	onStack := func() uint64 { return dreamStack + uint64(8*(1024+d.rnd.IntN(1024))) }
	for i := range s.Regs {
		s.Regs[i] = onStack()
	}
	s.Regs[16] = uint64(pc) + d.bias
	for i := 0; i < len(s.Stack); i += 8 {
		v := onStack()
		if d.rnd.IntN(4) > 0 {
			r := d.t.Rows[d.rnd.IntN(len(d.t.Rows)-1)]
			v = uint64(r.Lo) + 1 + d.bias
		}
		binary.LittleEndian.PutUint64(s.Stack[i:], v)
	}
	return s
}

// walk walks a snapshot by rows.Step alone, for so many frames.
func (d *dream) walk(s *oracle.Snapshot, depth int) (pcs []uint64, end rows.Outcome) {
	st := &rows.State{}
	st.Start(s.Regs[16], 1<<17-1)
	copy(st.Snap[:], s.Regs[:])
	mem := &rows.Memory{Lo: s.Base, Bytes: s.Stack}
	exact := true
	for len(pcs) < depth {
		pcs = append(pcs, st.PC)
		at := st.PC - d.bias
		if !exact {
			at--
		}
		if v := arch.Vaddr(at); v < d.text.Vaddr || v >= d.text.Vaddr+arch.Vaddr(d.text.MemSize) {
			return pcs, rows.NoRule
		}
		set := d.t.At(arch.Vaddr(at))
		if o := rows.Step(arch.AMD64, set, st, mem); o != rows.OK {
			return pcs, o
		}
		exact = set.Flags&rows.Signal != 0
	}
	return pcs, rows.OK
}

// TestLibdw walks from rows of some files, and compares the program counters with libdw's: each is right only if
// the CFA and the registers that it came from are.
func TestLibdw(t *testing.T) {
	oracle.Long(t)
	const depth = 8
	for _, path := range []string{libcPath, "/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"} {
		if _, err := os.Stat(path); err != nil {
			t.Logf("no %s here", path)
			continue
		}
		img := openImage(t, path)
		x, ds := openFrames(t, img).Build(EHFrame)
		sound(t, ds)
		d := &dream{img: img, t: x, bias: 0x7f00_0000_0000, rnd: rand.New(rand.NewPCG(3, 4))}
		for _, s := range img.Segments() {
			if s.Kind == module.Loaded && s.Perm&module.Exec != 0 {
				d.text = s
			}
		}
		w := oracle.Dwfl(t)
		lo := uint64(d.text.Vaddr) &^ 4095
		if err := w.Map(1, oracle.Map{Lo: d.bias + lo, Hi: d.bias + (uint64(d.text.Vaddr)+d.text.MemSize+4095)&^4095, Off: d.text.Off &^ 4095, Path: path}); err != nil {
			t.Fatal(err)
		}
		var snaps []oracle.Snapshot
		for i := 0; i+1 < len(x.Rows); i += 1 + len(x.Rows)/4000 {
			if x.Rows[i].Set != rows.GapID {
				snaps = append(snaps, d.snapshot(x.Rows[i].Lo))
			}
		}
		chains, err := w.Walk(snaps)
		if err != nil {
			t.Fatal(err)
		}
		frames, more, bad := 0, 0, 0
		for i := range snaps {
			want := chains[i].PC[:min(depth, len(chains[i].PC))]
			got, end := d.walk(&snaps[i], depth)
			frames += len(got)
			n := min(len(got), len(want))
			if len(got) < len(want) {
				more++ // it goes on by the frame pointer
			} else if len(got) > len(want) {
				t.Errorf("%s: from %#x\n got %#x %v\nwant no more than %#x %s", filepath.Base(path), snaps[i].Regs[16]-d.bias, got, end, want, chains[i].Stop)
			}
			for k := range n {
				if got[k] != want[k] {
					if bad++; bad < 6 {
						t.Errorf("%s: from %#x, row %s\n got %#x %v\nwant %#x %s", filepath.Base(path), snaps[i].Regs[16]-d.bias,
							x.At(arch.Vaddr(snaps[i].Regs[16]-d.bias)).Text(arch.AMD64), got, end, want, chains[i].Stop)
					}
					break
				}
			}
		}
		t.Logf("%s: %d snapshots, %d frames, %d chains that it follows farther, by the frame pointer", filepath.Base(path), len(snaps), frames, more)
	}
}
