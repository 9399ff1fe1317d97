package perfevent

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// knownTime is how long a recording waits at most for the kernel to walk the stacks of the processes that there are.
var knownTime = 2 * time.Second // but for tests

// synthesise makes the records of what exists: names of threads and executable mappings, at time 0. Whoever
// disappears meanwhile is left out. What changes while /proc is read comes as records, too, but at which mappings a sample of that time has looked
// is not to be had: the recording begins behind the last process that was read. A program that does not know these processes yet would have their
// stacks copied, at thousands a second: so it begins when the program knows them.
//
// A command that is recorded alone runs already, and its samples count: the program has its tables, and begins at once.
func (r *Recorder) synthesise(ctx context.Context, o *Options) {
	ended := func() bool { return r.stop.Load() || ctx.Err() != nil }
	s := synth{dec: r.dec, ids: &r.ids, owned: map[uint32]int{}, ended: ended, code: len(r.code) > 0}
	running := r.reading.Load()
	if running {
		s.kernel()
	}
	code := len(s.b)
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
	if o.read != nil {
		o.read()
	}
	if r.program != nil {
		if known := r.program.Begin(s.b[code:]); running {
			select {
			case <-known:
			case <-time.After(knownTime):
			case <-r.ending:
			case <-r.drained: // whoever is recorded has gone
			case <-ctx.Done():
			}
		}
	}
	if r.begin(); !running {
		s.kernel()
	}
	r.synth = s.b
}

// A synth makes records of /proc.
type synth struct {
	dec *source.Decoder
	ids *buildIDs
	b   []byte

	owned map[uint32]int // mappings, by user
	ended func() bool    // nobody waits for the rest; nil: somebody does
	until time.Time      // nor after this; zero: whenever
	code  bool           // records tell of code that the kernel makes
	time  uint64         // of all records; 0: from before the recording
	misc  uint16         // of all records
}

func (s *synth) stop() bool {
	return s.ended != nil && s.ended() || !s.until.IsZero() && time.Now().After(s.until)
}

func (s *synth) add(rec *source.Record) {
	rec.Time = s.time
	rec.Misc |= s.misc
	s.b = s.dec.Append(s.b, 0, rec)
}

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

// maps adds the executable mappings of a process; [vsyscall], of which the kernel writes no record, is left out. It says how many these are, and
// whether they are all there are.
func (s *synth) maps(pid int) (n int, whole bool) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	left := source.MaxMappings
	if owner := procfs.Owner(int32(pid)); owner != 0 {
		left = min(left, source.MaxOwned-s.owned[owner])
		defer func(most int) { s.owned[owner] += most - left }(left)
	}
	for i := 0; lines.Scan(); i++ {
		if i%64 == 63 && s.stop() {
			return n, false
		}
		m, ok := procfs.ParseMapping(lines.Bytes())
		if !ok || m.Prot&source.ProtExec == 0 || m.Name == "[vsyscall]" {
			continue
		}
		if left <= 0 || s.stop() {
			return n, false
		}
		rec := mapped(&m)
		rec.PID, rec.TID = int32(pid), int32(pid)
		if is := s.ids.of(f, pid, &m, 0); len(is.id) > 0 {
			rec.BuildID, rec.Misc = is.id, rec.Misc|source.MiscMmapBuildID
		} else {
			rec.InodeGen = is.at.sum()
		}
		s.add(&rec)
		n++
		left--
	}
	return n, lines.Err() == nil
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

// kernel adds what kallsyms makes of the running kernel's symbols.
func (s *synth) kernel() {
	if f, err := os.Open("/proc/kallsyms"); err == nil {
		defer f.Close()
		s.kallsyms(f)
	}
}

// kallsyms adds the mapping by which perf finds the kernel's symbols: its text, under a name of perf's; and the code that the kernel has made, if
// records tell of what it makes later. Where whoever opened f may not see the kernel's addresses there is neither.
func (s *synth) kallsyms(f io.Reader) {
	var lo, hi uint64
	var modules []ksymbol
	for lines := bufio.NewScanner(f); (hi == 0 || s.code && !s.stop()) && lines.Scan(); {
		addr, name, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		switch {
		case len(name) > 0 && name[len(name)-1] == ']' && s.code:
			if k, ok := parseModule(addr, name); ok && len(modules) < maxModuleSymbols {
				modules = append(modules, k)
			}
		case lo == 0 && string(name) == "T _text":
			// Not the first symbol: processors' variables come first on x86-64 until Linux 6.14, and begin at 0.
			if lo, _ = strconv.ParseUint(string(addr), 16, 64); lo == 0 {
				return // hidden from this user
			}
		case string(name) == "T _etext":
			hi, _ = strconv.ParseUint(string(addr), 16, 64)
		}
	}
	if lo != 0 && lo < hi {
		s.add(&source.Record{Type: source.RecordMmap, Misc: source.MiscKernel, PID: -1, Addr: lo, Len: hi - lo, Pgoff: lo,
			Filename: []byte("[kernel.kallsyms]_text")})
	}
	s.made(modules)
}

// A ksymbol is a symbol of a module in /proc/kallsyms.
type ksymbol struct {
	addr uint64
	typ  uint16 // of a KSYMBOL record, where it is code that the kernel has made
	name string
}

// maxModuleSymbols bounds what is remembered of /proc/kallsyms.
const maxModuleSymbols = 1 << 20

// parseModule reads a symbol of a module: "t name\t[module]".
func parseModule(addr, rest []byte) (k ksymbol, ok bool) {
	at, err := strconv.ParseUint(string(addr), 16, 64)
	name, mod, ok := bytes.Cut(rest, []byte("\t"))
	if err != nil || at == 0 || !ok || len(name) < 3 {
		return ksymbol{}, false
	}
	k = ksymbol{addr: at}
	switch {
	case string(mod) == "[bpf]":
		k.typ = source.SymbolBPF
	case bytes.HasPrefix(mod, []byte("[__builtin__")):
		k.typ = source.SymbolOutOfLine
	}
	if k.typ != 0 {
		k.name = string(name[2:])
	}
	return k, true
}

// maxMade is what code may be long at most that the kernel has made, where no symbol follows: /proc/kallsyms has no lengths.
const maxMade = 1 << 20

// made adds a record for all code that the kernel has made, which is said to reach to the symbol that follows.
func (s *synth) made(modules []ksymbol) {
	slices.SortStableFunc(modules, func(a, b ksymbol) int { return cmp.Compare(a.addr, b.addr) })
	for i := range modules {
		k := &modules[i]
		if k.typ == 0 {
			continue
		}
		size := uint64(maxMade)
		if i+1 < len(modules) {
			size = min(size, modules[i+1].addr-k.addr)
		}
		if size > 0 {
			s.add(&source.Record{Type: source.RecordKsymbol, PID: -1, Addr: k.addr, Len: size, SymbolType: k.typ, Symbol: []byte(k.name)})
		}
	}
}
