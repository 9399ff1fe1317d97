// Package profile turns stacks into a profile: equal stacks become one entry with a count, and each distinct location gets one name.
//
// A Builder takes samples one by one. Locations alone serves writers of single samples. Both identify a location by its file and the offset in
// it, so processes that map a file at different addresses share the location. Nothing is named before the end: Builder.Profile asks a Namer
// once for each distinct location. The package reads no files and prints nothing.
package profile

import (
	"cmp"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/unwind"
)

// A Sample is one tick of a profiler with its stack. Add and Intern keep none of its slices.
type Sample struct {
	PID, TID int32
	Comm     string
	Time     uint64         // in ns, by the clock of the recording
	CPU      uint32         // or NoCPU
	Period   uint64         // events since the sample before, in the event's unit
	Count    uint64         // how many samples it stands for; 0: one
	Size     uint64         // of an allocation whose Period is the bytes that it stands for, its own; 0: of anything else
	Event    int            // index in Info.Events
	Kernel   []uint64       // addresses as recorded, innermost first
	User     []unwind.Frame // innermost first
	Stop     unwind.Stop
	HasUser  bool // there was a user stack to walk
	Waker    *Waker

	// KernelKey, if not nil, tells code apart that lay at one address of the kernel at different times: it returns what a Namer is asked for
	// in place of the address.
	KernelKey func(addr uint64) uint64
}

// A Waker is the thread that ended a wait. Its frames are above the wait's: first By, which says who it is, then its stack upside down, so
// that what woke the thread is next to what waited, then what End says of that stack's end.
type Waker struct {
	By     unwind.Frame
	Kernel []uint64
	User   []unwind.Frame
	End    []unwind.Frame
}

// NoCPU is the CPU of a sample for which none was recorded.
const NoCPU = ^uint32(0)

// Addr returns the address of frame i, as Locations.Intern numbers them.
func (s *Sample) Addr(i int) uint64 {
	if w := s.Waker; w != nil {
		n := w.frames()
		if i < n {
			switch i = n - 1 - i; { // from By on
			case i == 0:
				return uint64(w.By.Addr())
			case i <= len(w.Kernel):
				return w.Kernel[i-1]
			case i <= len(w.Kernel)+len(w.User):
				return uint64(w.User[i-1-len(w.Kernel)].Addr())
			}
			return uint64(w.End[i-1-len(w.Kernel)-len(w.User)].Addr())
		}
		i -= n
	}
	if i < len(s.Kernel) {
		return s.Kernel[i]
	}
	return uint64(s.User[i-len(s.Kernel)].Addr())
}

func (w *Waker) frames() int { return 1 + len(w.Kernel) + len(w.User) + len(w.End) }

// count is how many samples s stands for.
func (s *Sample) count() uint64 { return max(s.Count, 1) }

func (s *Sample) stop() unwind.Stop {
	if !s.HasUser && len(s.User) == 0 || s.Stop >= unwind.NumStops {
		return unwind.NoUserStack
	}
	return s.Stop
}

// An Event is the kind of event that a profiler counts between samples.
type Event struct {
	Name string // as recorded: "cycles", "cpu-clock"
	Unit string // "nanoseconds" for clocks, else "count"
}

// OffCPU is the event of the time that threads are blocked for. A sample is a wait: it ends at the sample's time, and its period is how long
// it was.
const OffCPU = "off-cpu"

// NewEvent returns the event of that name with its unit.
func NewEvent(name string) Event {
	if name == OffCPU {
		return Event{name, "nanoseconds"}
	}
	for _, clock := range []string{"cpu-clock", "task-clock", "cpu"} {
		if name == clock || len(name) > len(clock) && name[:len(clock)] == clock && name[len(clock)] == ':' {
			return Event{name, "nanoseconds"}
		}
	}
	return Event{name, "count"}
}

// Info describes a recording apart from its samples. All of it is optional.
type Info struct {
	Events   []Event
	Every    uint64    // of a heap profile: bytes, on average, between samples; 0: all allocations count, or it is not known
	Objects  bool      // of a heap profile: how many objects there are matters, not their bytes
	Start    time.Time // by the wall clock
	Duration time.Duration
	Host     string
	Command  string
	Labels   []string // name=value, of all samples: where an agent took them
	Loss     Loss
}

// Weight is what reports count unless told otherwise: time that threads were blocked for, not how often; bytes of memory, not how many objects; else
// samples.
func (i *Info) Weight() Weight {
	if i.Waits() || i.Heap() && !i.Objects {
		return Periods
	}
	return Samples
}

// Waits says that all that was counted is time that threads were blocked for. Then periods matter, and not numbers of samples.
func (i *Info) Waits() bool {
	for _, e := range i.Events {
		if e.Name != OffCPU {
			return false
		}
	}
	return len(i.Events) > 0
}

// Loss counts samples and records missing from the profile.
type Loss struct {
	Samples   uint64 // samples that were taken and lost
	Throttles uint64 // times at which the kernel paused sampling
	Skipped   uint64 // records of unknown kind
	Damaged   uint64 // records that could not be read
}

// A Profile is aggregated samples. Its indices are all valid; it must not be changed once shared.
type Profile struct {
	Info
	Modules  []Module
	Mappings []Mapping
	Funcs    []Func
	Files    []string // source files, as the debug information spells them, made absolute; the first is ""
	Locs     []Loc
	Stacks   []Stack // in the order in which they were first seen
	Totals   Totals
}

// A Module is a file that has code.
type Module struct {
	Path    string // "[kernel]" for the kernel, "" for code outside of all mappings
	BuildID string // hex; may be empty
	Kernel  bool

	key string // what stood for the build ID where the module was recorded
}

// ModuleOf returns what a profile has of a file that was mapped.
func ModuleOf(m *unwind.Module) Module {
	return Module{Path: m.Path, BuildID: m.ID(), key: m.BuildID}
}

// Key returns the build ID, or what stood for it where the module was recorded: unwind.Module.BuildID.
func (m *Module) Key() string { return cmp.Or(m.BuildID, m.key) }

// Base is the last element of the module's path, on Windows too; "[unknown]" where there is none.
func (m *Module) Base() string {
	if m.Path == "" {
		return Unknown
	}
	if len(m.Path) > 3 && (m.Path[1:3] == `:\` || m.Path[:2] == `\\`) {
		return m.Path[strings.LastIndexByte(m.Path, '\\')+1:]
	}
	return path.Base(m.Path)
}

// A Mapping is where a module was mapped in the first process in which it was seen.
type Mapping struct {
	Lo, Hi uint64
	Off    uint64 // offset in the file of the byte at Lo
	Module int32
}

// A Func is a function, or a substitute where no name is known. No two have the same name and module.
type Func struct {
	Name    string // demangled; see Namer for functions without a name
	Linkage string // as in the symbol table; empty where it equals Name
	Module  int32
	Named   bool // Name is from a symbol table
}

// A Loc is a place in the code, and how frames there were found.
type Loc struct {
	Addr    uint64 // run-time address in the first process in which it was seen, by the rule of unwind.Frame.Addr
	Off     uint64 // offset in the module's file; equal to Addr for the kernel, anonymous memory, and outside of all mappings
	Start   uint64 // offset at which the function starts; meaningful if its Func is Named
	Func    int32
	Module  int32
	Mapping int32 // -1 for the kernel and outside of all mappings
	How     How

	// Inlined says that the call of Func is no frame of its own: its code is in the frame that follows in the stack,
	// whose Addr and How it has.
	Inlined bool

	// Where Addr is in the source: the line being executed in Func, or of the call that leads further inward. File
	// is an index in Profile.Files; 0 is no file. Line and Column count from 1; 0: unknown.
	File, Line, Column uint32
}

// File is the source file of a location; "" where it is not known.
func (p *Profile) File(l *Loc) string {
	if l.File == 0 {
		return ""
	}
	return p.Files[l.File]
}

// A How is an unwind.How, or one of two more.
type How uint8

const (
	HowKernel  How = 8 + iota // the kernel's own stack, as the kernel recorded it
	HowUnknown                // not recorded
	numHows
)

// All of unwind's are below HowKernel.
const _ = uint(HowKernel) - uint(unwind.NumHows)

func howOf(h unwind.How) How {
	if How(h) < HowKernel {
		return How(h)
	}
	return HowUnknown
}

func (h How) String() string {
	switch h {
	case HowKernel:
		return "kernel"
	case HowUnknown:
		return "unknown"
	}
	return unwind.How(h).String()
}

// A Stack is all samples that agree in everything but time.
type Stack struct {
	Frames   []uint32 // indices of Locs, innermost first, inlined calls included; shared between Stacks
	Comm     string
	PID, TID int32 // 0: not recorded
	Stop     unwind.Stop
	Event    int32
	Count    uint64
	Period   uint64 // sum of the periods
}

// Unknown is the name of functions in code outside of all mappings.
const Unknown = "[unknown]"

// Totals are the counts that every report shows.
type Totals struct {
	Samples uint64
	Period  uint64
	Frames  uint64                  // without inlined calls
	Stops   [unwind.NumStops]uint64 // samples by how their stack ended
	Hows    [numHows]uint64         // frames by how they were found
	NoStops bool                    // how stacks ended was not recorded
}

// Count adds one sample.
func (t *Totals) Count(s *Sample) {
	n := s.count()
	t.Samples += n
	t.Period += s.Period
	t.Frames += n * uint64(len(s.Kernel)+len(s.User))
	t.Stops[s.stop()] += n
	t.Hows[HowKernel] += n * uint64(len(s.Kernel))
	t.hows(s.User, n)
	if w := s.Waker; w != nil {
		t.Frames += n * uint64(w.frames())
		t.Hows[HowKernel] += n * uint64(len(w.Kernel))
		t.Hows[howOf(w.By.How)] += n
		t.hows(w.User, n)
		t.hows(w.End, n)
	}
}

// Merge adds other counts.
func (t *Totals) Merge(u *Totals) {
	t.Samples += u.Samples
	t.Period += u.Period
	t.Frames += u.Frames
	for i, n := range u.Stops {
		t.Stops[i] += n
	}
	for i, n := range u.Hows {
		t.Hows[i] += n
	}
	t.NoStops = t.NoStops && u.NoStops
}

func (t *Totals) hows(frames []unwind.Frame, n uint64) {
	for i := range frames {
		t.Hows[howOf(frames[i].How)] += n
	}
}

// Whole counts the samples whose stacks reached an outermost frame.
func (t *Totals) Whole() uint64 { return t.Stops[unwind.Outermost] }

// Truncated counts the samples whose stacks were cut off: by the end of the captured copy, or at the
// limit of frames.
func (t *Totals) Truncated() uint64 { return t.Stops[unwind.Truncated] + t.Stops[unwind.DepthLimit] }

// NoUser counts the samples without a user stack: kernel threads and the like.
func (t *Totals) NoUser() uint64 { return t.Stops[unwind.NoUserStack] }

// Broken counts the samples whose stacks ended for any other reason.
func (t *Totals) Broken() uint64 {
	var n uint64
	for _, c := range t.Stops {
		n += c
	}
	return n - t.Whole() - t.Truncated() - t.NoUser()
}

// Grade sorts the reasons to stop into "whole", "truncated", "broken" and "no user stack".
func Grade(s unwind.Stop) string {
	switch s {
	case unwind.Outermost:
		return "whole"
	case unwind.Truncated, unwind.DepthLimit:
		return "truncated"
	case unwind.NoUserStack:
		return "no user stack"
	}
	return "broken"
}

// Summary returns one line with the number of samples and the share of whole stacks: "104,231 samples · 95.2 % whole · 4.6 % truncated · 0.2
// % broken · 12 lost".
func (p *Profile) Summary() string { return p.Totals.Summary(p.Loss) }

// Summary is Profile.Summary for those who keep counts only.
func (t *Totals) Summary(l Loss) string {
	b := []byte(Quantity(t.Samples, "samples"))
	share := func(n uint64, what string, always bool) {
		if n == 0 && !always || t.Samples == 0 {
			return
		}
		b = append(append(append(b, " · "...), Percent(n, t.Samples)...), what...)
	}
	if t.NoStops {
		b = append(b, " · completeness not recorded"...)
	} else {
		share(t.Whole(), " whole", true)
		share(t.Truncated(), " truncated", true)
		share(t.Broken(), " broken", true)
		share(t.NoUser(), " without user stack", false)
	}
	count := func(n uint64, one, many string, always bool) {
		if n > 0 || always {
			b = append(append(b, " · "...), Count(n, one, many)...)
		}
	}
	count(l.Samples, "lost", "lost", true)
	count(l.Throttles, "throttled", "throttled", false)
	count(l.Skipped, "record skipped", "records skipped", false)
	count(l.Damaged, "record damaged", "records damaged", false)
	return string(b)
}

// Percent returns n as a share of total: "4.6 %". What is neither nothing nor all never looks so.
func Percent(n, total uint64) string {
	if total == 0 {
		return "0.0 %"
	}
	f := 100 * float64(n) / float64(total)
	switch s := strconv.FormatFloat(f, 'f', 1, 64); {
	case s == "0.0" && n > 0:
		return "<0.1 %"
	case s == "100.0" && n < total:
		return ">99.9 %"
	default:
		return s + " %"
	}
}

// Number returns a weight in a unit, for people: "1.235 s" of "ns", "1.2 MiB" of "bytes", "104,231" of all else.
func Number(n uint64, unit string) string {
	if unit == "bytes" {
		return Bytes(int64(min(n, math.MaxInt64)))
	}
	if unit != "ns" || n == 0 {
		return Comma(n)
	}
	for _, u := range []struct {
		of   uint64
		name string
	}{{1e9, " s"}, {1e6, " ms"}, {1e3, " µs"}} {
		if n >= u.of {
			f := float64(n) / float64(u.of)
			if f >= 1000 {
				return Comma(uint64(f+0.5)) + u.name
			}
			return strconv.FormatFloat(f, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatUint(n, 10) + " ns"
}

// Bytes is printable.Bytes.
func Bytes(n int64) string { return printable.Bytes(n) }

// Quantity is Number with the unit, a plural: "1.235 s", "104,231 samples", "1 sample", "1 cache-miss".
func Quantity(n uint64, unit string) string {
	if unit == "ns" || unit == "bytes" {
		return Number(n, unit)
	}
	return Count(n, singular(unit), unit)
}

// singular returns the singular of a plural unit: of an event's name, or of a word such as "samples". A tracepoint's name has none.
func singular(unit string) string {
	switch {
	case len(unit) < 4 || strings.ContainsAny(unit, ":/"):
	case strings.HasSuffix(unit, "sses"), strings.HasSuffix(unit, "shes"), strings.HasSuffix(unit, "ches"): // misses, branches
		return unit[:len(unit)-2]
	case strings.HasSuffix(unit, "s") && !strings.HasSuffix(unit, "ss"):
		return unit[:len(unit)-1]
	}
	return unit
}

// Count is printable.Count.
func Count(n uint64, one, many string) string { return printable.Count(n, one, many) }

// Comma is printable.Comma.
func Comma(n uint64) string { return printable.Comma(n) }

// Filter returns a profile of those stacks that keep says yes to. The Loss stays: it cannot be divided.
func (p *Profile) Filter(keep func(*Stack) bool) *Profile {
	q := *p
	q.Stacks = nil
	q.Totals = Totals{NoStops: p.Totals.NoStops}
	for i := range p.Stacks {
		if s := &p.Stacks[i]; keep(s) {
			q.Stacks = append(q.Stacks, *s)
			q.Totals.add(&q, s)
		}
	}
	return &q
}

func (t *Totals) add(p *Profile, s *Stack) {
	t.Samples += s.Count
	t.Period += s.Period
	t.Stops[min(s.Stop, unwind.NumStops-1)] += s.Count
	for _, f := range s.Frames {
		if loc := &p.Locs[f]; !loc.Inlined {
			t.Frames += s.Count
			t.Hows[loc.How] += s.Count
		}
	}
}
