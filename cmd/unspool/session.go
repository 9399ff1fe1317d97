package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// A session takes a stream of records to a profile.
type session struct {
	in      source.RecordStream
	info    profile.Info
	machine *arch.Machine
	ours    bool
	prompt  bool // samples are wanted as soon as they are there
	flt     *filter
	mods    *modules.Set
	names   *names.Namer
	stats   source.Stats

	withNames bool                     // what is written leaves room for names
	room      func(names []byte) error // fills it; nil: there is none

	identify func(path string, maj, min uint32, inode uint64) string // see source.Options

	progress func() string  // how far it is; nil: nobody is to know
	unsaid   func() uint64  // after the last record: samples that the recorder lost and that the stream does not say; nil: none
	lost     uint64         // what unsaid said
	cut      cuts           // waits that are longer than they look
	sample   profile.Sample // scratch
}

// stepperFlag adds the flag that chooses what applies unwind rules. The function it returns is to be called when the
// flags are known.
func stepperFlag(c *cobra.Command) func() (*modules.Set, error) {
	name := c.Flags().String("stepper", "compact", "what applies unwind rules: compact tables, native machine code, or rows, the slow reference")
	return func() (*modules.Set, error) {
		mods, err := modules.ByName(*name)
		if err != nil {
			return nil, usage("--stepper: %v", err)
		}
		return mods, nil
	}
}

// lookingFlag is stepperFlag for commands that read recordings, whose files may lie elsewhere.
func lookingFlag(c *cobra.Command) func() (*modules.Set, error) {
	stepper, search := stepperFlag(c), searchFlags(c)
	return func() (*modules.Set, error) {
		mods, err := stepper()
		if err == nil {
			mods.Files = search()
		}
		return mods, err
	}
}

// newSession returns a session over in, whose stacks are walked with mods. What info and ours say can be set until it
// runs.
func newSession(mods *modules.Set, in source.RecordStream, flt *filter) *session {
	s := &session{in: in, flt: flt, mods: mods}
	s.names = newNamer(names.Options{Mods: mods})
	return s
}

// openFile returns a session over a perf.data file.
func openFile(mods *modules.Set, f *perfdata.File, flt *filter) *session {
	s := newSession(mods, f, flt)
	info := f.Info()
	s.names = newNamer(names.Options{Mods: mods, KernelID: f.BuildID("[kernel.kallsyms]"), Recorded: true, KernelRelease: info.OSRelease})
	if info.Ours {
		if err := s.names.Import(info.Names); err != nil {
			fmt.Fprintf(stderr, "unspool: the names in the recording: %v\n", err)
		}
	}
	s.machine, s.ours = info.Machine, info.Ours
	s.info.Host, s.info.Command = info.Hostname, strings.Join(recorded(info.Cmdline), " ")
	if info.ClockWall != 0 && info.First >= info.ClockTime {
		s.info.Start = time.Unix(0, int64(info.ClockWall+info.First-info.ClockTime))
	}
	s.progress = func() string {
		done, total := f.Progress()
		if total == 0 {
			return fmt.Sprintf("read %d MiB", done>>20)
		}
		return fmt.Sprintf("read %d of %d MiB", done>>20, total>>20)
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

// run walks all samples and calls each with them, in time order.
func (s *session) run(ctx context.Context, each func(*profile.Sample) error, record func(*source.Record) error, raw func(*source.Sample) error) error {
	p := newProgress()
	defer p.done()
	n := uint64(0)
	scheduler, wakers := profile.NewScheduler(s.names), newWakers(s.names)
	var waits []bool // by event
	o := source.Options{
		Mods: s.mods.Module, Identify: s.identify, Machine: s.machine, Ours: s.ours, Prompt: s.prompt,
		Sample: func(x *source.Sample) error {
			if n++; n&255 == 0 && s.progress != nil {
				p.say("%s, %s samples", s.progress(), profile.Comma(n))
			}
			if raw != nil {
				if err := raw(x); err != nil {
					return err
				}
			}
			if s.ours && x.Record.Misc&source.MiscWaker != 0 {
				wakers.note(x)
				return nil
			}
			s.sample = profile.Sample{
				PID: x.PID, TID: x.TID, Comm: x.Comm, Time: x.Time, CPU: x.CPU, Period: x.Period, Event: max(x.Event, 0),
				Kernel: x.Kernel, User: x.User, Stop: x.Stop, HasUser: x.From != source.NoStack,
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
				s.cut.note(x)
				if s.ours {
					s.sample.Waker = wakers.of(x)
				}
				s.sample.Kernel = scheduler.Outside(s.sample.Kernel)
			}
			return each(&s.sample)
		},
		Record: func(r *source.Record) error {
			s.names.Observe(r)
			if record != nil {
				return record(r)
			}
			return nil
		},
	}
	if s.flt.active() {
		o.Want = s.flt.want
	}
	var err error
	s.stats, err = source.Run(ctx, s.in, o)
	if s.unsaid != nil {
		s.lost = s.unsaid()
		s.stats.LostSamples += s.lost
	}
	s.info.Loss = profile.Loss{
		Samples: s.stats.Lost + s.stats.LostSamples, Throttles: s.stats.Throttled,
		Skipped: s.stats.Unknown, Damaged: s.stats.Bad,
	}
	if s.stats.Last > s.stats.First {
		s.info.Duration = time.Duration(s.stats.Last - s.stats.First)
	}
	return err
}

// profile aggregates the samples, and calls added with each and the index of its Stack; nil calls nothing. With an error comes the profile of what
// there was before it.
func (s *session) profile(ctx context.Context, o *output, added func(x *profile.Sample, stack int)) (*profile.Profile, error) {
	b := profile.NewBuilder()
	err := s.run(ctx, func(x *profile.Sample) error {
		if at := b.Add(x); added != nil {
			added(x, at)
		}
		return nil
	}, nil, nil)
	s.events(o)
	s.names.Lines = !o.plain
	return b.Profile(s.names, s.info), err
}

// stream writes each sample as it comes.
func (s *session) stream(ctx context.Context, w io.Writer, o *output) error {
	s.events(o)
	s.names.Lines = !o.plain
	st := o.form().Stream(w, s.names, s.info, o.opts)
	err := s.run(ctx, st.Sample, nil, nil)
	if cerr := st.Close(s.info.Loss); err == nil {
		err = cerr
	}
	s.hintsOf(st)
	return err
}

// events fills in what is counted; streams know it when the first records have been read. Time that threads were blocked for is
// what weighs in a report of it, not how often.
func (s *session) events(o *output) {
	s.info.Events = nil
	for _, e := range s.in.Decoder().Events() {
		s.info.Events = append(s.info.Events, profile.NewEvent(e.Name))
	}
	if s.info.Waits() {
		o.opts.By = report.Periods
	}
}

// hints says on standard error which modules' code took time and has no names, how much, and what can be done.
func (s *session) hints(p *profile.Profile) { say(s.names.Hints(p, s.info.Waits())) }

// hintsOf is hints of what was streamed.
func (s *session) hintsOf(st *report.Stream) {
	var mods []profile.Module
	var nameless []uint64
	at := map[profile.Module]int{}
	st.Nameless(func(m *profile.Module, weight uint64) {
		i, ok := at[*m]
		if !ok {
			i = len(mods)
			at[*m], mods, nameless = i, append(mods, *m), append(nameless, 0)
		}
		nameless[i] += weight
	})
	say(s.names.HintsOf(mods, nameless, st.Totals().Period))
}

// wrote says on standard error what went into a file.
func (s *session) wrote(path string) {
	if path == "" || path == "-" {
		return
	}
	t := profile.Totals{Samples: s.stats.Samples, Stops: s.stats.Stops}
	fmt.Fprintf(stderr, "unspool: %s: %s\n", path, t.Summary(s.info.Loss))
}

// lossAdvice says how to record less, by what the events take.
func lossAdvice(events []source.Event) string {
	for _, e := range events {
		switch {
		case e.Name == perfevent.OffCPU:
			return "fewer tasks (-p, --cgroup, --comm)"
		case !e.Attr.Has(source.FlagFreq) && e.Attr.SamplePeriod > 1:
			return fmt.Sprintf("with a -c over %d", e.Attr.SamplePeriod)
		case !e.Attr.Has(source.FlagFreq):
			return fmt.Sprintf("only one of so many %s (-c N)", e.Name)
		}
	}
	return "with a lower frequency (-F)"
}

// warn says on standard error what the reader of a report should know: why stacks are not whole, what
// was lost, and what to do about it.
func (s *session) warn() {
	say := func(format string, args ...any) { fmt.Fprintf(stderr, "unspool: "+format+"\n", args...) }
	st := &s.stats
	if err := s.mods.CacheErr(); err != nil {
		say("unwind tables are not kept for the next time: %v", err)
	}
	if n := st.Lost + st.LostSamples; n > 0 {
		say("%s records were lost: record %s", profile.Comma(n), lossAdvice(s.in.Decoder().Events()))
	}
	if note := s.cut.String(); note != "" {
		say("%s", note)
	}
	if st.Bad > 0 {
		say("%s damaged records were skipped; the first: %v", profile.Comma(st.Bad), st.BadErr)
	}
	if st.Unknown > 0 {
		say("%s records of unknown kinds were skipped", profile.Comma(st.Unknown))
	}
	total := st.Samples
	if cut := st.Stops[unwind.Truncated]; cut*50 > total {
		say("%s of the stacks were cut off by the size of their copy: record with a larger --stack-size", profile.Percent(cut, total))
	}
	if n := st.Stops[unwind.NoInfo]; n*50 > total {
		say("%s of the stacks end in code without unwind information", profile.Percent(n, total))
	}
	if note := s.names.KernelNote(); note != "" {
		say("kernel functions have no names: %s", note)
	}
	errs := s.mods.Errors()
	for _, err := range errs[:min(5, len(errs))] {
		say("%v", err)
	}
	if n := len(errs) - 5; n > 0 {
		say("and %d more files like these", n)
	}
	notes := s.names.Notes()
	for _, note := range notes[:min(5, len(notes))] {
		say("%s", note)
	}
	if n := len(notes) - 5; n > 0 {
		say("and %d more notes on names", n)
	}
}
