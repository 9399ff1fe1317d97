package top

import (
	"context"
	"errors"
	"os"

	"golang.org/x/term"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/tui"
)

// Record records what p says and shows it, on a terminal or as text on standard output, until there has been enough, ctx is done, or the recording ends.
// say is told what people should know. What it returns is that of record.Live.ExitStatus.
func Record(ctx context.Context, p record.Plan, r record.Options, o Options, say func(notes []string)) (status int, note string, err error) {
	tty := term.IsTerminal(int(os.Stdout.Fd())) && !tui.Dumb()
	files, done, err := commandFiles(tty)
	if err != nil {
		return 0, "", err
	}
	p.Files = files
	rec, err := p.Open(ctx, r.Mods)
	done()
	if err != nil {
		return 0, "", err
	}
	defer rec.Close()
	if !tty {
		say(rec.Notes())
	}
	if err := rec.Drop(r.Names); err != nil {
		say([]string{err.Error()})
	}
	r.Prompt = true
	s := rec.Session(r)
	what := printable.Marked(p.Target())
	if comm := r.Filter.Comm; comm != nil {
		what += " (" + printable.Marked(comm.String()) + ")"
	}
	o.what = printable.Clip(what, 40) + " · " + printable.Marked(rec.Event())
	if p.Event == profile.OffCPU {
		o.by = profile.Periods
	}
	view := newDisplay(o, rec, r.Names, rec.Since)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(context.Background(), view.add) // not ctx: its end stops the recorder, and then this ends
	}()
	over := false // by itself
	if tty {
		over, err = view.watch(ctx, ended)
	} else {
		over, err = view.print(ctx, os.Stdout, ended)
	}
	rec.Stop()
	if !over {
		err = errors.Join(err, <-ended)
	}
	say(rec.EndNotes())
	if err != nil {
		return 0, "", err
	}
	say(s.Notes())
	return rec.ExitStatus(ctx, !over)
}
