package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/series"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/record/heap"
)

// defaultHeap is where record --heap writes unless told otherwise.
const defaultHeap = "unspool.heap.pb.gz"

// heapPlan holds the flags of heap profiles.
type heapPlan struct {
	how, value string
	heap.Plan
}

const heapSampled = "sampled"

func (h *heapPlan) flags(c *cobra.Command) {
	cli.OneOf(c, &h.how, "heap", "record where the command and its children allocate memory. sampled: a sample of the allocations; all: every allocation; mmap: memory mapped without a file", heapSampled, "all", "mmap")
	c.Flags().Lookup("heap").NoOptDefVal = heapSampled
	cli.Var(c, &h.Period, "heap-period", "", "with --heap: bytes that are allocated between samples, on average (default 512K)", cli.Size)
	cli.Var(c, &h.Every, "every", "", `with --heap: write a snapshot after each such time, such as "10s", beside the output`, cli.Duration)
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
	return cli.Refuse(c, []string{"heap-period", "heap-value", "every"}, "goes with --heap")
}

// apart are the flags of record that heap profiles of commands have nothing of, and ofProcesses those that processes (-p) have.
var (
	apart = []string{
		"frequency", "count", "event", "off-cpu", "wakers", "stack-size", "user", "kernel", "pid", "tid", "all", "source", "comm", "cgroup", "memory", "call-graph",
		"with-names", "to", "label",
	}
	ofProcesses = []string{"pid", "source", "memory"}
)

// check reads the flags of a heap profile of a command, or of processes.
func (h *heapPlan) check(c *cobra.Command, p *plan) error {
	not, what := apart, "--heap"
	if len(p.PIDs) > 0 {
		what = "--heap -p"
		not = slices.DeleteFunc(slices.Clone(apart), func(name string) bool { return slices.Contains(ofProcesses, name) })
	}
	for _, name := range not {
		if c.Flags().Changed(name) {
			return usage("%s and --%s exclude each other", what, name)
		}
	}
	switch h.Maps = h.how == "mmap"; {
	case h.how != heapSampled && h.Period > 0:
		return usage("--heap-period takes a size, 1 or more, and excludes --heap=%s", h.how)
	case h.how == heapSampled:
		h.Period = cmp.Or(h.Period, heap.DefaultPeriod)
	}
	var err error
	if len(p.PIDs) > 0 {
		err = h.checkProcesses(c, p)
	} else if len(p.Command) == 0 {
		err = usage("--heap records a command or processes: give one, or -p PID")
	}
	h.Target = p.Plan
	return err
}

// checkProcesses reads the flags that only processes have.
func (h *heapPlan) checkProcesses(c *cobra.Command, p *plan) error {
	if err := p.check(c.Flag("stepper").Value.String(), &record.Filter{}); err != nil {
		return err
	}
	if p.Source != record.Auto && p.Source != record.EBPF {
		return usage("--heap -p works only with --source ebpf (root)")
	}
	if e := profile.ParseHeapValue(h.value).Event; h.Maps || e != profile.HeapAlloc && e != profile.HeapInUse {
		return usage("--heap -p has alloc and inuse, not %s with --heap=%s", e, h.how)
	}
	return nil
}

// record is record with --heap.
func (h *heapPlan) record(ctx context.Context, o *output, mods *modules.Set, plain bool) error {
	if err := wrong(o.OrElse(defaultHeap, "pprof")); err != nil {
		return err
	}
	if o.Form().Whole == nil {
		return usage("--heap makes a profile, not %s of single samples: use %s", o.Format, strings.Join(o.Known().Whole().Endings(), " "))
	}
	if h.Every > 0 && !series.Possible(o.Path) {
		return usage("--every writes snapshots beside the output: give -o FILE")
	}
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	n := newNamer(names.Options{Mods: mods}, plain)
	defer n.Close()
	r, err := heap.Record(ctx, h.Plan, heap.Options{
		Mods: mods, Names: n,
		Notify:   notifyLine,
		Snapshot: func(p *profile.Profile) error { return h.snapshot(ctx, *o, p) },
	})
	if err != nil {
		return commit(err)
	}
	stays := len(r.Profile.Stacks) == 0 && out.Replaces()
	if err = h.write(out, o, r.Profile); err == nil && stays {
		commit(errEmpty)
	} else if err = commit(err); err != nil {
		return err
	}
	shown := profile.ParseHeapValue(h.value).Of(r.Profile)
	if o.Tabled {
		if err := o.Table(shown); err != nil {
			return err
		}
	}
	notify(r.Notes)
	if stays {
		notifyLine("nothing was recorded; " + o.Path + " still has the recording before")
	} else {
		wrote(o, r.Profile.Headline())
	}
	if o.Tabled || o.Format != "pprof" {
		notify(heap.Hints(shown, r.Profile))
	}
	notify(r.EndNotes)
	if r.Status != 0 {
		return &cli.Exit{Status: r.Status}
	}
	return nil
}

// write writes a profile in the output's format.
func (h *heapPlan) write(w io.Writer, o *output, p *profile.Profile) error {
	if o.Format != "pprof" {
		p = profile.ParseHeapValue(h.value).Of(p)
	}
	return o.Write(w, p)
}

// snapshot writes what has been recorded so far beside the output.
func (h *heapPlan) snapshot(ctx context.Context, o output, p *profile.Profile) error {
	if !series.Possible(o.Path) {
		return errors.New("it goes beside the output: give -o FILE")
	}
	path, err := series.Write(ctx, o.Path, o.Form().Endings, func(w io.Writer) error { return h.write(w, &o, p) })
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "unspool: %s: after %.1f s: %s\n", path, p.Duration.Seconds(), p.Only(profile.HeapInUse).InMemory())
	return nil
}
