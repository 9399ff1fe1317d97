package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/series"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/record/heap"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
)

// defaultHeap is where record --heap writes unless told otherwise.
const defaultHeap = "unspool.heap.pb.gz"

// heapPlan holds the flags of heap profiles.
type heapPlan struct {
	how, period, value, every string
	interval                  time.Duration // between snapshots; 0: none but those that SIGUSR2 asks for
	heap.Plan
}

const heapSampled = "sampled"

func (h *heapPlan) flags(c *cobra.Command) {
	f := c.Flags()
	cli.OneOf(c, &h.how, "heap", "record where the command and its children allocate memory: a sample of the allocations, or all", heapSampled, "all")
	f.Lookup("heap").NoOptDefVal = heapSampled
	f.StringVar(&h.period, "heap-period", "", "with --heap: bytes that are allocated between samples, on average (default 512K)")
	f.StringVar(&h.every, "every", "", `with --heap: write a snapshot after each such time, such as "10s", beside the output`)
	h.value = profile.DefaultHeapValue
	cli.OneOf(c, &h.value, "heap-value", "with --heap: what tables and graphs show; pprof's files have all", profile.HeapValues...)
}

// heapValueFlag adds the flag for what is shown of heap profiles that are read; users say which.
func heapValueFlag(c *cobra.Command, value *string) {
	cli.OneOf(c, value, "heap-value", "of a heap profile, what to show (default "+profile.DefaultHeapValue+")", profile.HeapValues...)
}

// on says whether a heap profile is asked for.
func (h *heapPlan) on() bool { return h.how != "" }

// without refuses the flags of heap profiles where none is asked for.
func (h *heapPlan) without(c *cobra.Command) error {
	for _, name := range []string{"heap-period", "heap-value", "every"} {
		if c.Flags().Changed(name) {
			return usage("--%s goes with --heap", name)
		}
	}
	return nil
}

// apart are the flags of record that heap profiles have nothing of.
var apart = []string{
	"frequency", "count", "event", "off-cpu", "wakers", "stack-size", "user", "kernel", "pid", "tid", "all", "source", "comm", "cgroup", "memory", "call-graph",
	"with-names", "to", "label",
}

// check reads the flags, and finds the library.
func (h *heapPlan) check(c *cobra.Command, command []string) (err error) {
	if err := h.sampling(c, apart); err != nil {
		return err
	}
	if len(command) == 0 {
		return usage("--heap records a command or processes: give one, or -p PID")
	}
	h.Command = command
	if h.interval, err = cli.Duration("--every", h.every); err != nil {
		return err
	}
	library, err := doctor.FindHeap("")
	if err != nil {
		return err
	}
	h.Preload = []string{library}
	if doctor.HasOperators(command[0]) {
		h.Preload = append(h.Preload, filepath.Join(filepath.Dir(library), doctor.HeapNew))
	}
	return nil
}

// sampling reads how often a sample is taken, and refuses flags that heap profiles have nothing of.
func (h *heapPlan) sampling(c *cobra.Command, apart []string) error {
	for _, name := range apart {
		if f := c.Flags().Lookup(name); f != nil && f.Changed {
			return usage("--heap and --%s exclude each other", name)
		}
	}
	h.Period = heap.DefaultPeriod
	if h.period != "" {
		n, err := cli.Size("--heap-period", h.period)
		if err != nil {
			return err
		}
		if n < 1 || h.how == "all" {
			return usage("--heap-period takes a size, 1 or more, and excludes --heap=all")
		}
		h.Period = uint64(n)
	}
	if h.how == "all" {
		h.Period = 0
	}
	return nil
}

// recordHeap is record with --heap.
func recordHeap(c *cobra.Command, h *heapPlan, p *plan, flt *record.Filter, o *output, command []string, duration string, plain bool, stepper func() (*modules.Set, error)) (err error) {
	if len(p.PIDs) > 0 {
		return h.probe(c, p, flt, o, command, duration, plain, stepper)
	}
	if err := h.check(c, command); err != nil {
		return err
	}
	if h.Duration, err = cli.Duration("--duration", duration); err != nil {
		return err
	}
	mods, err := stepper()
	if err != nil {
		return err
	}
	defer mods.Close()
	return h.run(c.Context(), o, mods, plain)
}

// probe records processes that run, by probes at their allocators.
func (h *heapPlan) probe(c *cobra.Command, p *plan, flt *record.Filter, o *output, command []string, duration string, plain bool, stepper func() (*modules.Set, error)) (err error) {
	var not []string
	for _, name := range apart {
		if name != "pid" && name != "memory" && name != "source" {
			not = append(not, name)
		}
	}
	if err := h.sampling(c, append(not, "every")); err != nil {
		return err
	}
	p.Command = command
	if p.Duration, err = cli.Duration("--duration", duration); err != nil {
		return err
	}
	if err := p.check(c.Flag("stepper").Value.String(), flt); err != nil {
		return err
	}
	if p.Source != record.Auto && p.Source != record.EBPF {
		return usage("--heap -p works only with --source ebpf (root)")
	}
	if e := profile.ParseHeapValue(h.value).Event; e != profile.HeapAlloc && e != profile.HeapInUse {
		return usage("--heap -p has alloc and inuse, not %s", e)
	}
	p.Event, p.Source, p.Only = perfevent.Allocations, record.EBPF, "--heap -p"
	p.InKernel.Heap = &ebpf.Heap{Period: h.Period, PIDs: p.PIDs}
	mods, err := stepper()
	if err != nil {
		return err
	}
	defer mods.Close()
	table, err := h.output(o)
	if err != nil {
		return err
	}
	ctx := c.Context()
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	rec, err := p.Open(ctx, mods)
	if err != nil {
		return commit(err)
	}
	defer rec.Close()
	for _, path := range rec.Heap().Allocators {
		fmt.Fprintf(stderr, "unspool: probes at %s: each allocation stops the process twice, each free once, for 1 to 3 µs each time\n", path)
	}
	n := newNamer(names.Options{Mods: mods}, plain)
	defer n.Close()
	s := &session{Session: rec.Session(record.Options{Mods: mods, Names: n, Filter: *flt})}
	if err := rec.Drop(n); err != nil {
		fmt.Fprintf(stderr, "unspool: %v\n", err)
	}
	b := profile.NewBuilder()
	if err := s.Run(context.Background(), func(x *profile.Sample) error {
		heap.Weigh(x, h.Period)
		x.TID = 0
		b.Add(x)
		return nil
	}); err != nil {
		return commit(err)
	}
	s.Info.Every = h.Period
	prof := heap.Probed(b.Profile(n, s.Info))
	if err := h.finish(out, commit, o, table, prof, nil); err != nil {
		return err
	}
	sayNotes(rec.EndNotes())
	s.warn()
	st := rec.Heap()
	fmt.Fprintf(stderr, "unspool: the processes allocated %s times and freed %s times: %s stops\n", profile.Comma(st.Allocations), profile.Comma(st.Frees), profile.Comma(st.Allocations+st.Returns+st.Frees))
	return nil
}

// output decides where the profile goes. table says that a table is wanted, too.
func (h *heapPlan) output(o *output) (table bool, err error) {
	if table = o.path == "" && o.format == ""; table {
		o.path, o.format, o.keep = defaultHeap, "pprof", true
	}
	if err := o.resolve("top"); err != nil {
		return false, err
	}
	if o.form().Whole == nil {
		return false, usage("--heap makes a profile, not %s of single samples: use %s", o.format, strings.Join(heapEndings(), " "))
	}
	if o.opts.By = report.Periods; profile.ParseHeapValue(h.value).Objects {
		o.opts.By = report.Samples
	}
	return table, nil
}

// finish writes the profile, and says what it has.
func (h *heapPlan) finish(out io.Writer, commit func(error) error, o *output, table bool, p *profile.Profile, notes []string) error {
	if err := commit(h.write(out, o, p)); err != nil {
		return err
	}
	event := profile.ParseHeapValue(h.value).Event
	shown := p.Only(event)
	if table {
		if err := report.Top(os.Stdout, shown, o.terminal()); err != nil {
			return err
		}
	}
	say(notes)
	if o.path != "" && o.path != "-" {
		fmt.Fprintf(stderr, "unspool: %s: %s\n", o.path, p.Headline())
	}
	if event == profile.HeapInUse && shown.Totals.Period == 0 && p.Totals.Period > 0 && (table || o.format != "pprof") {
		fmt.Fprintln(stderr, "unspool: nothing was in use at the end: --heap-value peak_space shows the peak, alloc_space all that was allocated")
	}
	return nil
}

// run records, and writes the profile.
func (h *heapPlan) run(ctx context.Context, o *output, mods *modules.Set, plain bool) error {
	table, err := h.output(o)
	if err != nil {
		return err
	}
	if h.interval > 0 && !o.beside() {
		return usage("--every writes snapshots beside the output: give -o FILE")
	}
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2) // before there is a process that can be sent it
	defer signal.Stop(asked)
	r, err := heap.Start(h.Plan)
	if err != nil {
		return commit(err)
	}
	defer r.Close()
	n := newNamer(names.Options{Mods: mods}, plain)
	defer n.Close()
	status, note, err := r.WaitEvery(ctx, h.interval, asked, func() {
		p, _, err := r.Profile(mods, n)
		if err == nil {
			err = h.snapshot(ctx, *o, p)
		}
		if err != nil {
			fmt.Fprintf(stderr, "unspool: a snapshot: %v\n", err)
		}
	})
	if err != nil {
		return commit(err)
	}
	p, notes, err := r.Profile(mods, n)
	if err != nil {
		return commit(err)
	}
	if err := h.finish(out, commit, o, table, p, append(notes, n.Notes()...)); err != nil {
		return err
	}
	if note != "" {
		fmt.Fprintf(stderr, "unspool: %s\n", note)
	}
	if status != 0 {
		return &cli.Exit{Status: status}
	}
	return nil
}

// write writes a profile in the output's format.
func (h *heapPlan) write(w io.Writer, o *output, p *profile.Profile) error {
	if o.format != "pprof" {
		p = p.Only(profile.ParseHeapValue(h.value).Event)
	}
	return o.form().Whole(w, p, o.opts)
}

// snapshot writes what has been recorded so far beside the output.
func (h *heapPlan) snapshot(ctx context.Context, o output, p *profile.Profile) error {
	if !o.beside() {
		return errors.New("it goes beside the output: give -o FILE")
	}
	endings := o.form().Endings
	o.path, o.keep = series.Name(o.path, endings, series.Next(o.path, endings)), false
	if err := o.write(ctx, func(w io.Writer) error { return h.write(w, &o, p) }); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "unspool: %s: after %.1f s: %s\n", o.path, p.Duration.Seconds(), p.Only(profile.HeapInUse).InMemory())
	return nil
}

// heapEndings are those of the forms that a heap profile can have.
func heapEndings() (endings []string) {
	for _, f := range report.Formats {
		if f.Whole != nil && len(f.Endings) > 0 {
			endings = append(endings, f.Endings[0])
		}
	}
	return endings
}

// beside says whether the output is a file that others can lie beside.
func (o *output) beside() bool {
	if o.path == "" || o.path == "-" {
		return false
	}
	st, err := os.Stat(o.path)
	return err != nil || st.Mode().IsRegular()
}
