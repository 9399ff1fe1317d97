// Package record turns stacks, from a live recording or from a file, into samples and profiles.
//
// A Plan says what to record. Plan.Open chooses who walks the stacks (the kernel, or this program from copies or by ptrace), begins to record,
// and returns a Live. Live.Drop gives up the capabilities needed only to begin. Open opens a file of samples. A Session reads a Live or a file. It walks all stacks (Run),
// makes a profile of them (Profile), or writes a recording (Write). A Tally cuts samples into intervals, for views of a running recording.
//
// Nothing here prints. Notes and EndNotes return what people should know, Stats and Info the counts and losses. Notes and errors call
// settings by the names of the command's flags.
package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/unwind"
)

// Options say how a session walks. Mods and Names are needed.
type Options struct {
	Mods  *modules.Set // walk the stacks
	Names *names.Namer // name what they have

	Filter   Filter               // says which samples are of interest
	Prompt   bool                 // samples are wanted as soon as they are there
	Progress func(samples uint64) // is told now and then how many there were; may be nil
	Workers  int                  // goroutines that walk copies of stacks; 0: as many as processors
}

// A Session takes a stream of records to samples with stacks, and these to a profile. It runs once.
type Session struct {
	Options
	Info  profile.Info // what is known of the recording; its loss and duration after it has run
	Stats source.Stats // after it has run

	in            source.RecordStream
	machine       *arch.Machine
	ours          bool
	noCopies      bool                                                         // of stacks were made, and none was to be
	framePointers bool                                                         // source.Options.FramePointers
	about         func() perfdata.Info                                         // what a recording of it says of itself
	want          func(pid, tid int32, comm string, time uint64) bool          // says which samples are of interest; nil: all
	identify      func(path string, maj, min uint32, inode, gen uint64) string // see source.Options; may be nil
	registered    modules.Registered                                           // see modules.Made; nil: the recording is over
	notes         []string                                                     // from opening it
	unsaid        func() uint64                                                // after the last record: samples that the recorder lost and that the stream does not say; nil: none
	lost          uint64                                                       // what unsaid said
	howFar        func() string                                                // nil: nobody is to know
	doubtful      []string                                                     // files that may be others than were recorded
	cut           cuts                                                         // waits that are longer than they look
	sample        profile.Sample                                               // scratch
}

func newSession(in source.RecordStream, about func() perfdata.Info, o Options) *Session {
	s := &Session{Options: o, in: in, about: about}
	if o.Filter.active() {
		s.want = o.Filter.wants
	}
	return s
}

// fileNames returns what names of a recording in a file are made with, apart from what it brings along: perfdata.Info.Names.
func fileNames(mods *modules.Set, f *perfdata.File) names.Options {
	info := f.Info()
	return names.Options{Mods: mods, KernelID: f.BuildID("[kernel.kallsyms]"), Recorded: true, KernelRelease: info.OSRelease, RecordedBy: f.Written(), Elsewhere: elsewhere(&info)}
}

// unwalked is for recordings of machines that nothing is known of: their samples have no registers that are understood.
var unwalked = arch.ByELF(0)

// elsewhere says whether a recording is known to be of another machine: what lies there at the path of a process's file is another one here.
func elsewhere(info *perfdata.Info) bool {
	return info.Hostname != "" && info.Hostname != perfdata.Host().Hostname
}

// fromFile returns a session over a perf.data file.
func fromFile(f *perfdata.File, o Options) *Session {
	s := newSession(f, f.Info, o)
	info := f.Info()
	s.machine, s.ours = info.Machine, info.Ours
	if s.machine == nil && info.Arch != "" {
		s.machine = unwalked
		s.notes = append(s.notes, "recorded on "+info.Arch+", where stacks cannot be walked: only callchains count")
	}
	s.Info.Host, s.Info.Command = info.Hostname, strings.Join(recorded(info.Cmdline), " ")
	if info.ClockWall != 0 && info.First >= info.ClockTime {
		s.Info.Start = time.Unix(0, int64(info.ClockWall+info.First-info.ClockTime))
	}
	return s
}

// recorded returns the command that a recorder's command line started; all of the line where there is none.
func recorded(cmdline []string) []string {
	if i := slices.Index(cmdline, "--"); i >= 0 && i+1 < len(cmdline) {
		return cmdline[i+1:]
	}
	return cmdline
}

// Run walks all samples and calls each with them, in time order. Of perfevent.Allocations, an allocation that was freed comes again, with Event 1.
func (s *Session) Run(ctx context.Context, each func(*profile.Sample) error) error {
	return s.run(ctx, each, nil, nil)
}

func (s *Session) run(ctx context.Context, each func(*profile.Sample) error, record func(*source.Record) error, raw func(*source.Sample) error) error {
	n := uint64(0)
	scheduler, wakers := profile.NewScheduler(s.Names), newWakers(s.Names)
	var waits []bool // by event
	machine := s.machine
	if machine == nil {
		machine = arch.AMD64
	}
	var made source.Maker
	if info := s.about(); !elsewhere(&info) {
		m := s.Mods.Made(machine)
		m.Registered = s.registered
		made = m
	}
	o := source.Options{
		Mods: s.Mods.Module, Made: made, Identify: s.identify, Want: s.want, Machine: s.machine, Ours: s.ours, FramePointers: s.framePointers, Prompt: s.Prompt,
		Workers: s.Workers,
		Sample: func(x *source.Sample) error {
			if n++; n&255 == 0 && s.Progress != nil {
				s.Progress(n)
			}
			if raw != nil {
				if err := raw(x); err != nil {
					return err
				}
			}
			if s.ours && x.Record.Misc&source.MiscWaker != 0 {
				wakers.observe(x)
				return nil
			}
			s.sample = profile.Sample{
				PID: x.PID, TID: x.TID, Comm: x.Comm, Time: x.Time, CPU: x.CPU, Period: x.Period, Event: max(x.Event, 0),
				Kernel: x.Kernel, User: x.User, Stop: x.Stop, HasUser: x.From != source.NoStack,
				KernelKey: s.Names.KernelKey(),
			}
			if s.ours && x.Record.Misc&source.MiscFreed != 0 {
				s.sample.Event = 1
			}
			if s.ours && x.Record.Misc&source.MiscSized != 0 {
				s.sample.Size, s.sample.Period = max(x.IP, 1), x.Record.Period // which can be 0
			}
			if waits == nil || s.sample.Event >= len(waits) {
				waits = waits[:0]
				for _, e := range s.in.Decoder().Events() {
					waits = append(waits, e.Name == profile.OffCPU)
				}
				for len(waits) <= s.sample.Event {
					waits = append(waits, false)
				}
			}
			if waits[s.sample.Event] {
				s.cut.observe(x)
				if s.ours {
					s.sample.Waker = wakers.take(x)
				}
				s.sample.Kernel = scheduler.Outside(s.sample.Kernel)
			}
			return each(&s.sample)
		},
		Record: func(r *source.Record) error {
			s.Names.Observe(r)
			if record != nil {
				return record(r)
			}
			return nil
		},
	}
	var err error
	s.Stats, err = source.Run(ctx, s.in, o)
	if s.unsaid != nil {
		s.lost = s.unsaid()
		s.Stats.LostSamples += s.lost
	}
	s.Info.Loss = profile.Loss{
		Samples: s.Stats.Lost + s.Stats.LostSamples, Throttles: s.Stats.Throttled,
		Skipped: s.Stats.Unknown, Damaged: s.Stats.Bad,
	}
	if s.Stats.Last > s.Stats.First {
		s.Info.Duration = time.Duration(s.Stats.Last - s.Stats.First)
	}
	return err
}

// Profile aggregates the samples, and calls added with each and the index of its Stack; nil calls nothing. With an error comes the profile of what
// there was before it.
func (s *Session) Profile(ctx context.Context, added func(x *profile.Sample, stack int)) (*profile.Profile, error) {
	b := profile.NewBuilder()
	err := s.Run(ctx, func(x *profile.Sample) error {
		if at := b.Add(x); added != nil {
			added(x, at)
		}
		return nil
	})
	s.Events()
	return b.Profile(s.Names, s.Info), err
}

// Events fills in Info.Events: what is counted. Streams know it when the first records have been read.
func (s *Session) Events() {
	s.Info.Events = nil
	for _, e := range s.in.Decoder().Events() {
		s.Info.Events = append(s.Info.Events, profile.NewEvent(e.Name))
	}
}

// NoSamples is the error of a session that has run and had none: it says why.
func (s *Session) NoSamples() error {
	if s.Stats.Unwanted > 0 {
		return fmt.Errorf("none of %s matches", profile.Count(s.Stats.Unwanted, "sample", "samples"))
	}
	return errors.New("no samples")
}

// Nothing says why a live recording that has ended has no samples.
func (s *Session) Nothing() string {
	if s.Stats.Lost+s.Stats.LostSamples > 0 {
		return "no samples: all were lost"
	}
	return "no samples: the program ended too soon, or used no CPU time"
}

// HowFar says for people how far a session is that runs; "" for a recording of a command, which ends when the command does.
func (s *Session) HowFar() string {
	if s.howFar == nil {
		return ""
	}
	return s.howFar()
}

// Hints says which modules' code took time and has no names in a profile of the session, how much, and what can be done.
func (s *Session) Hints(p *profile.Profile) []string { return s.Names.Hints(p, s.Info.Waits()) }

// Summary says how many samples there were, and how many of their stacks are whole.
func (s *Session) Summary() string {
	t := profile.Totals{Samples: s.Stats.Samples, Stops: s.Stats.Stops}
	return t.Summary(s.Info.Loss)
}

// recorded says whether all user stacks are callchains that the kernel has found by frame pointers.
func (s *Session) recorded() bool {
	for _, e := range s.in.Decoder().Events() {
		if e.Attr.SampleType&(source.SampleCallchain|source.SampleStackUser) != source.SampleCallchain {
			return false
		}
	}
	return !s.ours
}

// noteDoubtful notes a file that may be another one than was recorded.
func (s *Session) noteDoubtful(path string) {
	if !slices.Contains(s.doubtful, path) && len(s.doubtful) < maxDoubtful {
		s.doubtful = append(s.doubtful, path)
	}
}

// maxDoubtful bounds the files that a Session counts in doubt.
const maxDoubtful = 1 << 10

// Notes says what the reader of a report should know: why stacks are not whole, what was lost, and what helps.
func (s *Session) Notes() []string {
	out := slices.Clone(s.notes)
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	st := &s.Stats
	if err := s.Mods.CacheErr(); err != nil {
		say("unwind tables are not kept in the cache: %v", err)
	}
	if n := st.Lost + st.LostSamples; n > 0 {
		out = append(out, recordLess(profile.Count(n, "record was lost", "records were lost"), s.in.Decoder().Events()))
	}
	if note := repaired(&st.Repairs); note != "" {
		say("%s", note)
	}
	if st.Uncertain > 0 {
		say("%s left out, of processes whose start may be among the lost records: some may belong to this recording", profile.Count(st.Uncertain, "sample was", "samples were"))
	}
	if note := s.cut.String(); note != "" {
		say("%s", note)
	}
	if st.Bad > 0 {
		say("%s skipped; the first: %v", profile.Count(st.Bad, "damaged record was", "damaged records were"), st.BadErr)
	}
	if st.Unknown > 0 {
		say("%s skipped", profile.Count(st.Unknown, "record of an unknown kind was", "records of unknown kinds were"))
	}
	out = append(out, missed(st)...)
	total := st.Samples
	if cut := st.Stops[unwind.Truncated]; cut*50 > total && !s.noCopies {
		out = append(out, largerCopies(profile.Percent(cut, total)+" of the stacks were cut off by the size of their copy", s.in.Decoder().Events()))
	}
	n := st.Stops[unwind.NoInfo]
	switch {
	case n*50 <= total:
	case s.recorded():
		say("%s of the stacks end where code has no frame pointer; unwind tables lead on where the stack is copied, or walked by them in the kernel", profile.Percent(n, total))
	default:
		say("%s of the stacks end in code without unwind information", profile.Percent(n, total))
	}
	if note := s.Names.KernelNote(); note != "" {
		say("kernel functions have no names: %s", note)
	}
	if n := len(s.doubtful); n > 0 {
		say("%s recorded without a build ID, and may be other files now, whose names are wrong; the first: %s",
			profile.Count(uint64(n), "file was", "files were"), s.doubtful[0])
	}
	errs := s.Mods.Errors()
	for _, err := range errs[:min(5, len(errs))] {
		say("%v", err)
	}
	if n := len(errs) - 5; n > 0 {
		say("and %s", profile.Count(uint64(n), "more file like these", "more files like these"))
	}
	notes := s.Names.Notes()
	for _, note := range notes[:min(5, len(notes))] {
		say("%s", note)
	}
	if n := len(notes) - 5; n > 0 {
		say("and %s", profile.Count(uint64(n), "more note on names", "more notes on names"))
	}
	return out
}
