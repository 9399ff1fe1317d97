package ebpf

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"

	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// TestChurn: programs that come and go leave nothing in the kernel but the tables of the last of them, and no descriptors here.
func TestChurn(t *testing.T) {
	load(t, Options{}).Close()
	was := maxIdle
	t.Cleanup(func() { maxIdle = was }) // after the program's
	maxIdle = 16
	const programs = 150
	b, err := os.ReadFile(compile(t, `int main(void) { volatile int n; for (n = 0; n < 3000000; n++); return 0; }`))
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(b, []byte("\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\x00")) // the build ID's note
	if at < 0 {
		t.Fatalf("gcc has made a program of %d bytes without a build ID of 20 bytes", len(b))
	}
	dir := t.TempDir()
	for i := range programs {
		copy(b[at+16:], fmt.Sprintf("program %012d", i))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := load(t, Options{})
	// The loop starts programs itself, so that its own space is one of many, and waits at the end, so that the recording still runs.
	script := fmt.Sprintf("cd %s; i=0; while [ $i -lt %d ]; do ./$i; i=$((i+1)); done; read end", dir, programs)
	cmd := exec.Command("sh", "-c", script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	rec, err := perfevent.Open(t.Context(), perfevent.Options{PIDs: []int{cmd.Process.Pid}, Program: p})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	descriptors := func() int {
		list, _ := os.ReadDir("/proc/self/fd")
		return len(list)
	}
	count := func(name string) (n int) {
		var k, v []byte
		for it := p.coll.Maps[name].Iterate(); it.Next(&k, &v); {
			n++
		}
		return n
	}
	before, most, seen := 0, 0, map[string]bool{}
	ended := make(chan error, 1)
	go func() {
		_, err := source.Run(t.Context(), rec, source.Options{Ours: true, Sample: func(s *source.Sample) error {
			for i := range s.User {
				if m := s.User[i].Mapping; m != nil {
					seen[m.Module.Path] = true
				}
			}
			if n := descriptors(); before == 0 && len(seen) > 5 {
				before = n
			} else {
				most = max(most, n)
			}
			return nil
		}})
		ended <- err
	}()
	// All but the shell are gone in the end.
	const mostProcesses, mostSpaces, mostTables = 2, 2, 16 + 16/2 + 8 // 8: those of the shell
	processes, spaces, tables := 0, 0, 0
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		processes, spaces, tables = count("processes"), count("spaces"), p.Stats().Tables
		if wchan, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", cmd.Process.Pid)); processes <= mostProcesses && spaces <= mostSpaces && tables <= mostTables && bytes.Contains(wchan, []byte("pipe")) {
			break
		}
	}
	in.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files in stacks; %d processes, %d spaces and %d tables at the end; %d descriptors, and %d after the first programs", len(seen), processes, spaces, tables, most, before)
	if len(seen) < programs/2 {
		t.Errorf("only %d files were seen in stacks", len(seen))
	}
	if processes > mostProcesses || spaces > mostSpaces || tables > mostTables {
		t.Errorf("left in the kernel: %d processes, %d blocks of spaces, %d tables; at most %d, %d, %d should be", processes, spaces, tables, mostProcesses, mostSpaces, mostTables)
	}
	if most > before+10 {
		t.Errorf("%d descriptors, and %d after the first programs", most, before)
	}
}

// TestPut: the kernel has each byte of a table, of whatever length; to write nine tables takes less than one of them.
func TestPut(t *testing.T) {
	p := load(t, Options{})
	tables := &p.track.tables
	rnd := rand.New(rand.NewPCG(1, 1))
	put := func(n int) {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for slot := uint32(maxTables - 10); slot < maxTables-1; slot++ {
			if _, err := tables.put(&table{bytes: b, slot: slot}); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
			t.Errorf("nine tables of %d bytes took %d bytes of memory", n, took)
		}
		tables.jobs.Wait() // the slots had other tables
		var id uint32
		if err := tables.tables.Lookup(uint32(maxTables-10), &id); err != nil {
			t.Fatal(err)
		}
		m, err := ebpf.NewMapFromID(ebpf.MapID(id))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		for at := 0; at < n; at += valueBytes {
			var got, want tableValue
			copy(want[:], b[at:])
			if err := m.Lookup(uint32(at/valueBytes), &got); err != nil || got != want {
				t.Fatalf("%d bytes, at %d: %v, or other bytes", n, at, err)
			}
		}
	}
	for _, n := range []int{1, valueBytes, valueBytes*atOnce - 1, valueBytes*atOnce + 1, 3*valueBytes*atOnce + 500, 1 << 20} {
		put(n)
	}
}

// TestWaiting: a module waits once to be compiled, however often spaces with it come and go meanwhile; then it is forgotten.
func TestWaiting(t *testing.T) {
	tables := &tables{track: &tracker{}, all: map[*unwind.Module]*table{}} // nobody compiles
	mod := &unwind.Module{}
	var l *table
	for range 1000 {
		l = tables.add(mod)
		l.named++
		tables.leave([]*table{l})
	}
	if len(tables.waiting) != 1 || tables.waiting[0] != l {
		t.Fatalf("%d modules wait", len(tables.waiting))
	}
	close(l.made)
	tables.made = []*table{l}
	if tables.settle(); len(tables.all) != 0 {
		t.Errorf("%d modules are kept, want none: %d spaces name the only one", len(tables.all), l.named)
	}
	if again := tables.add(mod); again == l {
		t.Errorf("the table that was forgotten is there again: %d spaces name it; %d modules have tables", again.named, len(tables.all))
	} else if tables.forget(l); tables.all[mod] != again {
		t.Errorf("a module's old table %p was forgotten, and the module now has %p, want the new one, %p", l, tables.all[mod], again)
	}
	// Of what no space has any more, only so much waits; what one has stays.
	kept := tables.add(&unwind.Module{})
	kept.named++
	for range 100_000 {
		l := tables.add(&unwind.Module{})
		l.named++
		tables.leave([]*table{l})
		if n := len(tables.waiting); n > leastCrowd || len(tables.all) > n {
			t.Fatalf("%d modules wait, of %d", n, len(tables.all))
		}
	}
	if tables.all[kept.mod] != kept || !slices.Contains(tables.waiting, kept) {
		t.Errorf("a module that a space has is known: %v, waits: %v, want both; %d modules wait, of %d",
			tables.all[kept.mod] == kept, slices.Contains(tables.waiting, kept), len(tables.waiting), len(tables.all))
	}
}

// TestLong: while a file does not let itself be read, others are compiled.
func TestLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tables := &tables{track: &tracker{}, all: map[*unwind.Module]*table{}, compiling: map[*table]time.Time{}, most: 1}
		tables.track.changed.L = &tables.track.mu
		answer := make(chan struct{})
		stuck := func() *table {
			return tables.add(unwind.NewModule("stuck", "", func(*unwind.Module) *unwind.Code { <-answer; return nil }))
		}
		first, second, third := stuck(), stuck(), tables.add(&unwind.Module{})
		synctest.Wait()
		if third.compiled() || len(tables.compiling) != 1 {
			t.Errorf("%d modules are compiled at once, want 1; the third, behind two that do not let themselves be read, is compiled: %v", len(tables.compiling), third.compiled())
		}
		for range 2 {
			time.Sleep(long)
			tables.settle()
			synctest.Wait()
		}
		if !third.compiled() || first.compiled() || second.compiled() {
			t.Errorf("compiled are the first module: %v, the second: %v, the third: %v; want only the third; %d are being compiled, %d wait",
				first.compiled(), second.compiled(), third.compiled(), len(tables.compiling), len(tables.waiting))
		}
		var all []*table
		for range 2 * maxLong {
			all = append(all, stuck())
			time.Sleep(long)
			tables.settle()
		}
		if n := len(tables.compiling); n != 1+maxLong {
			t.Errorf("%d at once", n)
		}
		close(answer)
		synctest.Wait()
		for i, l := range append(all, first, second) {
			if !l.compiled() {
				t.Fatalf("module %d of %d is not compiled in the end; %d are being compiled, %d wait", i, len(all)+2, len(tables.compiling), len(tables.waiting))
			}
		}
		if len(tables.compiling)+len(tables.waiting) > 0 {
			t.Errorf("%d are compiled, %d wait", len(tables.compiling), len(tables.waiting))
		}
	})
}

// TestNumbers: when all numbers of spaces have been given, those that are free are given again, and no processor remembers whose they were.
func TestNumbers(t *testing.T) {
	p := load(t, Options{})
	caches := p.coll.Maps["caches"]
	remembered := func() (n int) {
		for cpu := range caches.MaxEntries() {
			b, err := caches.LookupBytes(cpu)
			if err != nil || len(b) != int(caches.ValueSize()) {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
			n += len(b) - bytes.Count(b, []byte{0})
		}
		return n
	}
	for cpu := range caches.MaxEntries() {
		if err := caches.Put(cpu, bytes.Repeat([]byte{1}, int(caches.ValueSize()))); err != nil {
			t.Fatal(err)
		}
	}
	s := tracker{coll: p.coll, numbers: map[uint32]bool{1: true, 3: true}, last: 1<<32 - 3}
	var got []uint32
	for range 2 {
		got = append(got, s.number())
	}
	if n := remembered(); n == 0 {
		t.Error("the caches are empty before all numbers have been given")
	}
	for range 2 {
		got = append(got, s.number())
	}
	if want := []uint32{1<<32 - 2, 1<<32 - 1, 2, 4}; !slices.Equal(got, want) {
		t.Errorf("got the numbers %d, want %d", got, want)
	}
	if n := remembered(); n != 0 {
		t.Errorf("processors remember %d bytes that are not 0", n)
	}
}
