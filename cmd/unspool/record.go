package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
)

// defaultRecording is where record writes unless told otherwise.
const defaultRecording = "unspool.data"

// recordFormats are what a recording can be written as.
var recordFormats = append(report.Table{recordingFormat}, report.Formats...)

func recordCmd() *cobra.Command {
	o := output{report.Output{Formats: recordFormats}}
	var flt record.Filter
	var p plan
	var to sending
	var h heapPlan
	var stepper func() (*modules.Set, error)
	withNames, plain := false, false
	c := &cobra.Command{
		Use:   "record [flags] -- COMMAND [ARG...]",
		Short: "Record where a program, processes or the whole machine spend their time",
		Long: `Record the stacks of a command, of running processes, or of the whole machine.

The unwind tables of the programs lead through each stack as it comes. Programs need no frame pointers, and no copy
of a stack is written to disk. As root on Linux 5.10 or later, the kernel walks the stacks; a line on standard error
says so. Otherwise the kernel copies the stacks, and this program walks the copies. If the kernel's verifier refuses
to load the walk, a line says why, and UNSPOOL_VERIFIER_LOG=FILE gets the verifier's log. Ctrl-C ends the recording
and writes the result. The exit status is the command's.

The ending of -o picks the format:

` + recordFormats.Help() + `
Without -o, record writes ` + defaultRecording + ` and prints a table; only the recording before is kept, as ` + defaultRecording + `.old.

A complete output replaces the file of its name. If recording fails, or has no samples, the old file stays. A killed
recorder leaves .NAME.tmp-… there: report reads it. Others cannot read ` + recordFormats.PrivateEndings() + `.

With --off-cpu --wakers, each wait shows the thread that ended it: "[woken by COMM]" stands above the wait, then the
waker's stack upside down. So the functions that wake are next to the functions that wait. The self time belongs to
the waker's outermost function. The waker of a mutex is its holder at the end of the wait, not the holders before.
The waker of a condition variable is the thread that signalled. A timer ends waits that time out. An interrupt shows
as "[woken by an interrupt]", without the code it interrupted. Wakers in processes that are not recorded have names,
but no functions.

With --heap, record shows where the command and its children allocate memory, instead of where they spend time. A
library in front of the program's allocator takes a sample each 512 KiB, on average, and walks its stack. --heap=all
records every allocation; --heap=mmap, mappings without a file. The profile counts the bytes and the objects that were
allocated (alloc), in use at the end (inuse), in use when the most bytes were in use (peak), or freed before their
thread had allocated anything else (temporary). pprof files have all four values; other formats show the value that
--heap-value names. Without -o, record writes ` + defaultHeap + ` and prints a table. With --every 10s, or when record
gets SIGUSR2, it writes a snapshot beside the output: for -o heap.pb.gz, heap.001.pb.gz, heap.002.pb.gz. No snapshot
replaces another. unspool diff compares two snapshots; unspool serve heap.pb.gz shows the whole run by time. With
-p PID, record uses probes at the process's allocator instead of the library: as root, at microseconds for each call.

--to sends the finished recording to an engine, with the names of functions and inlined calls:
parca=http://HOST:7070, pyroscope=http://HOST:4040, otlp=http://HOST:4318 or otlp=grpc://HOST:4317. The recording
stays on disk. If an engine does not take it, a line says why, and how to send it again.

An ordinary user can record their own processes if kernel.perf_event_paranoid is 2 or less; at 2, in user space only.
Recording the whole machine (-a) takes 0 or less, root or CAP_PERFMON. Where perf events are refused, as in
containers, ptrace samples the command or the processes instead. A line on standard error says so; the default is 99
samples a second. unspool doctor says what is allowed.`,
		Example: `  unspool record -- ./program arg
  unspool record -o flame.svg -- make
  unspool record -p 1234 --duration 10s -o profile.pb.gz
  unspool record -a --duration 30s --comm '^nginx'
  unspool record --to pyroscope=http://127.0.0.1:4040 --label service_name=shop -- ./program
  unspool record -e page-faults -o faults.svg -- ./program
  unspool record --heap -o heap.svg -- ./program
  unspool record --heap --every 10s -o heap.pb.gz -- ./program
  unspool record --heap -p 1234 --duration 60s -o leak.svg
  unspool record --off-cpu -p 1234 --duration 10s -o blocked.svg
  unspool record --off-cpu --wakers -a --duration 10s -o wakers.svg
  unspool record -a --cgroup /sys/fs/cgroup/system.slice --duration 10s -o services.svg`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			p.Command = args
			if err := checkRecord(c, &p, &flt, &h, &to); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			defer mods.Close()
			if h.on() {
				return h.record(c.Context(), &o, mods, plain)
			}
			if err := wrong(o.OrElse(defaultRecording, recordingFormat.Name)); err != nil {
				return err
			}
			if err := o.unused(c); err != nil {
				return err
			}
			if withNames && o.Format != "data" {
				return usage("--with-names is for recordings (-o FILE.data): %s always has names", o.Format)
			}
			if len(to.Targets) > 0 && o.Format != "data" {
				return usage("--to is for recordings (-o FILE.data), which can be sent again: it does not go with %s", o.Format)
			}
			defer cli.Trim(cli.FirstTrim, func() { module.ReleasePages(); pages.ReleaseProgram() })()
			return runRecord(c.Context(), &o, &flt, &p, mods, withNames, plain, &to)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	p.flags(c)
	h.flags(c)
	cli.Var(c, &p.Duration, "duration", "", `end after this time, such as "10s" or "2m"`, cli.Duration)
	f.BoolVar(&withNames, "with-names", false, "put the names and lines of all samples into the recording, to read it on another machine")
	f.IntSliceVarP(&p.TIDs, "tid", "t", nil, "record these threads")
	o.flags(c)
	sourceFlag(c, &plain)
	to.flags(c)
	stepper = stepperFlag(c)
	return c
}

// checkRecord reads the flags that say what is recorded.
func checkRecord(c *cobra.Command, p *plan, flt *record.Filter, h *heapPlan, to *sending) error {
	if h.on() {
		return h.check(c, p)
	}
	if err := h.without(c); err != nil {
		return err
	}
	if err := p.check(c.Flag("stepper").Value.String(), flt); err != nil {
		return err
	}
	return to.check()
}

// errEmpty keeps an empty recording from taking the place of one that is not.
var errEmpty = errors.New("no samples")

// runRecord records until there is nothing more to record or ctx is done, and writes the result.
func runRecord(ctx context.Context, o *output, flt *record.Filter, p *plan, mods *modules.Set, withNames, plain bool, to *sending) error {
	// Before the command starts, because it may run long.
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	rec, err := p.Open(ctx, mods)
	if err != nil {
		return commit(err)
	}
	defer rec.Close()
	notify(rec.Notes())

	n := newNamer(names.Options{Mods: mods}, plain)
	defer n.Close()
	s := rec.Session(record.Options{Mods: mods, Names: n, Filter: *flt})
	if err := rec.Drop(n); err != nil {
		reportError(err)
	}
	var prof *profile.Profile
	var written *record.Written // its names take long, and wait until the recording is whole on disk
	// Not ctx: when it is done, the recording ends, and what has been recorded is still to be read.
	switch bg := context.Background(); {
	case o.Format == recordingFormat.Name:
		written, err = recording(bg, s, out.File, withNames)
	case o.Form().Stream != nil:
		err = stream(bg, s, out, o, out.Publish)
	default:
		done := shown(s)
		prof, err = s.Profile(bg, nil)
		if done(); err == nil {
			err = o.Write(out, prof)
		}
	}
	notify(rec.EndNotes())
	empty, before := s.Stats.Samples == 0, out.Replaces()
	if err == nil && empty && (o.Tabled || before) {
		commit(errEmpty)
	} else if err = commit(err); err != nil {
		return err
	}
	if written != nil { // a second Ctrl-C ends it
		if prof, err = written.Named(); err != nil {
			reportError(fmt.Errorf("the recording is whole, but without names: %w", err))
		}
	}
	if o.Tabled && !empty {
		if err := o.Table(prof); err != nil {
			return err
		}
	}
	notify(s.Notes())
	notify(s.Hints(prof))
	if !empty || !o.Tabled && !before {
		wrote(o, s.Summary())
	}
	if empty {
		note := s.Nothing()
		if before {
			note += "; " + o.Path + " still has the recording before"
		}
		notifyLine(note)
	}
	var sent error
	if !empty && len(to.Targets) > 0 {
		sent = to.Send(context.WithoutCancel(ctx), prof, o.Path, notifyLine)
	}
	if err := exitStatus(rec.ExitStatus(ctx, rec.TimedOut())); err != nil {
		if sent != nil {
			reportError(sent)
		}
		return err
	}
	return sent
}

// exitStatus passes on how a recording ended: see record.Live.ExitStatus.
func exitStatus(status int, note string, err error) error {
	if note != "" {
		notifyLine(note)
	}
	if err == nil && status != 0 {
		err = &cli.Exit{Status: status}
	}
	return err
}
