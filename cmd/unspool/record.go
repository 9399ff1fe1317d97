package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source/perfdata"
)

// defaultRecording is where record writes unless told otherwise.
const defaultRecording = "unspool.data"

// recordFormats are what a recording can be written as.
var recordFormats = append([]report.Format{recordingFormat}, report.Formats...)

func recordCmd() *cobra.Command {
	o := output{formats: recordFormats}
	var flt filter
	var p plan
	var stepper func() (*modules.Set, error)
	duration, withNames := "", false
	c := &cobra.Command{
		Use:   "record [flags] -- COMMAND [ARG...]",
		Short: "Record where a program, some processes or the whole machine spend their time",
		Long: `Record stacks while a command runs, or of processes that run already, or of the whole machine.

Stacks are unwound as they come, by the unwind tables of the programs: no frame pointers are needed, and no
copies of stacks are written to disk. Where it may (root, x86-64), the kernel walks them itself; a line on standard
error says so. Else it copies them, and they are walked here. Ctrl-C ends the recording and writes the result. The
exit status is the command's.

The ending of -o picks the format:

` + endingsHelp(recordFormats) + `
Without -o, everything goes to ` + defaultRecording + ` and a table is printed; the recording before it is kept, once, as
` + defaultRecording + `.old.

An output takes its place when it is whole: until then, and where recording fails, what was there stays. Formats with addresses (.data,
.json, .jsonl, .stacks.json, .perf) are for their owner only.

With --off-cpu --wakers, above each wait is who ended it: "[woken by COMM]", and that thread's stack upside down, so that what
woke is next to what waited. The outermost function of who woke has the self time. Who wakes a futex's wait is who
released it: of a mutex, its holder at the end of the wait, not those before. Of condition variables it is who signalled,
and of waits that time out it is a timer. An interrupt says "[woken by an interrupt]", and what it interrupted is not shown.
Processes that are not recorded are named, but their functions are not.

An ordinary user may record his own processes where kernel.perf_event_paranoid is 2 or less: in user space
only at 2. Where perf events are refused, as in containers, a command or processes are sampled by ptrace instead, 99
times a second unless -F says otherwise, and a line on standard error says so. Recording the whole machine (-a) takes
0 or less, root or CAP_PERFMON. unspool doctor says what is allowed.`,
		Example: `  unspool record -- ./program arg
  unspool record -o flame.svg -- make
  unspool record -p 1234 --duration 10s -o profile.pb.gz
  unspool record -a --duration 30s --comm '^nginx'
  unspool record -e page-faults -o faults.svg -- ./program
  unspool record --off-cpu -p 1234 --duration 10s -o blocked.svg
  unspool record --off-cpu --wakers -a --duration 10s -o wakers.svg
  unspool record -a --cgroup /sys/fs/cgroup/system.slice --duration 10s -o services.svg`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			p.Command = args
			if err := p.check(c.Flag("stepper").Value.String(), &flt); err != nil {
				return err
			}
			var err error
			if p.Duration, err = parseDuration("--duration", duration); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			table := o.path == "" && o.format == ""
			if table {
				o.path, o.format, o.keep = defaultRecording, "data", true
			}
			if err := o.resolve("top"); err != nil {
				return err
			}
			if withNames && o.format != "data" {
				return usage("--with-names is for recordings (-o FILE.data): %s has names as it is", o.format)
			}
			return runRecord(c.Context(), &o, &flt, &p, mods, table, withNames)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	p.flags(c)
	f.StringVar(&duration, "duration", "", `end after this time, such as "10s" or "2m"`)
	f.BoolVar(&withNames, "with-names", false, "put the names and lines of what was sampled into the recording, for others to read elsewhere")
	f.IntSliceVarP(&p.TIDs, "tid", "t", nil, "record these threads")
	o.flags(c)
	stepper = stepperFlag(c)
	return c
}

// parseDuration reads "10s" or "1m30s"; "" is 0.
func parseDuration(flag, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if n, ferr := strconv.ParseFloat(s, 64); err != nil && ferr == nil && n > 0 {
		return 0, usage("%s is a time with its unit: %ss or %sm", flag, s, s)
	}
	if err != nil || d <= 0 {
		return 0, usage("%s takes a time such as 10s, not %q", flag, s)
	}
	return d, nil
}

// errEmpty keeps an empty recording from taking the place of one that is not.
var errEmpty = errors.New("no samples")

// runRecord records until there is nothing more to record or ctx is done, and writes the result.
func runRecord(ctx context.Context, o *output, flt *filter, p *plan, mods *modules.Set, table, withNames bool) error {
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
	say(rec.Notes())
	if o.form().Grows {
		if err := o.publish(); err != nil {
			return err
		}
	}

	n := newNamer(names.Options{Mods: mods})
	s := &session{Session: rec.Session(flt.options(mods, n)), flt: flt}
	if err := rec.Drop(n); err != nil {
		fmt.Fprintf(stderr, "unspool: %v\n", err)
	}
	if len(p.Command) == 0 {
		s.howFar = func() string {
			return fmt.Sprintf("recording %s: %.0f s", rec.Event(), time.Since(rec.Start).Seconds())
		}
	}
	var prof *profile.Profile
	var written *record.Written // its names take long, and wait until the recording is whole on disk
	// Not ctx: when it is done, the recording ends, and what has been recorded is still to be read.
	switch bg := context.Background(); {
	case o.format == recordingFormat.Name:
		written, err = s.write(bg, out, o, perfdata.Host(), withNames)
	case o.form().Stream != nil:
		err = s.stream(bg, out, o)
	default:
		if prof, err = s.profile(bg, o, nil); err == nil {
			err = o.form().Whole(out, prof, o.opts)
		}
	}
	say(rec.EndNotes())
	empty := s.Stats.Samples == 0
	if err == nil && empty && table {
		commit(errEmpty)
	} else if err = commit(err); err != nil {
		return err
	}
	if written != nil { // a second Ctrl-C ends it
		n.Collect()
		prof = written.Profile()
		n.Save()
		if err := errors.Join(written.AddNames(), written.Close()); err != nil {
			fmt.Fprintf(stderr, "unspool: the recording is whole, but without names: %v\n", err)
		}
	}
	if table && !empty {
		if err := report.Top(os.Stdout, prof, o.terminal()); err != nil {
			return err
		}
	}
	s.warn()
	s.hints(prof)
	if !empty || !table {
		s.wrote(o.path)
	}
	if empty {
		note := "no samples: the program ended too soon, or used no CPU time"
		if _, err := os.Stat(o.path); err == nil && table {
			note += "; " + o.path + " is of before"
		}
		fmt.Fprintf(stderr, "unspool: %s\n", note)
	}
	return exitStatus(ctx, rec, p.Duration > 0 && time.Since(rec.Start) >= p.Duration)
}

// exitStatus passes on how the command ended. ours says that it was this program that ended it.
func exitStatus(ctx context.Context, rec *record.Live, ours bool) error {
	type result struct {
		status syscall.WaitStatus
		ok     bool
		err    error
	}
	done := make(chan result, 1)
	go func() {
		status, ok, err := rec.Wait()
		done <- result{status, ok, err}
	}()
	var r result
	patience := make(<-chan time.Time)
	if ours || ctx.Err() != nil {
		patience = time.After(2 * time.Second) // for a command that does not mind SIGTERM
	}
	select {
	case r = <-done:
	case <-patience:
		fmt.Fprintln(stderr, "unspool: the command is still running")
		return nil
	}
	if r.err != nil {
		return r.err
	}
	if !r.ok || ours {
		return nil
	}
	status := r.status.ExitStatus()
	if r.status.Signaled() {
		status = 128 + int(r.status.Signal())
		if ctx.Err() == nil {
			fmt.Fprintf(stderr, "unspool: the command was ended by a signal: %v\n", r.status.Signal())
		}
	}
	if status != 0 {
		return &exitError{status: status}
	}
	return nil
}

// write writes perf.data with callchains.
func (s *session) write(ctx context.Context, out *os.File, o *output, info perfdata.Info, room bool) (*record.Written, error) {
	defer s.shown()()
	w, err := s.Write(ctx, out, info, room)
	if w != nil && w.Dropped > 0 && err == nil {
		fmt.Fprintf(stderr, "unspool: %s samples were too large for perf.data and are not in it\n", profile.Comma(w.Dropped))
	}
	s.weigh(o)
	s.Names.Lines = !o.plain
	return w, err
}
