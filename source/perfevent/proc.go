package perfevent

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// synthesise makes the records of what exists: names of threads and executable mappings, at time 0. Whoever
// disappears meanwhile is left out.
func (r *Recorder) synthesise(o *Options) {
	s := synth{dec: r.dec, ids: &r.ids, owned: map[uint32]int{}, ended: r.stop.Load}
	procs := map[int][]int{} // threads of interest; nil for all
	if o.All {
		all, _ := procfs.Numbers("/proc")
		for _, pid := range all {
			procs[pid] = nil
		}
	}
	for _, tid := range o.TIDs {
		pid := procfs.Leader(tid)
		procs[pid] = append(procs[pid], tid)
	}
	for _, pid := range o.PIDs {
		procs[procfs.Leader(pid)] = nil
	}
	for pid, tids := range procs {
		s.process(pid, tids)
	}
	if r.program != nil {
		r.program.Begin(s.b)
	}
	s.kernel() // last, because it takes a while
	r.synth = s.b
}

// A synth makes records of /proc.
type synth struct {
	dec *source.Decoder
	ids *buildIDs
	b   []byte

	owned map[uint32]int // mappings, by user
	ended func() bool    // nobody waits for the rest; nil: somebody does
}

func (s *synth) stop() bool { return s.ended != nil && s.ended() }

func (s *synth) add(rec *source.Record) { s.b = s.dec.Append(s.b, 0, rec) }

// process adds a process with its mappings and the given threads, or all. One that has ended and waits for its parent is left
// out: nothing would say when it has gone.
func (s *synth) process(pid int, tids []int) {
	if tids == nil {
		tids, _ = procfs.Threads(pid)
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if state := procfs.State(stat); (state == 'Z' || state == 'X') && (len(tids) == 0 || len(tids) == 1 && tids[0] == pid) {
		return
	}
	s.comm(pid, pid)
	for _, tid := range tids {
		s.thread(pid, tid)
	}
	s.maps(pid)
}

func (s *synth) thread(pid, tid int) {
	if tid == pid {
		return
	}
	s.add(&source.Record{Type: source.RecordFork, PID: int32(pid), TID: int32(tid), PPID: int32(pid), PTID: int32(pid)})
	s.comm(pid, tid)
}

func (s *synth) comm(pid, tid int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
	if err != nil {
		return
	}
	s.add(&source.Record{Type: source.RecordComm, PID: int32(pid), TID: int32(tid), Comm: bytes.TrimSuffix(b, []byte("\n"))})
}

// maps adds the executable mappings of a process.
func (s *synth) maps(pid int) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	left := source.MaxMappings
	if owner := procfs.Owner(int32(pid)); owner != 0 {
		left = min(left, source.MaxOwned-s.owned[owner])
		defer func(most int) { s.owned[owner] += most - left }(left)
	}
	for left > 0 && !s.stop() && lines.Scan() {
		m, ok := procfs.ParseMapping(lines.Bytes())
		if !ok || m.Prot&source.ProtExec == 0 {
			continue
		}
		rec := mapped(&m)
		rec.PID, rec.TID = int32(pid), int32(pid)
		if rec.BuildID = s.ids.of(f, pid, &m, 0); len(rec.BuildID) > 0 {
			rec.Misc |= source.MiscMmapBuildID
		}
		s.add(&rec)
		left--
	}
}

// mapped returns the record that the kernel would write of a mapping.
func mapped(m *procfs.Mapping) source.Record {
	rec := source.Record{
		Type: source.RecordMmap2, Misc: source.MiscUser, Addr: m.Lo, Len: m.Hi - m.Lo, Pgoff: m.Off,
		Maj: m.Maj, Min: m.Min, Inode: m.Inode, Prot: m.Prot, MapFlags: unix.MAP_PRIVATE, Filename: []byte(m.Name),
	}
	if m.Shared {
		rec.MapFlags = unix.MAP_SHARED
	}
	if m.Name == "" || strings.HasPrefix(m.Name, "[anon") {
		rec.Filename = []byte("//anon")
	}
	return rec
}

// kernel adds the mapping by which perf finds the kernel's symbols: its text, under a name of perf's. Where this user
// may not see the kernel's addresses there is none.
func (s *synth) kernel() {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return
	}
	defer f.Close()
	var lo, hi uint64
	for lines := bufio.NewScanner(f); hi == 0 && lines.Scan(); {
		addr, name, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		switch {
		case lo == 0 && string(name) == "T _text":
			lo, _ = strconv.ParseUint(string(addr), 16, 64)
		case string(name) == "T _etext":
			hi, _ = strconv.ParseUint(string(addr), 16, 64)
		}
		if len(addr) == 0 || addr[0] == '0' {
			return // hidden from this user
		}
	}
	if lo != 0 && lo < hi {
		s.add(&source.Record{Type: source.RecordMmap, Misc: source.MiscKernel, PID: -1, Addr: lo, Len: hi - lo, Pgoff: lo,
			Filename: []byte("[kernel.kallsyms]_text")})
	}
}
