package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record/heap"
	"github.com/unspool/unspool/report"
)

// defaultHeap is where record --heap writes unless told otherwise.
const defaultHeap = "unspool.heap.pb.gz"

// heapPlan holds the flags of heap profiles.
type heapPlan struct {
	how, period, value string
	heap.Plan
}

const heapSampled = "sampled"

func (h *heapPlan) flags(c *cobra.Command) {
	f := c.Flags()
	cli.OneOf(c, &h.how, "heap", "record where the command and its children allocate memory: a sample of the allocations, or all", heapSampled, "all")
	f.Lookup("heap").NoOptDefVal = heapSampled
	f.StringVar(&h.period, "heap-period", "", "with --heap: bytes that are allocated between samples, on average (default 512K)")
	h.value = profile.HeapInUse + "_space"
	var values []string
	for _, e := range profile.HeapEvents {
		values = append(values, e+"_space", e+"_objects")
	}
	cli.OneOf(c, &h.value, "heap-value", "with --heap: what tables and graphs show; pprof's files have all", values...)
}

// on says whether a heap profile is asked for.
func (h *heapPlan) on() bool { return h.how != "" }

// apart are the flags of record that heap profiles have nothing of.
var apart = []string{
	"frequency", "count", "event", "off-cpu", "wakers", "stack-size", "user", "kernel", "pid", "tid", "all", "source", "comm", "cgroup", "memory", "call-graph",
	"with-names", "to", "label",
}

// check reads the flags, and finds the library.
func (h *heapPlan) check(c *cobra.Command, command []string) (err error) {
	for _, name := range apart {
		if f := c.Flags().Lookup(name); f != nil && f.Changed {
			return usage("--heap and --%s exclude each other", name)
		}
	}
	if len(command) == 0 {
		return usage("--heap records a command: give one")
	}
	h.Command, h.Period = command, heap.DefaultPeriod
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

// recordHeap is record with --heap.
func recordHeap(c *cobra.Command, h *heapPlan, o *output, command []string, duration string, plain bool, stepper func() (*modules.Set, error)) (err error) {
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

// run records, and writes the profile.
func (h *heapPlan) run(ctx context.Context, o *output, mods *modules.Set, plain bool) error {
	table := o.path == "" && o.format == ""
	if table {
		o.path, o.format, o.keep = defaultHeap, "pprof", true
	}
	if err := o.resolve("top"); err != nil {
		return err
	}
	if o.form().Whole == nil {
		return usage("--heap makes a profile, not %s of single samples: use %s", o.format, strings.Join(heapEndings(), " "))
	}
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	r, err := heap.Start(h.Plan)
	if err != nil {
		return commit(err)
	}
	defer r.Close()
	status, note, err := r.Wait(ctx)
	if err != nil {
		return commit(err)
	}
	n := newNamer(names.Options{Mods: mods}, plain)
	defer n.Close()
	p, notes, err := r.Profile(mods, n)
	if err != nil {
		return commit(err)
	}
	event, unit, _ := strings.Cut(h.value, "_")
	shown := p.Only(event)
	if o.opts.By = report.Periods; unit == "objects" {
		o.opts.By = report.Samples
	}
	if o.format == "pprof" {
		err = o.form().Whole(out, p, o.opts)
	} else {
		err = o.form().Whole(out, shown, o.opts)
	}
	if err := commit(err); err != nil {
		return err
	}
	if table {
		opts := o.terminal()
		if err := report.Top(os.Stdout, shown, opts); err != nil {
			return err
		}
	}
	say(notes)
	say(n.Notes())
	if o.path != "" && o.path != "-" {
		fmt.Fprintf(stderr, "unspool: %s: %s\n", o.path, p.Headline())
	}
	if event == profile.HeapInUse && shown.Totals.Period == 0 && p.Totals.Period > 0 && (table || o.format != "pprof") {
		fmt.Fprintln(stderr, "unspool: nothing was in use at the end: --heap-value peak_space shows the peak, alloc_space all that was allocated")
	}
	if note != "" {
		fmt.Fprintf(stderr, "unspool: %s\n", note)
	}
	if status != 0 {
		return &cli.Exit{Status: status}
	}
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
