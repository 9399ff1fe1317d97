package modules

import (
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	rules "github.com/unspool/unspool/format/jit"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// TestRegistry: what a process has registered is read when a stack leads to other code, not too often, and no walk waits long for it.
func TestRegistry(t *testing.T) {
	oracle.Long(t)
	set := Interpreted()
	defer set.Close()
	m := set.Made(arch.AMD64)
	b := rows.NewBuilder(arch.AMD64)
	b.Begin(0x1000, 0x1100)
	b.Row(0x1000, b.Intern(rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: arch.AMD64.SP, Off: 8}, RA: arch.AMD64.RA}))
	table := rows.Build(b)
	asked, slow := 0, time.Duration(0)
	var give []*rows.Table
	m.Registered = func(pid int) ([]*module.Image, []*rows.Table) {
		asked++
		time.Sleep(slow)
		return nil, give
	}
	g := &registry{made: m, pid: 1, rules: rules.New(arch.AMD64, nil, nil)}
	find := func(v arch.Vaddr, want bool, times int) {
		t.Helper()
		_, ok := g.find(v)
		for m.reading.Load() {
			time.Sleep(time.Millisecond)
		}
		if ok != want || asked != times {
			t.Errorf("find(%#x) = %v after %d readings; want %v, %d", v, ok, asked, want, times)
		}
	}
	const never = 1 << 62
	find(0x1010, false, 1)
	give = []*rows.Table{table}
	g.next = never // this process has been asked
	m.next.Store(0)
	find(0x1010, false, 1)
	g.next = 0
	m.next.Store(never) // another one has
	find(0x1010, false, 1)
	m.next.Store(0)
	find(0x1010, true, 2)
	g.next = 0
	m.next.Store(0)
	find(0x1010, true, 2) // it is known
	slow = 20 * patience
	start := time.Now()
	if _, ok := g.find(0x2000); ok || time.Since(start) >= slow {
		t.Errorf("a walk waits %v", time.Since(start))
	}
	find(0x1010, true, 3)
	if now := int64(time.Since(began)); m.next.Load() < now+int64(pace-1)*int64(slow) {
		t.Errorf("after %v, the next reading is in %v", slow, time.Duration(m.next.Load()-now))
	}
	slow, give, g.next = 0, nil, 0
	m.next.Store(0)
	find(0x1010, true, 3) // until a stack leads to other code
	find(0x2000, false, 4)
	find(0x1010, false, 4)
	for n, want := range []time.Duration{2 * firstWait, 4 * firstWait, 8 * firstWait} { // nothing new
		g.next = 0
		m.next.Store(0)
		if find(0x2000, false, 5+n); g.wait != want {
			t.Errorf("after reading %d without news, the next is in %v; want %v", n, g.wait, want)
		}
	}
}
