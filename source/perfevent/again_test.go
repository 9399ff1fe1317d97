package perfevent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// TestRepair: a process overruns the ring while nobody reads, and then unmaps a file, maps others, takes another name and starts a child that does
// the same. Soon after, all that is known. A child that a process had started before it was recorded stays unrecorded.
func TestRepair(t *testing.T) {
	oracle.Long(t)
	canRecord(t)
	const files = 300
	dir := t.TempDir()
	for i := range files + 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{work(t), "flood", dir, fmt.Sprint(files)}
	for _, way := range []string{"command", "command by its own events", "process", "machine"} {
		t.Run(way, func(t *testing.T) {
			if way == "machine" && os.Geteuid() != 0 {
				oracle.Lacks(t, "root, to record the whole machine")
			}
			in, tell, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer tell.Close()
			listen, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer listen.Close()
			listen.SetReadDeadline(time.Now().Add(30 * time.Second))
			args := args
			if way == "process" {
				args = append(args[:len(args):len(args)], "earlier")
			}
			var reading sync.Mutex
			o := Options{Frequency: 199, StackSize: 64, Files: &[3]*os.File{in, out, os.Stderr}, round: func() { reading.Lock(); defer reading.Unlock() }}
			switch way {
			case "command", "command by its own events":
				o.Command, o.narrow = args, way != "command"
			default:
				cmd, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: o.Files[:]})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { cmd.Kill(); cmd.Wait() }()
				if o.All = way == "machine"; !o.All {
					o.PIDs = []int{cmd.Pid}
				}
				defer tell.Close()
			}
			lines := bufio.NewReader(listen)
			if len(o.Command) == 0 {
				lines.ReadString('\n')
			}
			r := open(t, o)
			in.Close()
			out.Close()
			if len(o.Command) > 0 {
				lines.ReadString('\n')
			}
			child := make(chan int, 1)
			go func() {
				defer close(child)
				time.Sleep(300 * time.Millisecond)
				reading.Lock()
				defer reading.Unlock()
				tell.Write([]byte("\n"))
				s, err := lines.ReadString('\n')
				pid, nerr := strconv.Atoi(strings.TrimSpace(s))
				if err != nil || nerr != nil {
					t.Errorf("%q: %v", s, err)
					r.Stop()
				}
				child <- pid
			}()
			time.AfterFunc(20*time.Second, r.Stop)
			var state [2]string
			var bad [2]int
			earlier := 0
			heard := func(rec *source.Record) error {
				if rec.Type == source.RecordComm && string(rec.Comm) == "earlier" {
					earlier++
				}
				return nil
			}
			st, err := source.Run(t.Context(), r, source.Options{Machine: r.Machine(), Record: heard, Sample: func(s *source.Sample) error {
				if s.Comm == "earlier" {
					earlier++
				}
				has, first := 0, false
				for _, m := range s.Space.Mappings() {
					if filepath.Dir(m.Module.Path) == dir {
						n, _ := strconv.Atoi(filepath.Base(m.Module.Path))
						if has++; n == 0 {
							first = true
						}
						if n == 1 {
							has--
						}
					}
				}
				what, which := fmt.Sprintf("%s: %d files, the first: %v", s.Comm, has, first), 0
				switch {
				case s.Comm == "flooded" && has == files && !first:
				case s.Comm == "unheard" && has == files+1 && !first:
					which = 1
				default:
					if state[0] != "" && state[1] != "" && (strings.HasPrefix(s.Comm, "flood") || s.Comm == "unheard") {
						t.Errorf("then again %s", what)
					}
					return nil
				}
				if state[which] = what; state[0] != "" && state[1] != "" {
					if bad[which]++; bad[0] > 3 && bad[1] > 3 {
						r.Stop()
					}
				}
				return nil
			}})
			tell.Close()
			r.Close()
			pid := <-child
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v; %+v", r.Stats(), st.Repairs)
			if earlier > 0 && !o.All {
				t.Errorf("%d records and samples of a child from before the recording", earlier)
			}
			if state[0] == "" || state[1] == "" {
				t.Errorf("of the process: %q; of its child %d: %q; %+v", state[0], pid, state[1], st)
			}
			if st.Lost == 0 || st.Repairs.Mappings < files || st.Repairs.Gone == 0 || st.Repairs.Names == 0 || way == "command" && st.Repairs.Processes == 0 {
				t.Errorf("%d lost, made up for: %+v", st.Lost, st.Repairs)
			}
			if st.Disordered > 0 {
				t.Errorf("%d out of order", st.Disordered)
			}
		})
	}
}

// TestUnmapped: code that the kernel moves to an address where no record says that something is, is soon found there.
func TestUnmapped(t *testing.T) {
	oracle.Long(t)
	for _, narrow := range []bool{false, true} {
		r := open(t, Options{Command: []string{work(t), "move", "2"}, narrow: narrow, StackSize: 512})
		unknown, known := 0, 0
		st, err := source.Run(t.Context(), r, source.Options{Machine: r.Machine(), Sample: func(s *source.Sample) error {
			switch n := len(s.User); {
			case n == 0 || s.Comm != "work":
			case s.User[0].Mapping == nil:
				unknown++
			case s.User[0].Mapping.Hi-s.User[0].Mapping.Lo == 4096 && filepath.Base(s.User[0].Mapping.Module.Path) == "work":
				known++
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d samples in no known mapping, %d in the moved one; %+v", unknown, known, st.Repairs)
		if known < 100 || known < unknown || st.Repairs.Mappings != 1 || st.Repairs.Gone > 2 || st.Disordered > 0 {
			t.Errorf("narrow %v: %d samples in no known mapping, %d in the moved one, %+v; %d out of order", narrow, unknown, known, st.Repairs, st.Disordered)
		}
	}
}

// TestConcerned: recorded are the known processes, and what they started since they were attached to; not who has the number of one that ended.
func TestConcerned(t *testing.T) {
	r := &Recorder{family: true, kin: source.NewTree([]int32{10, 20}).Members()}
	r.repair.since = 100
	r.mark(&source.Record{Type: source.RecordExit, PID: 20, TID: 20, Time: monotonic()})
	r.mark(&source.Record{Type: source.RecordExit, PID: 10, TID: 15, Time: 1}) // a thread
	r.mark(&source.Record{Type: source.RecordExit, PID: 30, TID: 30, Time: 1})
	now := bootTicks(monotonic())
	procs := map[int]origin{
		1: {0, 0}, 10: {1, 50}, 11: {10, 60}, 12: {10, 150}, 13: {12, 160}, 14: {11, 170}, 15: {10, 100}, // 11, 14 and 15: by what was there
		20: {1, now + 2}, 21: {20, now + 3}, 30: {1, 150}, 40: {41, 150}, 41: {40, 150}, 42: {43, 150},
	}
	for range 20 { // maps have any order
		got := r.concerned(procs)
		if child, grandchild := slices.Index(got, 12), slices.Index(got, 13); child > grandchild {
			t.Errorf("%v: 13 comes before its parent", got)
		}
		slices.Sort(got)
		if !slices.Equal(got, []int{10, 12, 13}) {
			t.Fatalf("%v are recorded, want 10, 12 and 13", got)
		}
	}
	if !r.member(20, 50) {
		t.Errorf("process 20, whose first thread has ended, is not recorded: began %v, ended %v, in the tree: %v", r.repair.began, r.repair.ended, r.kin.Has(20))
	}
	r.mark(&source.Record{Type: source.RecordFork, PID: 20, TID: 20, PPID: 10, PTID: 10, Time: monotonic()})
	if !r.member(20, now+2) {
		t.Errorf("process 20 of tick %d, which has the number of one that ended, is not recorded: began %v, ended %v, in the tree: %v", now+2, r.repair.began, r.repair.ended, r.kin.Has(20))
	}
	// Its exit is lost, and the number another one's, or a descendant's.
	r.repair.start(10, 50)
	procs[10] = origin{1, 50 + startSlack + 1}
	if r.member(10, procs[10].start) || !r.member(10, 50+startSlack) {
		t.Errorf("process 10 of tick 50: one of tick %d is taken for it: %v, want false; one of tick %d: %v, want true; began %v, ended %v",
			procs[10].start, r.member(10, procs[10].start), 50+startSlack, r.member(10, 50+startSlack), r.repair.began, r.repair.ended)
	}
	for _, c := range []struct {
		found  []int
		leaves []int32
	}{{nil, []int32{10}}, {[]int{10}, nil}} {
		s := synth{dec: source.NewDecoder()}
		s.dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagSampleIDAll}, nil, "")
		r.reportReused(&s, procs, c.found)
		members, left := source.NewTree([]int32{10, 20}).Members(), []int32(nil)
		for len(s.b) > 0 {
			var raw []byte
			var rec source.Record
			if raw, s.b = cutRecord(s.b); s.dec.Decode(raw, &rec) != nil || members.Apply(&rec) {
				t.Fatalf("%x: %+v", raw, rec)
			}
		}
		for _, pid := range []int32{10, 20} {
			if !members.Has(pid) {
				left = append(left, pid)
			}
		}
		if !slices.Equal(left, c.leaves) {
			t.Errorf("%v are read again: %v leave, want %v", c.found, left, c.leaves)
		}
	}
	procs[10] = origin{1, 50}
	r.mark(&source.Record{Type: source.RecordFork, PID: 12, TID: 12, PPID: 10, PTID: 10, Time: monotonic()})
	r.kin.Apply(&source.Record{Type: source.RecordFork, PID: 12, TID: 12, PPID: 10, PTID: 10})
	if at := bootTicks(monotonic()); !r.member(12, at) || r.member(12, at+startSlack+1) {
		t.Errorf("child 12: one of tick %d is taken for it: %v, want true; one of tick %d: %v, want false; began %v, ended %v",
			at, r.member(12, at), at+startSlack+1, r.member(12, at+startSlack+1), r.repair.began, r.repair.ended)
	}
	r.kin.Apply(&source.Record{Type: source.RecordFork, PID: 12, TID: 12, PPID: 1, PTID: 1})
	r.family = false
	if got := r.concerned(procs); len(got) != 2 {
		t.Errorf("without what they start, %v are recorded, want 10 and 20", got)
	}
}

// TestStranger: who has the number of a recorded process whose exit was lost is no member, at the first repair and at the next; nor is who has the
// number of a child that a repair has found.
func TestStranger(t *testing.T) {
	for _, family := range []bool{true, false} {
		r := &Recorder{family: family, queue: newBacklog(memoryOf(1 << 62).backlog), dec: source.NewDecoder(), kin: source.NewTree([]int32{10, 11}).Members()}
		r.out.to = r.queue
		r.dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagSampleIDAll}, nil, "")
		r.repair.start(10, 50)
		r.repair.start(11, 50)
		procs := map[int]origin{10: {1, 50 + startSlack + 1}, 11: {1, 50}}
		for repair := range 2 {
			found := r.concerned(procs)
			s := r.repairing(nil)
			r.reportReused(&s, procs, found)
			r.write(&s)
			r.flush()
			if !slices.Equal(found, []int{11}) || r.member(10, procs[10].start) {
				t.Errorf("family %v, repair %d: %v are read", family, repair, found)
			}
		}
		s := r.repairing(nil)
		s.time = monotonic()
		s.add(&source.Record{Type: source.RecordFork, PID: 12, TID: 12, PPID: 11, PTID: 11})
		at := bootTicks(s.time)
		r.write(&s)
		r.flush()
		if r.member(12, at-100) != family || r.member(12, at+100) {
			t.Errorf("family %v: a child that was found, or who has its number, is taken for the other", family)
		}
		for _, pid := range []int32{10, 11, 12} {
			r.mark(&source.Record{Type: source.RecordExit, PID: pid, TID: pid, Time: s.time})
		}
		if _, ok := r.repair.began[12]; ok || r.repair.ended[11] == 0 {
			t.Errorf("family %v: processes that have ended began at %v, ended at %v", family, r.repair.began, r.repair.ended)
		}
	}
}

// TestManyEnded: what is known of recorded processes that ended long ago does not grow.
func TestManyEnded(t *testing.T) {
	r := &Recorder{family: true, kin: source.NewTree([]int32{10}).Members()}
	most := 0
	for pid, now := int32(100), uint64(1e9); pid < 50_000; pid, now = pid+1, now+10e6 { // 100 a second
		for _, rec := range []source.Record{
			{Type: source.RecordFork, PID: pid, TID: pid, PPID: 10, PTID: 10, Time: now},
			{Type: source.RecordExit, PID: pid, TID: pid, PPID: 10, Time: now},
		} {
			r.mark(&rec)
			r.kin.Apply(&rec)
		}
		if r.repair.ended[pid] == 0 || r.member(int(pid), r.repair.ended[pid]+100) {
			t.Fatalf("who has the number of process %d, which has ended, is a member", pid)
		}
		most = max(most, len(r.repair.ended))
	}
	if n := len(r.repair.began); most > 4000 || n > 0 {
		t.Errorf("%d processes that have ended are known at once, and %d that began", most, n)
	}
}

// TestOrigin: /proc tells a process's parent, and its start by the clock that bootTicks reads.
func TestOrigin(t *testing.T) {
	before := bootTicks(monotonic())
	time.Sleep(20 * time.Millisecond)
	child, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { child.Kill(); child.Wait() }()
	is, ok := originOf(child.Pid)
	if now := bootTicks(monotonic()); !ok || is.parent != int32(os.Getpid()) || is.start <= before || is.start > now {
		t.Errorf("a child of %d, started after %d and by %d: %+v, %v", os.Getpid(), before, now, is, ok)
	}
	if is := parseOrigin([]byte("7 (a) S 1 2 (b) R 3 4")); is != (origin{}) {
		t.Errorf("of a text that is cut: %+v", is)
	}
}

// TestTrials: a process is read again after a second, two, four; who was not read may be at once, and so may one whose last trial is long ago.
func TestTrials(t *testing.T) {
	r := &Recorder{}
	p := &r.repair
	at := time.Now()
	due := func(after time.Duration) []int {
		r.Unmapped(7)
		return p.due(at.Add(after))
	}
	for _, c := range []struct {
		after time.Duration
		due   bool
	}{{0, true}, {time.Second / 2, false}, {time.Second, true}, {2 * time.Second, false}, {3 * time.Second, true}, {3 * time.Minute, true}, {3*time.Minute + time.Second, true}} {
		if is := len(due(c.after)) > 0; is != c.due {
			t.Errorf("after %v: due is %v", c.after, is)
		}
		if again := len(due(c.after)) > 0; again != c.due {
			t.Errorf("after %v, not read: due is %v", c.after, again)
		}
		if c.due {
			p.charge(7, at.Add(c.after))
		}
	}
}

// TestOwed: a process whose reading took too long is kept until it is read, though nobody asks for it, and is known by when it began. One that
// only a stack has asked for is not kept.
func TestOwed(t *testing.T) {
	r := &Recorder{}
	p := &r.repair
	at := time.Now()
	p.want(7, debt{true, 4711})
	p.want(8, debt{})
	r.Unmapped(7) // takes nothing from it
	for range 2 {
		if pids := p.due(at); len(pids) != 2 {
			t.Fatalf("at once, %v are due, want 7 and 8", pids)
		}
	}
	for _, pid := range []int32{7, 8} {
		d := p.take(pid)
		if want := (debt{pid == 7, 4711 * uint64(8-pid)}); d != want {
			t.Errorf("of process %d, owed: %+v, want %+v", pid, d, want)
		}
		p.charge(pid, at)
		p.want(pid, d)
	}
	for _, c := range []struct {
		after time.Duration
		want  []int
	}{{time.Second / 2, nil}, {time.Second, []int{7}}, {time.Minute, []int{7}}} {
		if pids := p.due(at.Add(c.after)); !slices.Equal(pids, c.want) {
			t.Errorf("after %v, %v are due, want %v", c.after, pids, c.want)
		}
	}
	if p.take(7); p.due(at.Add(time.Minute)) != nil || p.some.Load() {
		t.Errorf("what has been read is still to be read: %v", p.unread)
	}
}

// TestAgainBound: reading a process of many mappings ends when it is asked to, and leaves what is known of it.
func TestAgainBound(t *testing.T) {
	const pages = 1024
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	for i := 0; i < pages; i += 2 {
		if err := unix.Mprotect(b[i*page:(i+1)*page], unix.PROT_READ); err != nil {
			t.Fatal(err)
		}
	}
	read := func(most int) (asked, records int, whole, again bool) {
		s := synth{dec: source.NewDecoder(), ids: &buildIDs{}, owned: map[uint32]int{}, misc: source.MiscAgain, ended: func() bool { asked++; return asked > most }}
		s.dec.AddAttr(&source.Attr{}, nil, "")
		whole = s.again(os.Getpid(), origin{})
		for ; len(s.b) > 0; records++ {
			var raw []byte
			var rec source.Record
			if raw, s.b = cutRecord(s.b); s.dec.Decode(raw, &rec) != nil {
				t.Fatalf("%x", raw)
			}
			if records == 0 {
				again = rec.Type == source.RecordComm && rec.Misc&source.MiscAgain != 0
			}
			if string(rec.Filename) == "[vsyscall]" {
				t.Errorf("%+v", rec)
			}
		}
		return asked, records, whole, again
	}
	if asked, records, whole, _ := read(8); whole || records > 0 {
		t.Errorf("asked to end: whole is %v, %d records; it asked %d times", whole, records, asked)
	}
	var asked int
	var whole, again bool
	for i := 0; i < 100 && !whole; i++ { // on a busy machine, the time may end first
		asked, _, whole, again = read(1 << 30)
	}
	if !whole || !again || asked < pages/64 {
		t.Errorf("whole is %v, and replaces what is known: %v; it asked %d times", whole, again, asked)
	}
	if s := (&synth{}); !s.again(os.Getpid(), origin{start: 1}) || len(s.b) > 0 {
		t.Errorf("of another process of the number: %d bytes", len(s.b))
	}
}

// TestLostEarly: what was lost before the recording began is read again, and does not count as lost.
func TestLostEarly(t *testing.T) {
	r := &Recorder{queue: newBacklog(memoryOf(1 << 62).backlog), dec: source.NewDecoder(), timeAt: recordHeader + 8}
	r.out.to = r.queue
	r.dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagSampleIDAll}, nil, "")
	lose := func(n, time uint64) {
		b := r.dec.Append(nil, 0, &source.Record{Type: source.RecordLost, Lost: n, Time: time})
		copy(r.space(len(b)), b)
		r.repair.wanted = false
		if r.flush(); !r.repair.wanted {
			t.Errorf("a loss at %d is not made up for", time)
		}
	}
	r.reading.Store(true)
	lose(1, 400)
	r.reading.Store(false)
	lose(16, 450) // begin has not said yet when
	r.began.Store(500)
	lose(2, 499)
	lose(4, 500)
	lose(8, 600)
	if n := r.Stats().Lost; n != 28 || r.unheard != 3 {
		t.Errorf("%d records count as lost, %d not, want 28 and 3", n, r.unheard)
	}
	r.missed = 31
	r.tellMissed() // nothing more
	r.out.close()
	r.queue.close(nil)
	var got []uint64
	for {
		raw, _, err := r.Next()
		if err != nil {
			break
		}
		var rec source.Record
		if err := r.dec.Decode(raw, &rec); err != nil || rec.Type != source.RecordLost {
			t.Fatalf("%+v, %v", rec, err)
		}
		got = append(got, rec.Lost)
	}
	if !slices.Equal(got, []uint64{0, 16, 0, 4, 8}) {
		t.Errorf("the stream says %d", got)
	}
}

// TestCodeAgain: a recording that has lost records tells at its end of code that the kernel has made, and another one does not. It need not be allowed
// to see addresses any more.
func TestCodeAgain(t *testing.T) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "came_unheard", Type: ebpf.SocketFilter, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if errors.Is(err, os.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	whole := open(t, Options{All: true})
	defer whole.Close()
	if len(whole.code) == 0 {
		oracle.Lacks(t, "events that tell of code which the kernel makes")
	}
	if now, err := os.ReadFile("/proc/kallsyms"); err != nil || regexp.MustCompile(`(?m)^0+ T _text$`).Match(now) {
		oracle.Lacks(t, "the permission to see the kernel's addresses")
	}
	for _, c := range []struct{ lost, missed, told, others uint64 }{{0, 0, 0, 0}, {1, 0, 1, 0}, {1, 1, 1, 0}, {0, 1, 1, 1}} {
		if _, err := whole.kallsyms.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		r := &Recorder{queue: newBacklog(memoryOf(1 << 62).backlog), dec: source.NewDecoder(), code: []int{-1}, kallsyms: whole.kallsyms, missed: c.missed}
		r.out.to = r.queue
		r.dec.AddAttr(&source.Attr{SampleType: source.SampleTID | source.SampleTime, Flags: source.FlagSampleIDAll | source.FlagKsymbol}, nil, "")
		r.lost.Store(c.lost)
		before := monotonic()
		ended := make(chan error)
		go func() {
			runtime.LockOSThread() // and no Unlock: the thread ends
			err := dropSyslog()
			r.tellMissed()
			ended <- err
		}()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		r.out.close()
		r.queue.close(nil)
		var told, others, last uint64
		for {
			raw, _, err := r.Next()
			if err != nil {
				break
			}
			var rec source.Record
			switch err := r.dec.Decode(raw, &rec); {
			case err != nil || rec.Time < max(before, last):
				t.Fatalf("%+v, %v", rec, err)
			case rec.Type == source.RecordLostSamples:
				others += rec.Lost
			case rec.Type != source.RecordKsymbol:
				t.Errorf("%+v", rec)
			case strings.HasSuffix(string(rec.Symbol), "_came_unheard"):
				told++
			}
			last = rec.Time
		}
		if told != c.told || others != c.others {
			t.Errorf("%+v: %d tell of the program, %d records are said to be lost", c, told, others)
		}
	}
}

// dropSyslog gives up this thread's right to see the kernel's addresses.
func dropSyslog() error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return err
	}
	d[unix.CAP_SYSLOG/32].Effective &^= 1 << (unix.CAP_SYSLOG % 32)
	return unix.Capset(&h, &d[0])
}
