package report

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/term"

	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// An Output is where a report goes, and what it looks like.
type Output struct {
	Options               // By need not be set: see profile.Info.Weight
	Formats Table         // that it can have; nil: those of this package
	Path    string        // "" and "-" are standard output
	Format  string        // the name of one of the formats; "": Resolve picks it
	Sort    string        // "total" is Options.Total
	Inputs  []fs.FileInfo // what is read, and must not be written
	Keep    bool          // what is there becomes PATH.old
	Tabled  bool          // Table is shown besides
}

// Known returns the formats that there are.
func (o *Output) Known() Table {
	if o.Formats == nil {
		return Formats
	}
	return o.Formats
}

// Form returns the format, which is known once Resolve has picked it.
func (o *Output) Form() *Format { return o.Known().Named(o.Format) }

// Stdout says whether the report goes to standard output.
func (o *Output) Stdout() bool { return o.Path == "" || o.Path == "-" }

// Resolve picks the format: the one that Format names, or the one that the ending of Path asks for; callers, where a function is asked for; else
// fallback. Errors call settings by the names of the command's flags.
func (o *Output) Resolve(fallback string) error {
	o.Total = o.Sort == "total"
	if o.Limit < 0 {
		return fmt.Errorf("--limit takes a number of functions, not %d", o.Limit)
	}
	if o.Format == "" && o.Func != "" && o.Known().ByEnding(o.Path) == nil {
		o.Format = "callers"
	}
	f, err := o.Known().Choose(o.Format, o.Path, fallback)
	if err != nil {
		return err
	}
	o.Format = f.Name
	if f.Binary && o.Stdout() && term.IsTerminal(int(os.Stdout.Fd())) {
		return fmt.Errorf("%s is binary: give -o FILE%s, or pipe it", f.Name, f.Endings[0])
	}
	return nil
}

// Create begins the output, which the caller finishes. Reports on a terminal are as wide as it is.
func (o *Output) Create(ctx context.Context) (*outfile.File, error) {
	if o.Stdout() {
		o.fit()
		return outfile.Stdout(), nil
	}
	form := o.Form()
	return outfile.Create(ctx, o.Path, outfile.Options{Private: form != nil && form.Private, Keep: o.Keep, Inputs: o.Inputs})
}

// fit makes reports as wide as the terminal, if standard output is one.
func (o *Output) fit() {
	if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		o.Width, o.Rows = cols, rows
	}
}

// weighed returns the options of a report that counts what its readers want to know.
func (o *Output) weighed(info *profile.Info) Options {
	opts := o.Options
	opts.By = max(opts.By, info.Weight())
	return opts
}

// Write writes a profile in the format, which has whole profiles.
func (o *Output) Write(w io.Writer, p *profile.Profile) error {
	return o.Form().Whole(w, p, o.weighed(&p.Info))
}

// Stream begins to write single samples in the format, which has such. info is what is known of them before.
func (o *Output) Stream(w io.Writer, n profile.Namer, info profile.Info) *Stream {
	return o.Form().Stream(w, n, info, o.weighed(&info))
}

// Compare writes how two profiles differ, in one of Diffs.
func (o *Output) Compare(w io.Writer, before, after *profile.Profile) error {
	opts := o.weighed(&before.Info)
	opts.By = max(opts.By, after.Weight())
	return Diffs.Named(o.Format).Compare(w, before, after, opts)
}

// OrElse is Resolve. Without Path and Format, the output is the file at path in a format, what is there is kept, and a table is shown besides.
func (o *Output) OrElse(path, format string) error {
	if o.Path == "" && o.Format == "" {
		o.Path, o.Format, o.Keep, o.Tabled = path, format, true, true
	}
	return o.Resolve("top")
}

// Table writes a table of functions to standard output, beside an output that goes elsewhere.
func (o *Output) Table(p *profile.Profile) error {
	beside := *o
	beside.fit()
	return Top(os.Stdout, p, beside.weighed(&p.Info))
}

// Ignored returns an error if an option, by the name of its flag, changes nothing in the format, nor in the table that is shown besides.
func (o *Output) Ignored(flag string) error {
	users := o.Known().Using(flag)
	if len(users) == 0 || slices.Contains(users, o.Format) || o.Tabled && slices.Contains(users, "top") {
		return nil
	}
	return fmt.Errorf("--%s is for %s, and changes nothing in %s", flag, printable.Either(users), o.Format)
}
