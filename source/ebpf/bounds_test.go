package ebpf

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/source"
)

// TestBounds: what one process or user makes does not fill what all share.
func TestBounds(t *testing.T) {
	var b bounds
	b.start(1 << 18)
	record := func(typ uint32, pid int32) []byte {
		raw := binary.LittleEndian.AppendUint32(nil, typ)
		raw = binary.LittleEndian.AppendUint32(raw, 16<<16)
		return binary.LittleEndian.AppendUint64(raw, uint64(pid))
	}
	kept := 0
	for range 3 * maxRecords {
		if b.admits(record(source.RecordMmap2, 1<<23), 5) {
			kept++
		}
	}
	if kept != maxRecords-1 || !b.admits(record(source.RecordMmap2, 8), 6) || b.admits(record(source.RecordMmap2, 1<<23), 2e9) {
		t.Errorf("%d of %d records are kept, or another's are not", kept, maxRecords)
	}
	if f := b.taken(); !f[1<<23] || f[8] || len(b.taken()) != 0 {
		t.Errorf("%v is flooded", f)
	}
	again := record(source.RecordMmap2, 9)
	binary.LittleEndian.PutUint16(again[4:], source.MiscAgain)
	for range maxRecords {
		b.admits(again, 6)
	}
	if !b.admits(record(source.RecordMmap2, 9), 6) {
		t.Errorf("%d mappings that were read from /proc count as process 9's doing: it has made %d, and is out: %v", maxRecords, b.made[9], b.out[9])
	}
	binary.LittleEndian.PutUint32(again[8:], 1<<23)
	if b.admits(again, 6) {
		t.Errorf("a mapping that was read from /proc of process %d is kept, but the process should be out: out are %v", 1<<23, b.out)
	}
	b.taken()
	exec := record(source.RecordComm, 1<<23)
	binary.LittleEndian.PutUint16(exec[4:], source.MiscCommExec)
	if b.admits(exec, 2e9); !b.admits(record(source.RecordMmap2, 1<<23), 2e9) {
		t.Errorf("process %d executes another program, and its mappings are not kept: it has made %d, and out are %v", 1<<23, b.made[1<<23], b.out)
	}
	kept = 0
	for n := range 20 * (maxRecords - 1) { // processes of one user, each of which makes less than it may
		if b.admits(record(source.RecordMmap2, int32(1<<23+100+n%20)), 4e9) {
			kept++
		}
	}
	if kept > maxUserMade+20*askAt {
		t.Errorf("%d of a user's are kept", kept)
	}
	b.partial[7] = true
	b.follow(&source.Record{Type: source.RecordFork, PID: 20, TID: 20, PPID: 7})
	b.follow(&source.Record{Type: source.RecordComm, Misc: source.MiscCommExec, PID: 7, TID: 7})
	if b.partial[7] || !b.partial[20] {
		t.Errorf("known in part: %v", b.partial)
	}
	if b.waits(5, heavyMappings, 1e9) || b.waits(5, heavyMappings+1, 1e9) || !b.waits(5, heavyMappings+1, 1e9+1) || !b.late[5] || b.waits(5, heavyMappings+1, 2e9) || b.late[5] {
		t.Errorf("process 5 waits with %d mappings, or, with %d, does not wait from 1e9+1 ns to 2e9 ns only: its space was last shared at %d ns, and it is late: %v",
			heavyMappings, heavyMappings+1, b.shared[5], b.late[5])
	}
	for blocks, want := range map[int]int{1 << 12: 1 << 11, 1 << 13: 1 << 12, 1 << 14: 1 << 12, 1 << 15: 1 << 12, 1 << 18: 1 << 15} {
		if got := share(blocks); got != want {
			t.Errorf("a user may have %d of %d blocks, not %d", got, blocks, want)
		}
	}
	u := &user{max: 1 << 15}
	if !u.fits(1<<15) || u.fits(1) || !(*user)(nil).fits(1<<30) {
		t.Errorf("a user has %d blocks of %d, want all; or root, who has no bound, does not have %d", u.blocks, u.max, 1<<30)
	}
	for range maxUserTables {
		u.table()
	}
	if u.table() {
		t.Errorf("a user has %d tables, want at most %d", u.tables, maxUserTables)
	}
	if u.release(); !u.table() {
		t.Errorf("a user who has released 1 of %d tables still has %d", maxUserTables, u.tables)
	}
}

// TestFlood: processes that map as much as they can, all the time, do not keep the kernel's program from what another one maps.
func TestFlood(t *testing.T) {
	p := load(t, Options{})
	dec := source.NewDecoder()
	dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagSampleIDAll}, nil, "")
	p.track.dec = dec
	p.track.begin(nil)
	const first, floods, victim = 1 << 22, 20, 1<<22 + 100 // above all real ones
	mapping := func(pid int32, n int) []byte {
		return dec.Append(nil, 0, &source.Record{
			Type: source.RecordMmap2, PID: pid, TID: pid, Time: monotonic(), Addr: uint64(n%8000)<<13 + 1<<32, Len: 4096, Pgoff: 4096 * uint64(n/8000),
			Prot: source.ProtExec, Filename: []byte("/usr/bin/true"), Inode: 1,
		})
	}
	space := func() (v [processSize]byte) {
		p.coll.Maps["processes"].Lookup(uint32(victim), &v)
		return v
	}
	var took []time.Duration
	n := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		p.track.observe(mapping(victim, len(took)))
		was, at := space(), time.Now()
		for space() == was && time.Since(at) < 5*time.Second {
			for range 100 {
				for pid := range int32(floods) {
					p.track.observe(mapping(first+pid, n/floods))
					n++
				}
			}
			p.track.round(monotonic())
			time.Sleep(time.Millisecond)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	st := p.Stats()
	t.Logf("%d mappings by others; what one process maps is known after %v, %v at most (%d); %d failed: %v", n, took[len(took)/2], took[len(took)-1], len(took), st.Failed, st.Err)
	if len(took) < 20 || took[len(took)/2] > 100*time.Millisecond {
		t.Errorf("what a process maps is known after %v; %d mappings in 3 s", took[len(took)/2], len(took))
	}
}
