package source

import (
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A Sample is one sample with its stack. It and all it holds is recycled after the consumer returns.
type Sample struct {
	Event    int // index in the Decoder
	PID, TID int32
	CPU      uint32
	Comm     string // safe to keep
	Time     uint64 // ns as recorded; 0 if not recorded
	Period   uint64 // 1 if not recorded
	IP       uint64
	Kernel   []uint64       // kernel part of the stack, innermost first, addresses as recorded
	User     []unwind.Frame // innermost first
	Stop     unwind.Stop    // why User ends
	From     StackSource    // where User comes from
	Space    *unwind.Space  // of the process at this time; never nil
	Record   *Record        // as decoded; its slices are valid as long as the Sample
	Prepared uint64         // what Options.Prepare returned
}

// A StackSource says where the user part of a stack comes from.
type StackSource uint8

const (
	NoStack  StackSource = iota // there is none
	Walked                      // from registers and a copy of the stack
	Recorded                    // the recorded callchain
	Deferred                    // a callchain that the kernel recorded at the return to user space
	OnlyIP                      // one frame: the sample's address
	numSources
)

var sourceNames = [...]string{"none", "walked", "recorded", "deferred", "ip"}

func (s StackSource) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "?"
}

// UserRegsMask returns the registers that walking needs of a sample, as Attr.SampleRegsUser.
func UserRegsMask(m *arch.Machine) uint64 {
	var mask uint64
	for i, s := range m.Perf {
		if s != arch.NoSlot {
			mask |= 1 << i
		}
	}
	return mask
}

// pcSlot returns the slot of the program counter.
func pcSlot(m *arch.Machine) arch.Slot { return m.Slot(m.PC) }

// A stacker makes samples of records. It is for one goroutine.
type stacker struct {
	dec     *Decoder
	machine *arch.Machine
	slots   []arch.Slot
	walker  *unwind.Walker
	ours    bool
	frames  bool // Options.FramePointers
	live    bool // Options.Prompt
	forgot  time.Time
	snap    unwind.Snapshot
	mask    uint64 // whose slots are in byPos
	byPos   []arch.Slot
	user    []uint64
	mono    []bool // by event: its clock is the monotonic one
}

func newStacker(dec *Decoder, o *Options) *stacker {
	m := o.Machine
	if m == nil {
		m = arch.AMD64
	}
	return &stacker{dec: dec, machine: m, slots: m.Perf, walker: unwind.NewWalker(o.Depth), ours: o.Ours, frames: o.FramePointers, live: o.Prompt, forgot: time.Now()}
}

// forgetEvery is how long the walker of a live stream remembers places of programs that may have ended.
const forgetEvery = time.Minute

// rested forgets from time to time what was walked.
func (k *stacker) rested() {
	if k.live && time.Since(k.forgot) > forgetEvery {
		k.walker.Forget()
		k.snap.Space, k.snap.Mem, k.forgot = nil, rows.Memory{}, time.Now()
	}
}

// fill makes it.sample of it.rec, which is decoded. Frames go to j's slabs.
func (k *stacker) fill(j *job, it *item) {
	r, s := &it.rec, &it.sample
	*s = Sample{
		Event: r.Event, PID: r.PID, TID: r.TID, CPU: r.CPU, Comm: it.comm, Time: r.Time, Period: r.Period, IP: r.IP,
		Space: it.space, Record: r, Stop: unwind.NoUserStack,
	}
	if s.Period == 0 {
		s.Period = 1
	}
	it.kernel, it.user = len(j.kernel), len(j.frames)
	wait := k.split(j, r)

	var prov provenance
	var ours, cut bool
	if k.ours && len(r.Tracepoint) > 0 && r.UserABI == 0 {
		prov, r.Tracepoint, ours = parseProvenance(r.Tracepoint)
	}
	switch {
	case ours:
		j.frames = prov.appendFrames(j.frames, k.user, s.Space)
		s.Stop, s.From = prov.stop, prov.from
	case k.frames && len(k.user) > 0 && k.whole(r, s.Space, j.frames[len(j.frames):]):
		j.frames, _ = appendRecorded(j.frames, k.user, s.Space)
		s.From = Recorded
	case k.walkable(r):
		k.snap.Space, k.snap.Time = s.Space, k.monotonic(r)
		j.frames, s.Stop = k.walker.Walk(&k.snap, j.frames)
		s.From = Walked
	case k.calls(r):
		j.frames, cut = appendCalls(j.frames, k.user, r.Branches, s.Space)
		s.From = Recorded
	case len(k.user) > 0:
		j.frames, cut = appendRecorded(j.frames, k.user, s.Space)
		s.From = Recorded
	case wait:
		if late := it.deferred; late != nil {
			k.user = k.user[:0]
			for i := range late.Len() {
				if v := late.At(i); v < ContextMax {
					k.user = append(k.user, v)
				}
			}
			j.frames, cut = appendRecorded(j.frames, k.user, s.Space)
			s.From = Deferred
		} else {
			j.stats.Undeferred++
		}
	case len(j.kernel) == it.kernel && r.IP != 0:
		if kernelMode(r) {
			j.kernel = append(j.kernel, r.IP)
		} else if r.CPUMode() == MiscUser {
			k.user = append(k.user[:0], r.IP)
			j.frames, _ = appendRecorded(j.frames, k.user, s.Space)
			s.From = OnlyIP
		}
	}
	if !ours && (s.From == Recorded || s.From == Deferred) {
		s.Stop = k.recordedStop(r, s.Space, j.frames[it.user:], cut)
	}
	if r.UserABI == ABI32 && s.From == NoStack && k.machine.Word != 4 {
		j.stats.Compat++
	}
	if it.orphan {
		j.stats.Orphans++
	}
	if s.Time == 0 {
		j.stats.NoTime++
	}
	it.kernelEnd, it.userEnd = len(j.kernel), len(j.frames)
	if k.ours && r.Misc&MiscWaker != 0 {
		return // part of another one
	}
	j.stats.Samples++
	j.stats.Frames += uint64(it.userEnd - it.user)
	j.stats.Stops[s.Stop]++
}

// whole says whether the recorded user callchain reaches an outermost frame. It uses the room in frames.
func (k *stacker) whole(r *Record, space *unwind.Space, frames []unwind.Frame) bool {
	frames, cut := appendRecorded(frames, k.user, space)
	return k.recordedStop(r, space, frames, cut) == unwind.Outermost
}

// monotonic returns the time of a sample where the recording has the monotonic clock, which is that of code made by processes; else 0.
func (k *stacker) monotonic(r *Record) uint64 {
	if r.Event >= len(k.mono) { // Events copies
		k.mono = k.mono[:0]
		for _, e := range k.dec.Events() {
			k.mono = append(k.mono, e.Attr.Has(FlagUseClockID) && e.Attr.ClockID == clockMonotonic)
		}
	}
	if r.Event >= 0 && r.Event < len(k.mono) && k.mono[r.Event] {
		return r.Time
	}
	return 0
}

const clockMonotonic = 1 // CLOCK_MONOTONIC (clock_gettime(2))

func kernelMode(r *Record) bool {
	m := r.CPUMode()
	return m == MiscKernel || m == MiscHypervisor
}

// split sorts the recorded callchain into j.kernel and k.user. It says whether the user part was to follow in
// another record.
func (k *stacker) split(j *job, r *Record) (wait bool) {
	k.user = k.user[:0]
	where := r.CPUMode()
	for i := range r.Callchain.Len() {
		v := r.Callchain.At(i)
		if v >= ContextMax {
			switch v {
			case ContextKernel, ContextHV:
				where = MiscKernel
			case ContextUser:
				where = MiscUser
			case ContextUserDeferred:
				return true
			default: // a guest's
				where = MiscGuestUser
			}
			continue
		}
		switch where {
		case MiscKernel, MiscHypervisor:
			j.kernel = append(j.kernel, v)
		case MiscUser:
			k.user = append(k.user, v)
		}
	}
	return false
}

// cookieOf returns the cookie of the deferred user callchain that r waits for.
func cookieOf(r *Record) (uint64, bool) {
	for i := range r.Callchain.Len() - 1 {
		if r.Callchain.At(i) == ContextUserDeferred {
			return r.Callchain.At(i + 1), true
		}
	}
	return 0, false
}

// appendRecorded appends the frames of a recorded user callchain: the first is exact, the others are return
// addresses that the kernel found by frame pointers. Where code keeps something else in that register, the
// kernel finds garbage: as in a walk, a return address outside all executable mappings ends the stack, which is then
// said to be cut. Where no mapping is known, only what cannot be an address does.
func appendRecorded(frames []unwind.Frame, user []uint64, space *unwind.Space) (_ []unwind.Frame, cut bool) {
	blind := len(space.Mappings()) == 0
	for i, v := range user {
		f := unwind.Frame{PC: arch.Addr(v), How: unwind.HowFramePointer}
		if i == 0 {
			f.Exact, f.How = true, unwind.HowStart
		}
		f.Mapping = space.Find(f.Addr())
		if i > 0 && f.Mapping == nil && (!blind || v == 0) {
			return frames, true
		}
		frames = append(frames, f)
	}
	return frames, false
}

// calls says whether r has the calls that led to its place in the user part, as the processor recorded them, and makes that place the only one
// in k.user: the kernel's frame pointers are not needed.
func (k *stacker) calls(r *Record) bool {
	if r.Branches.Len() < 3 {
		return false
	}
	if l, _ := k.dec.layout(r.Raw); l == nil || l.attr.BranchSampleType&BranchCallStack == 0 {
		return false
	}
	switch {
	case len(k.user) > 0:
		k.user = k.user[:1]
	case r.CPUMode() == MiscUser && r.IP != 0:
		k.user = append(k.user, r.IP)
	default:
		k.user = append(k.user, r.Branches.At(1)) // where the last call led
	}
	return true
}

// appendCalls appends the frame of a place and those of calls that have not returned, the last first: struct perf_branch_entry, whose from is
// the call itself.
func appendCalls(frames []unwind.Frame, place []uint64, calls Words, space *unwind.Space) (_ []unwind.Frame, cut bool) {
	frames, cut = appendRecorded(frames, place, space)
	blind := len(space.Mappings()) == 0
	for i := 0; i+2 < calls.Len() && !cut; i += 3 {
		pc := arch.Addr(calls.At(i))
		f := unwind.Frame{PC: pc, How: unwind.HowFramePointer, Exact: true, Mapping: space.Find(pc)}
		if cut = pc == 0 || !blind && f.Mapping == nil; !cut {
			frames = append(frames, f)
		}
	}
	return frames, cut
}

// walkable prepares k.snap from r's user registers and stack copy. It says no where those are not recorded, or
// where walking cannot start from them.
func (k *stacker) walkable(r *Record) bool {
	if r.UserABI != abiOf(k.machine) || k.slots == nil || len(r.Stack) == 0 {
		return false
	}
	if k.mask != r.UserRegsMask || k.byPos == nil {
		k.mask, k.byPos = r.UserRegsMask, k.byPos[:0]
		for bit := range 64 {
			if r.UserRegsMask>>bit&1 == 0 {
				continue
			}
			slot := arch.NoSlot
			if bit < len(k.slots) {
				slot = k.slots[bit]
			}
			k.byPos = append(k.byPos, slot)
		}
	}
	s := &k.snap
	s.Known = 0
	for i, slot := range k.byPos {
		if slot != arch.NoSlot {
			s.Regs[slot] = r.UserRegs.At(i)
			s.Known |= 1 << slot
		}
	}
	sp, pc := k.machine.Slot(k.machine.SP), pcSlot(k.machine)
	if s.Known>>sp&1 == 0 || s.Known>>pc&1 == 0 {
		return false
	}
	s.Machine, s.PC = k.machine, s.Regs[pc]
	dyn := min(r.StackDyn, uint64(len(r.Stack)))
	if !k.machine.Plain() {
		s.Mem = rows.Memory{Next: rows.WordsOf(k.machine, &Piece{s.Regs[sp], r.Stack[:dyn]})}
		return true
	}
	s.Mem = rows.Memory{Lo: s.Regs[sp], Bytes: r.Stack[:dyn]}
	if p, ok := other(r.Stack[dyn:]); ok {
		s.Mem.Next = &p
	}
	return true
}

// abiOf is how the kernel says that registers are all that a machine has: 32-bit code of another machine has fewer.
func abiOf(m *arch.Machine) uint64 {
	if m.Word == 4 {
		return ABI32
	}
	return ABI64
}

// recordedStop says why a recorded callchain ends: where it was cut, at the outermost frame if the last one is known to be that, at
// the kernel's limit if it has so many, or else because there was no frame pointer to follow.
func (k *stacker) recordedStop(r *Record, space *unwind.Space, user []unwind.Frame, cut bool) unwind.Stop {
	if len(user) == 0 {
		return unwind.NoUserStack
	}
	if cut {
		return unwind.BadReturn
	}
	limit := 127 // the default of kernel.perf_event_max_stack
	if l, _ := k.dec.layout(r.Raw); l != nil && l.attr.SampleMaxStack > 0 {
		limit = int(l.attr.SampleMaxStack)
	}
	if len(user) >= limit {
		return unwind.DepthLimit
	}
	return k.walker.End(k.machine, space, user[len(user)-1].Addr())
}
