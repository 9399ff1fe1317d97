package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
)

// defaultRecording is where record writes unless told otherwise.
const defaultRecording = "unspool.data"

func recordCmd() *cobra.Command {
	var o output
	var flt filter
	var rec perfevent.Options
	var stepper func() (*modules.Set, error)
	duration, from := "", ""
	c := &cobra.Command{
		Use:   "record [flags] -- COMMAND [ARG...]",
		Short: "Record where a program, some processes or the whole machine spend their time",
		Long: `Record stacks while a command runs, or of processes that run already, or of the whole machine.

Stacks are unwound as they come, by the unwind tables of the programs: no frame pointers are needed, and no
copies of stacks are written to disk. Ctrl-C ends the recording and writes the result. The exit
status is the command's.

The ending of -o picks the format: .data (perf.data with callchains, for unspool report and perf report),
.svg, .pb.gz, .folded, .txt, .json, .perf. Without -o, everything goes to ` + defaultRecording + ` and a table is printed.

An ordinary user may record his own processes where kernel.perf_event_paranoid is 2 or less: in user space
only at 2. Recording the whole machine (-a) takes 0 or less, root or CAP_PERFMON.`,
		Example: `  unspool record -- ./program arg
  unspool record -o flame.svg -- make
  unspool record -p 1234 --duration 10s -o profile.pb.gz
  unspool record -a --duration 30s --comm '^nginx'
  unspool record -e page-faults -o faults.svg -- ./program
  unspool record --source ebpf -a --duration 10s -o machine.svg`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			rec.Command = args
			targets := 0
			for _, given := range []bool{len(args) > 0 || rec.All, len(rec.PIDs) > 0, len(rec.TIDs) > 0} {
				if given {
					targets++
				}
			}
			switch {
			case targets == 0:
				return usage("what to record? give a command, -p PID, -t TID or -a")
			case targets > 1:
				return usage("a command, -p, -t and -a exclude each other; a command with -a records everything while it runs")
			case rec.Frequency > 0 && rec.Period > 0:
				return usage("-F and -c exclude each other")
			case rec.User && rec.Kernel:
				return usage("--user and --kernel exclude each other; without either, both are recorded")
			case rec.StackSize%8 != 0 || rec.StackSize > perfevent.MaxStackSize:
				return usage("--stack-size is a multiple of 8 up to %d", perfevent.MaxStackSize)
			}
			var err error
			if from != "perf" && from != "ebpf" {
				return usage("--source is perf or ebpf, not %q", from)
			}
			if from == "ebpf" && c.Flag("stepper").Value.String() != "compact" {
				return usage("--source ebpf walks by compact tables, not --stepper %s", c.Flag("stepper").Value)
			}
			if rec.Duration, err = parseDuration(duration); err != nil {
				return err
			}
			if err := flt.compile(); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			table := o.path == "" && o.format == ""
			if table {
				o.path, o.format = defaultRecording, "data"
			}
			if err := o.resolve("top"); err != nil {
				return err
			}
			return runRecord(c.Context(), &o, &flt, rec, mods, from, table)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	f.Uint64VarP(&rec.Frequency, "frequency", "F", 0, fmt.Sprintf("samples a second on each processor (default %d)", perfevent.DefaultFrequency))
	f.Uint64VarP(&rec.Period, "count", "c", 0, "take a sample every so many events, instead of a frequency")
	f.StringVarP(&rec.Event, "event", "e", "", "what to count, as perf spells it (default: cycles, or cpu-clock where the machine has no counters)")
	f.StringVar(&duration, "duration", "", `end after this time, such as "10s" or "2m"`)
	f.Uint32Var(&rec.StackSize, "stack-size", 0, "bytes of each stack to unwind (default: 32 KiB if the kernel has room for it)")
	f.BoolVar(&rec.User, "user", false, "only count in user space")
	f.BoolVar(&rec.Kernel, "kernel", false, "only count in the kernel")
	f.IntSliceVarP(&rec.PIDs, "pid", "p", nil, "record these processes, and what they start")
	f.IntSliceVarP(&rec.TIDs, "tid", "t", nil, "record these threads")
	f.BoolVarP(&rec.All, "all", "a", false, "record the whole machine")
	f.StringVar(&from, "source", "perf", "perf copies stacks and walks them here; ebpf walks them in the kernel, to any depth (root, x86-64, Linux 6.1)")
	f.StringVar(&flt.comm, "comm", "", "only keep samples of commands that match this regular expression")
	o.flags(c)
	stepper = stepperFlag(c)
	return c
}

// parseDuration reads "10s", "1m30s" or a number of seconds; "" is 0.
func parseDuration(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if sec, ferr := strconv.ParseFloat(s, 64); err != nil && ferr == nil && sec < 1e9 {
		d, err = time.Duration(sec*1e9), nil
	}
	if err != nil || d <= 0 {
		return 0, usage("--duration is a time such as 10s, not %q", s)
	}
	return d, nil
}

// runRecord records until there is nothing more to record or ctx is done, and writes the result.
func runRecord(ctx context.Context, o *output, flt *filter, opts perfevent.Options, mods *modules.Set, from string, table bool) error {
	// Before the command starts, because it may run long.
	out, commit, err := o.create()
	if err != nil {
		return err
	}
	start := time.Now()
	var prog *ebpf.Program
	if from == "ebpf" {
		if prog, err = ebpf.Load(ebpf.Options{Mods: mods.Module}); err != nil {
			return commit(err)
		}
		defer prog.Close()
		opts.Program = prog
	}
	rec, err := perfevent.Open(ctx, opts)
	if err != nil {
		return commit(err)
	}
	defer rec.Close()
	// A second Ctrl-C is for those who do not want to wait for the result.
	defer context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })()
	if note := rec.EventNote(); note != "" {
		fmt.Fprintf(os.Stderr, "unspool: %s\n", note)
	}

	s := newSession(mods, rec, flt)
	s.ours = prog != nil
	host := perfdata.Host()
	s.machine, s.info.Host, s.info.Command, s.info.Start = rec.Machine(), host.Hostname, strings.Join(opts.Command, " "), start
	if len(opts.Command) == 0 {
		s.progress = func() string { return fmt.Sprintf("recording %s: %.0f s", rec.Event(), time.Since(start).Seconds()) }
	}
	var p *profile.Profile
	// Not ctx: when it is done, the recording ends, and what has been recorded is still to be read.
	switch bg := context.Background(); o.format {
	case "data":
		p, err = s.write(bg, out, host)
	case "json", "perf":
		err = s.stream(bg, out, o)
	default:
		if p, err = s.profile(bg); err == nil {
			err = report.Formats[o.format](out, p, o.opts)
		}
	}
	s.stats.Lost = max(s.stats.Lost, rec.Stats().Lost)
	if prog != nil {
		st := prog.Stats()
		s.info.Loss.Samples += st.RingFull + st.Nested
		s.stats.Lost += st.RingFull + st.Nested
		if st.Unknown > 0 {
			fmt.Fprintf(os.Stderr, "unspool: %s samples came before the kernel knew what their processes had mapped: they have one frame\n", profile.Comma(st.Unknown))
		}
		if st.Failed > 0 {
			fmt.Fprintf(os.Stderr, "unspool: %s tables or address spaces did not get into the kernel: %v\n", profile.Comma(uint64(st.Failed)), st.Err)
		}
	}
	if err = commit(err); err != nil {
		return err
	}
	if table && s.stats.Samples > 0 {
		if err := report.Formats["top"](os.Stdout, p, o.terminal()); err != nil {
			return err
		}
	}
	s.warn()
	s.wrote(o.path)
	if s.stats.Samples == 0 {
		fmt.Fprintln(os.Stderr, "unspool: there were no samples: the targets did nothing that was counted")
	}
	return exitStatus(ctx, rec, opts.Duration > 0 && time.Since(start) >= opts.Duration)
}

// exitStatus passes on how the command ended. ours says that it was this program that ended it.
func exitStatus(ctx context.Context, rec *perfevent.Recorder, ours bool) error {
	type result struct {
		state *os.ProcessState
		err   error
	}
	done := make(chan result, 1)
	go func() {
		state, err := rec.Wait()
		done <- result{state, err}
	}()
	var r result
	patience := make(<-chan time.Time)
	if ours || ctx.Err() != nil {
		patience = time.After(2 * time.Second) // for a command that does not mind SIGTERM
	}
	select {
	case r = <-done:
	case <-patience:
		fmt.Fprintln(os.Stderr, "unspool: the command is still running")
		return nil
	}
	if r.err != nil {
		return r.err
	}
	if r.state == nil || ours {
		return nil
	}
	status := r.state.ExitCode()
	if w, ok := r.state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		status = 128 + int(w.Signal())
		if ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "unspool: the command was ended by a signal: %v\n", w.Signal())
		}
	}
	if status != 0 {
		return &exitError{status: status}
	}
	return nil
}

// write writes perf.data with callchains, and returns the profile of the same samples.
func (s *session) write(ctx context.Context, out *os.File, info perfdata.Info) (*profile.Profile, error) {
	var w *perfdata.Writer
	open := func() (err error) {
		if w == nil {
			build, _ := s.in.(interface{ BuildID(string) string })
			o := perfdata.WriterOptions{Events: s.in.Decoder().Events(), Info: info}
			if build != nil {
				o.BuildID = build.BuildID
			}
			w, err = perfdata.NewWriter(out, o)
		}
		return err
	}
	b := profile.NewBuilder()
	err := s.run(ctx, func(x *profile.Sample) error { b.Add(x); return nil },
		func(r *source.Record) error {
			if err := open(); err != nil {
				return err
			}
			return w.Record(r)
		},
		func(x *source.Sample) error {
			if err := open(); err != nil {
				return err
			}
			return w.Sample(x)
		})
	if oerr := open(); oerr != nil {
		return nil, errors.Join(err, oerr)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if n := w.Dropped(); n > 0 && err == nil {
		fmt.Fprintf(os.Stderr, "unspool: %s samples were too large for perf.data and are not in it\n", profile.Comma(n))
	}
	s.events()
	return b.Profile(s.names, s.info), err
}
