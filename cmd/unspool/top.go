package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/perfevent"
)

// A top is how a live view is asked for.
type top struct {
	plan
	window, every time.Duration
	rounds        int // 0: no end
	rows          int
	sort          string // "self" or "total"
	table         int
	plain         bool // no inlined calls
}

func topCmd() *cobra.Command {
	var t top
	window, every, table := "", "", ""
	c := &cobra.Command{
		Use:   "top [flags] [-- COMMAND [ARG...]]",
		Short: "Watch which functions and whole stacks are the hottest, live",
		Long: `Show the hottest functions, whole stacks and processes of the last seconds, of the whole machine, of processes
(-p), or of a command and all that it starts, once a second.

On a terminal, ? says which keys there are; what a command prints is not shown then. Otherwise one table after the other
is printed as text, -n of them, and a command's output goes to standard error.

The lines below (in text: above) the table say how many samples there were, how many stacks are whole, why the rest
are not, what was lost, and who walked the stacks. A processor with nothing to do is counted as idle and nowhere else.

Watching the whole machine takes root, CAP_PERFMON, or a kernel.perf_event_paranoid of 0 or less.`,
		Example: `  unspool top
  unspool top -p 1234 --window 30s
  unspool top -n 1 --table stacks | head -20
  unspool top -- ./program arg`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			t.Command = args
			if len(args) == 0 && len(t.PIDs) == 0 {
				t.All = true
			}
			var flt filter
			if err := t.check("compact", &flt); err != nil {
				return err
			}
			var err error
			if t.window, err = parseDuration("--window", window); err != nil {
				return err
			}
			if t.every, err = parseDuration("--interval", every); err != nil {
				return err
			}
			if t.every < 50*time.Millisecond || t.window < t.every || t.window > time.Hour {
				return usage("--interval is 50ms or more, and --window as much or more, up to an hour")
			}
			if t.table = slices.Index(tableNames[:], table); t.table < 0 {
				return usage("--table is one of %s, not %q", strings.Join(tableNames[:], ", "), table)
			}
			if t.sort != "self" && t.sort != "total" {
				return usage("--sort is self or total, not %q", t.sort)
			}
			if t.rounds < 0 || t.rows < 1 {
				return usage("-n and --limit are numbers from 1 on")
			}
			return t.run(c.Context(), &flt)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	t.flags(c)
	f.StringVar(&window, "window", "10s", "show what happened in this time")
	f.StringVar(&every, "interval", "1s", "show something new after this time")
	f.IntVarP(&t.rounds, "intervals", "n", 0, "end after so many intervals")
	f.StringVar(&table, "table", tableNames[functions], "what to show (first): "+strings.Join(tableNames[:], ", "))
	f.IntVar(&t.rows, "limit", 20, "text: rows of a table")
	sourceFlag(c, &t.plain)
	f.StringVar(&t.sort, "sort", "self", "put functions first by self, their own weight, or by total, that of all stacks that they are in")
	c.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"self", "total"}, cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("table", cobra.FixedCompletions(tableNames[:], cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (t *top) run(ctx context.Context, flt *filter) error {
	mods := modules.New()
	tty := term.IsTerminal(int(os.Stdout.Fd())) && !dumb()
	var rec *live
	err := commandFiles(tty, func() (err error) {
		rec, err = t.open(ctx, mods)
		return err
	})
	if err != nil {
		return err
	}
	defer rec.Close()
	if !tty {
		rec.note()
	}

	s := rec.session(mods, flt)
	rec.drop(s)
	s.prompt = true
	s.names.Lines = !t.plain // as in a report: the numbers are the same
	f := newFeed(rec, s.names, t)
	ended := make(chan error, 1)
	go func() {
		ended <- s.run(context.Background(), f.tally.add, nil, nil) // not ctx: its end stops the recorder, and then this ends
	}()
	v := newView()
	v.what, v.size, v.table, v.periods = t.what(rec), t.window, t.table, f.window.periods
	over := false // by itself
	if tty {
		over, err = watch(ctx, t, f, v, ended)
	} else {
		over, err = t.print(ctx, f, v, ended)
	}
	rec.Stop()
	if !over {
		err = errors.Join(err, <-ended)
	}
	rec.settle()
	if err != nil {
		return err
	}
	s.warn()
	return exitStatus(ctx, rec, !over)
}

// what says what is recorded.
func (t *top) what(rec *live) string {
	what := "whole machine"
	switch {
	case len(t.Command) > 0:
		what = printable.Marked(strings.Join(t.Command, " "))
	case len(t.PIDs) > 0:
		what = "pid " + strings.Trim(fmt.Sprint(t.PIDs), "[]")
	}
	if t.comm != "" {
		what += " (" + printable.Marked(t.comm) + ")"
	}
	return printable.Clip(what, 40) + " · " + printable.Marked(rec.Event())
}

// print writes a table at each interval, until there have been enough or nothing more comes. It says whether the recording
// ended by itself.
func (t *top) print(ctx context.Context, f *feed, v *view, ended <-chan error) (over bool, err error) {
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	w := bufio.NewWriter(os.Stdout)
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		case err := <-ended:
			over = true
			if err != nil {
				return true, err
			}
		}
		if n > 1 {
			fmt.Fprintln(w)
		}
		v.walks = f.rec.summary()
		v.show(f.next())
		w.WriteString(v.plainText(0, t.rows))
		if err := w.Flush(); err != nil {
			return over, err
		}
		if over || n == t.rounds {
			return over, nil
		}
	}
}

// A feed makes rankings of a recording. It is safe for concurrent use.
type feed struct {
	rec   *live
	tally *tally
	names profile.Namer

	mu     sync.Mutex
	window window
}

func newFeed(rec *live, names profile.Namer, t *top) *feed {
	return &feed{
		rec: rec, names: names, tally: newTally(rec.since),
		window: window{size: int((t.window + t.every - 1) / t.every), periods: t.Event == perfevent.OffCPU, total: t.sort == "total"},
	}
}

// next ends an interval and ranks what there is.
func (f *feed) next() *ranking {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.window.push(f.tally.cut(time.Now(), f.rec.lost(), f.names, profile.Info{}))
	return f.window.rank()
}

// reset forgets all.
func (f *feed) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally.cut(time.Now(), f.rec.lost(), nil, profile.Info{})
	f.window.reset()
}

// commandFiles calls start, which may start a command: one that this program's standard files are not for. It gets them from
// package os.
func commandFiles(tty bool, start func() error) error {
	in, out, stderr := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = in, out, stderr }()
	if !tty {
		os.Stdout = stderr
		return start()
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	os.Stdin, os.Stdout = null, null
	if term.IsTerminal(int(stderr.Fd())) {
		os.Stderr = null
	}
	return start()
}
