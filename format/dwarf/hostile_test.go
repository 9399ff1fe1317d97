package dwarf

import (
	"errors"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// hostile are sections of some 2 MB that are made to use up memory or time: the section grows until it is that long.
var hostile = []struct {
	name string
	eh   bool
	make func(l *listing, size int)
}{
	{"a row every two bytes", false, func(l *listing, size int) {
		b := []byte{DW_CFA_remember_state, DW_CFA_def_cfa_offset, 16}
		for len(b) < size {
			b = append(b, DW_CFA_advance_loc+1, DW_CFA_offset+3, 2, DW_CFA_advance_loc+1, DW_CFA_restore+3)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"a set for every row", false, func(l *listing, size int) {
		var b []byte
		for n := uint64(0); len(b) < size; n++ {
			b = append(append(append(b, DW_CFA_advance_loc+1), DW_CFA_def_cfa_offset), uleb(n)...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"a register more in every row", false, func(l *listing, size int) {
		var b []byte
		for n := uint64(0); len(b) < size; n++ {
			b = append(append(append(b, DW_CFA_advance_loc+1), DW_CFA_undefined), uleb(n&0xffff)...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"a large set that changes", false, func(l *listing, size int) {
		var b []byte
		for n := uint64(0); n < 1000; n++ {
			b = append(append(b, DW_CFA_undefined), uleb(n)...)
		}
		for n := uint64(0); len(b) < size; n++ {
			b = append(append(append(b, DW_CFA_advance_loc+1), DW_CFA_def_cfa_offset), uleb(n)...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"a large set that does not change", false, func(l *listing, size int) {
		var b []byte
		for n := uint64(0); n < 1000; n++ {
			b = append(append(b, DW_CFA_undefined), uleb(n)...)
		}
		for n := uint64(0); len(b) < size; n++ { // a new instruction every time, of the same effect
			b = append(append(append(b, DW_CFA_advance_loc+1), DW_CFA_GNU_args_size), uleb(n)...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"everything remembered", false, func(l *listing, size int) {
		b := make([]byte, size)
		for i := range b {
			b[i] = DW_CFA_remember_state
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"expressions", false, func(l *listing, size int) {
		var b []byte
		for n := 0; len(b) < size; n++ {
			e := append(make([]byte, 200), byte(n), byte(n>>8), byte(n>>16))
			b = append(append(append(b, DW_CFA_advance_loc+1, DW_CFA_def_cfa_expression), uleb(uint64(len(e)))...), e...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"a long expression in every set", false, func(l *listing, size int) {
		e := make([]byte, 10000)
		b := append(append([]byte{DW_CFA_expression, 3}, uleb(uint64(len(e)))...), e...)
		for n := uint64(0); len(b) < size; n++ {
			b = append(append(append(b, DW_CFA_advance_loc+1), DW_CFA_def_cfa_offset), uleb(n)...)
		}
		l.fde(l.cie(cieHead{}), 0x1000, 1<<40, b...)
	}},
	{"functions of one byte", true, func(l *listing, size int) {
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)})
		for n := uint64(1); len(l.b) < size; n++ {
			l.entry(cie, join(l.num(4, n*2), l.num(4, 1), sized())...)
		}
	}},
	{"functions inside each other", true, func(l *listing, size int) {
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)})
		for n := uint64(1); len(l.b) < size; n++ {
			l.entry(cie, join(l.num(4, n), l.num(4, 1<<24-2*n), sized(), []byte{DW_CFA_def_cfa_offset, byte(n & 7)})...)
		}
	}},
	{"functions of one start", true, func(l *listing, size int) {
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)})
		for n := uint64(1); len(l.b) < size; n++ {
			l.entry(cie, join(l.num(4, 0x1000), l.num(4, n), sized(), []byte{DW_CFA_def_cfa_offset, byte(n & 7)})...)
		}
	}},
	{"a CIE for every function", true, func(l *listing, size int) {
		for n := uint64(1); len(l.b) < size; n++ {
			cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4), daf: sleb(int64(n))}, DW_CFA_def_cfa, 7, 8)
			l.entry(cie, join(l.num(4, n*2), l.num(4, 1), sized())...)
		}
	}},
	{"only CIEs", true, func(l *listing, size int) {
		for len(l.b) < size {
			l.cie(cieHead{}, []byte{}...)
		}
	}},
	{"damaged functions", true, func(l *listing, size int) {
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)})
		for n := uint64(1); len(l.b) < size; n++ {
			l.entry(cie, join(l.num(4, n*2), l.num(4, 1), sized(), []byte{DW_CFA_restore_state})...)
		}
	}},
	{"functions whose CIE is a large one", true, func(l *listing, size int) {
		for range 1 << 15 { // so many that no more are remembered
			l.cie(cieHead{}, []byte{}...)
		}
		b := make([]byte, size/2)
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)}, append(b, DW_CFA_def_cfa, 7, 8)...)
		for n := uint64(1); len(l.b) < size; n++ {
			l.entry(cie, join(l.num(4, n*2), l.num(4, 1), sized())...)
		}
	}},
}

// peak runs f and returns how much the heap grew in between, as far as sampling shows.
func peak(f func()) (bytes uint64) {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	debug.FreeOSMemory()
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	before, done, most := heap(), make(chan bool), make(chan uint64)
	go func() {
		top := before
		for {
			select {
			case <-done:
				most <- max(top, heap())
				return
			case <-time.After(time.Millisecond):
				top = max(top, heap())
			}
		}
	}()
	f()
	close(done)
	return <-most - before
}

// TestHostile: memory and time are bounded by the size of a section, whatever is in it.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	const size, maxBytes, maxTime = 2 << 20, 24, 1500 * time.Nanosecond // per byte, besides a constant
	for _, c := range hostile {
		l := &listing{eh: c.eh}
		c.make(l, size)
		f := l.frames()
		var x *rows.Table
		var ds []Damage
		began := time.Now()
		n := peak(func() { x, ds = f.Build(Both) })
		build := time.Since(began)
		rowstest.Check(t, x)
		entries := 0
		began = time.Now()
		e := peak(func() {
			sound(t, f.Entries(Both, func(e Entry) bool {
				entries++
				f.Bounds(Both, e.FDE.Lo)
				return entries < 2000
			}))
			for range 3 {
				f.Entries(Both, func(Entry) bool { return true })
			}
		})
		took := time.Since(began)
		t.Logf("%-36s build %3d MB, %4d ms: %7d rows, %7d sets, %4d damages; entries %3d MB, %4d ms", c.name, n>>20, build.Milliseconds(), len(x.Rows), len(x.Sets), len(ds), e>>20, took.Milliseconds())
		if most := uint64(64<<20 + maxBytes*len(l.b)); n > most || e > most {
			t.Errorf("%s: %d MB and %d MB for %d MB", c.name, n>>20, e>>20, len(l.b)>>20)
		}
		if most := 2*time.Second + maxTime*time.Duration(len(l.b)); build > most || took > most {
			t.Errorf("%s: %v and %v", c.name, build, took)
		}
		for _, d := range ds[:min(len(ds), 3)] {
			if !errors.Is(d, ErrUnsupported) && !errors.Is(d, ErrMalformed) {
				t.Errorf("%s: %v", c.name, d)
			}
		}
	}
}
