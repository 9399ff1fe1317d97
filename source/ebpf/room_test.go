package ebpf

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// A shelf plays the tables of programs, all of one size, of which the kernel has room for some. It decides as fit does.
type shelf struct {
	tables
	list     []*table
	searched map[*table]uint64 // how often
	now      uint64
	missed   int // searches of tables that were out
	loads    int
}

func newShelf(n, room int) *shelf {
	s := &shelf{searched: map[*table]uint64{}, now: uint64(time.Hour)}
	s.all = map[*unwind.Module]*table{}
	for i := range n {
		l := &table{mod: new(unwind.Module), bytes: make([]byte, 100<<10), slot: uint32(i + 1), refs: 1}
		l.size = l.cost()
		s.list, s.all[l.mod] = append(s.list, l), l
	}
	s.memory = uint64(room) * s.list[0].size
	return s
}

func (s *shelf) search(i int) {
	if s.searched[s.list[i]]++; !s.list[i].in {
		s.missed++
	}
}

func (s *shelf) second(t *testing.T) {
	s.now += uint64(time.Second)
	s.weigh(s.now, func(l *table) uint64 { return s.searched[l] })
	in, out := s.claims()
	come, leave := contend(in, out, int64(s.memory)-int64(s.size))
	for _, l := range leave {
		l.in, l.since = false, s.now
		s.size -= l.size
	}
	for _, l := range come {
		l.in, l.since = true, s.now
		s.size += l.size
		s.loads++
	}
	if s.size > s.memory {
		t.Fatalf("%d bytes in a room for %d", s.size, s.memory)
	}
}

// TestTurns: of 200 programs that run in turn, with room for 12, few come and go. The order of their last searches would load one for each search.
func TestTurns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, next := range map[string]func(i int) int{
		"in turn":   func(i int) int { return i % 200 },
		"at random": func(int) int { return r.IntN(200) },
	} {
		s := newShelf(200, 12)
		const seconds, each = 3600, 6
		for i := range seconds * each {
			if s.search(next(i)); i%each == each-1 {
				s.second(t)
			}
		}
		t.Logf("%s: %d searches, %d missed, %d loads", name, seconds*each, s.missed, s.loads)
		if s.loads > seconds/4 || s.missed > seconds*each*95/100 {
			t.Errorf("%s: %d loads, and %d of %d searches missed", name, s.loads, s.missed, seconds*each)
		}
	}
}

// TestBusiest: programs that are always busy are in the kernel, beside many that run now and then. When others are busy, these come soon.
func TestBusiest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	s := newShelf(100, 8)
	busy := func(first, seconds int) (until int) {
		until = -1
		for i := range seconds {
			for k := range 6 {
				s.search(first + k)
			}
			for range 5 {
				s.search(r.IntN(100))
			}
			s.second(t)
			if all := !slices.ContainsFunc(s.list[first:first+6], func(l *table) bool { return !l.in }); !all {
				until = -1
			} else if until < 0 {
				until = i + 1
			}
		}
		return until
	}
	first, other := busy(0, 300), busy(50, 300)
	t.Logf("in after %d s; others after %d s; %d loads", first, other, s.loads)
	if first < 0 || first > 5 || other < 0 || other > 45 || s.loads > 100 {
		t.Errorf("in after %d s; others after %d s; %d loads", first, other, s.loads)
	}
}

// TestMostSearched: a table that a thousand walks a second look for comes in place of one that was there first, and for which one does.
func TestMostSearched(t *testing.T) {
	s := newShelf(13, 12)
	for range 100 {
		for i := range 12 {
			s.search(i)
		}
		s.second(t)
	}
	for range 10 {
		for i := range 12 {
			s.search(i)
		}
		for range 1000 {
			s.search(12)
		}
		s.second(t)
	}
	if !s.list[12].in || s.loads != 13 {
		t.Errorf("it is there: %v; %d loads", s.list[12].in, s.loads)
	}
}

// TestSpared: small tables stay where a large one must leave in any case, and a table comes only if those that leave are wanted less.
func TestSpared(t *testing.T) {
	tab := func(size uint64, want float64) *table { return &table{size: size, want: want} }
	small, tiny, large, busy := tab(10, 1), tab(1, 2), tab(80, 3), tab(40, 300)
	in := []*table{small, tiny, large, busy}
	for _, c := range []struct {
		free        int64
		out         []*table
		come, leave []*table
	}{
		{free: 20, out: []*table{tab(45, 100)}, leave: []*table{large}},
		{free: 40, out: []*table{tab(45, 100)}, leave: []*table{small}},
		{free: 45, out: []*table{tab(45, 100)}},
		{free: -1, out: []*table{tab(5, 100)}, leave: []*table{small}},
		{free: 0, out: []*table{tab(91, 100)}, leave: []*table{large, tiny, small}},
		{free: 0, out: []*table{tab(92, 100)}, come: []*table{}}, // busy would have to leave
		{free: 0, out: []*table{tab(200, 1000)}, come: []*table{}},
		{free: 20, out: []*table{tab(45, 5)}, come: []*table{}},
		{free: 20, out: []*table{tab(12, 50), tab(45, 100)}, leave: []*table{large}},
		{free: 5, out: []*table{tab(11, 50), tab(85, 100)}, leave: []*table{large, tiny, small}},
	} {
		if c.come == nil {
			c.come = slices.Clone(c.out)
			slices.Reverse(c.come)
		}
		come, leave := contend(in, c.out, c.free)
		if !slices.Equal(come, c.come) || !slices.Equal(leave, c.leave) {
			t.Errorf("%d free, %v out: %v come and %v leave, want %v and %v", c.free, bytesOf(c.out), bytesOf(come), bytesOf(leave), bytesOf(c.come), bytesOf(c.leave))
		}
	}
}

func bytesOf(list []*table) (all []uint64) {
	for _, l := range list {
		all = append(all, l.size)
	}
	return all
}

// TestCost: a table costs what the kernel said, so none comes where it has no room.
func TestCost(t *testing.T) {
	s := newShelf(2, 1)
	cost := s.list[0].size
	for _, l := range s.list {
		if l.size = 0; l.cost() < cost {
			t.Fatalf("%d bytes, and %d when it is known", l.cost(), cost)
		}
		l.size = cost + 4096
	}
	if got := s.list[0].cost(); got != cost+4096 {
		t.Errorf("%d bytes of one that took %d", got, cost+4096)
	}
}

// TestMemory: tables keep to the memory that they are given. A program calls one library for two seconds, and then another, where there is no room for
// both tables: the second comes in place of the first. Stacks are whole all the same, by copies.
func TestMemory(t *testing.T) {
	oracle.Need(t, "gcc")
	if runtime.GOARCH != "amd64" {
		oracle.Lacks(t, "an x86-64 machine")
	}
	dir := t.TempDir()
	build := func(name, code string, flags ...string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		cmd := exec.Command("gcc", append([]string{"-O2", "-o", path}, flags...)...)
		cmd.Stdin = strings.NewReader(code)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return path
	}
	// Each function of a library is 64 bytes long and runs for a microsecond.
	library := func(name string) string {
		return build("lib"+name+".so", ".globl "+name+"\n.balign 64\n"+name+`:
.rept 5000
.cfi_startproc
sub $24, %rsp
.cfi_adjust_cfa_offset 24
mov $2000, %ecx
1: dec %ecx
jnz 1b
add $24, %rsp
.cfi_adjust_cfa_offset -24
ret
.cfi_endproc
.balign 64
.endr
.section .note.GNU-stack,"",@progbits
`, "-shared", "-x", "assembler", "-")
	}
	library("first")
	second := library("second")
	prog := build("prog", `#include <time.h>
void first(void), second(void);
int main(void) {
	for (time_t began = time(0);;)
		for (int i = 0; i < 5000; i++) ((void (*)(void))((char *)(time(0) - began <= 2 ? first : second) + 64 * i))();
}`, "-fPIC", "-x", "c", "-", "-Wl,-rpath,"+dir, "-L"+dir, "-lfirst", "-lsecond")
	recorded := func(memory uint64, seconds time.Duration) (st Stats, late int) {
		p := load(t, Options{Memory: memory})
		n, whole, began := 0, 0, uint64(0)
		record(t, p, perfevent.Options{Command: []string{prog}, User: true, Frequency: 199, Duration: seconds * time.Second}, func(s *source.Sample) {
			if n++; n == 1 {
				began = s.Time
			}
			if s.Stop == unwind.Outermost {
				whole++
			}
			if s.Time-began > uint64((seconds-3)*time.Second) && s.Record.ID == source.WalkedID && inside(s, second) > 0 {
				late++
			}
		})
		st = p.Stats()
		t.Logf("%d samples, %d whole, %d copied; %d tables, %d bytes, %d evicted", n, whole, st.Copied, st.Tables, st.MapBytes, st.Evicted)
		if n < 50 || whole < n*99/100 {
			t.Errorf("%d of %d stacks are whole", whole, n)
		}
		return st, late
	}
	all, _ := recorded(0, 4)
	if all.Evicted > 0 {
		t.Fatalf("%d tables were evicted", all.Evicted)
	}
	memory := all.MapBytes * 7 / 8
	st, late := recorded(memory, 14)
	if st.Evicted == 0 || st.Evicted > 5 || st.MapBytes > memory {
		t.Errorf("%d tables were evicted, and %d bytes are left of at most %d", st.Evicted, st.MapBytes, memory)
	}
	if late < 20 {
		t.Errorf("%d stacks in the second library were walked in the kernel in the last seconds", late)
	}
}
