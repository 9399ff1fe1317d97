package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/tui/top"
)

// topFlags are the flags of top.
type topFlags struct {
	plan
	top.Options
	sort  string // "self" or "total"
	plain bool   // no inlined calls
}

func topCmd() *cobra.Command {
	t := topFlags{Options: top.Options{Table: top.Tables()[0]}}
	c := &cobra.Command{
		Use:   "top [flags] [-- COMMAND [ARG...]]",
		Short: "Show the hottest functions, whole stacks and processes, live",
		Long: `Show the hottest functions, whole stacks and processes of the last seconds, once a second: of the whole machine, of
processes (-p), or of a command and all processes it starts.

On a terminal, the key ? lists all keys, and the output of a command is discarded. Otherwise top prints tables as
text, as many as -n says, and the output of a command goes to standard error.

Lines below the table (in text: above it) count the samples and the whole stacks. They give the reasons why other
stacks are not whole, the losses, and who walks the stacks. A processor with nothing to do counts as idle only.

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
			var flt record.Filter
			if err := t.check("compact", &flt); err != nil {
				return err
			}
			if t.Every < 50*time.Millisecond || t.Window < t.Every || t.Window > time.Hour {
				return usage("--interval is 50ms or more, and --window as much or more, up to an hour")
			}
			if t.Rounds < 0 || t.Rows < 1 {
				return usage("-n and --limit take a number, 1 or more")
			}
			mods := modules.New()
			defer mods.Close()
			n := newNamer(names.Options{Mods: mods}, t.plain)
			defer n.Close()
			t.Total = t.sort == "total"
			return exitStatus(top.Record(c.Context(), t.Plan, record.Options{Mods: mods, Names: n, Filter: flt}, t.Options, notify))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	t.flags(c)
	cli.Var(c, &t.Window, "window", "10s", "show the samples of this last time", cli.Duration)
	cli.Var(c, &t.Every, "interval", "1s", "update the view after this time", cli.Duration)
	f.IntVarP(&t.Rounds, "intervals", "n", 0, "end after this many intervals")
	cli.OneOf(c, &t.Table, "table", "table to show (first): "+strings.Join(top.Tables(), ", "), top.Tables()...)
	f.IntVar(&t.Rows, "limit", 20, "text: rows of a table")
	sourceFlag(c, &t.plain)
	sortFlag(c, &t.sort, "")
	return c
}
