package source

import (
	"fmt"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestOwners: a user's flood of mappings, 20 processes of 32,754, costs that user's stacks and nobody else's, and little time.
func TestOwners(t *testing.T) {
	oracle.Long(t)
	w := NewWorld(nil)
	w.Owners(func(pid int32) uint32 { return uint32(pid / 1000) })
	began := time.Now()
	mapping := func(pid int32, i uint64) {
		w.Apply(&Record{Type: RecordMmap2, PID: pid, TID: pid, Addr: (i + 1) << 16, Len: 1 << 12, Pgoff: i & 1 << 12, Prot: ProtExec, Filename: fmt.Appendf(nil, "/lib/%d", pid/1000)})
	}
	for p := range int32(20) {
		for i := range uint64(32_754) {
			mapping(1000+p, i)
		}
	}
	flood := 0
	for p := range int32(20) {
		_, s := w.Thread(1000+p, 1000+p)
		flood += len(s.Mappings())
	}
	took := time.Since(began)
	for i := range uint64(100) {
		mapping(2000, i)
	}
	if flood > MaxOwned || w.Dropped() != uint64(20*32_754-flood) {
		t.Errorf("%d mappings of one user, %d dropped", flood, w.Dropped())
	}
	if _, s := w.Thread(2000, 2000); len(s.Mappings()) != 100 {
		t.Errorf("another user's process has %d mappings of 100", len(s.Mappings()))
	}
	t.Log(took)
	if took > 20*time.Second { // 0.4 s on an idle machine; 60 s where each mapping was laid for itself
		t.Errorf("it took %v", took)
	}
	// What ends makes room again.
	for p := range int32(20) {
		w.Apply(&Record{Type: RecordComm, Misc: MiscCommExec, PID: 1000 + p, TID: 1000 + p, Comm: []byte("x")})
	}
	before := w.Dropped()
	for i := range uint64(100) {
		mapping(1000, i)
	}
	if _, s := w.Thread(1000, 1000); len(s.Mappings()) != 100 || w.Dropped() != before {
		t.Errorf("%d mappings after an execve, %d dropped", len(s.Mappings()), w.Dropped()-before)
	}
}

// TestOwnersRepaired: at its user's limit, what is known of a process stays when it is read again.
func TestOwnersRepaired(t *testing.T) {
	w := NewWorld(nil)
	w.Owners(func(int32) uint32 { return 1 })
	mapping := func(pid int32, i uint64, misc uint16) {
		w.Apply(&Record{Type: RecordMmap2, Misc: misc, PID: pid, TID: pid, Time: 1, Addr: (i + 1) << 16, Len: 1 << 12, Prot: ProtExec, Filename: []byte("/lib")})
	}
	const full = MaxOwned/MaxMappings - 1
	for pid := range int32(full + 1) {
		n := uint64(MaxMappings)
		if pid == full {
			n = maxPending / 2
		}
		for i := range n {
			mapping(pid+1, i, 0)
		}
		w.Thread(pid+1, pid+1)
	}
	_, was := w.Thread(1, 1)
	if len(was.Mappings()) != MaxMappings || w.total != full*MaxMappings+maxPending/2 || w.Dropped() > 0 {
		t.Fatalf("%d mappings of %d, %d dropped", len(was.Mappings()), w.total, w.Dropped())
	}
	w.Apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: 1, TID: 1, Time: 2, Comm: []byte("x")})
	for i := range uint64(MaxMappings) {
		mapping(1, i, MiscAgain)
	}
	if _, is := w.Thread(1, 1); is != was || w.repairs != (Repairs{}) || w.Dropped() > 0 {
		t.Errorf("%d mappings, were %d: %+v, %d dropped", len(is.Mappings()), len(was.Mappings()), w.repairs, w.Dropped())
	}
	checkTotal(t, w)
}
