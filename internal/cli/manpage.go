package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unspool/unspool/internal/outfile"
)

// WritePages writes the manual pages of a command and all its verbs into a directory.
func WritePages(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return EachVerb(root, func(c *cobra.Command) error {
		return outfile.WriteFile(filepath.Join(dir, PageName(c)+".1"), []byte(Page(c)), outfile.Options{})
	})
}

// PageName returns the name of a command's page: "unspool-record".
func PageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// Page returns a command's manual page, in the macros of man(7). cobra's own generator goes through Markdown, where characters of a command's text,
// such as * or <, are markup.
func Page(c *cobra.Command) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "%s" 1 "%s" "unspool %s" "User Commands"`, strings.ToUpper(roff(PageName(c))), date(), roff(Version()))
	line(".SH NAME\n%s \\- %s", roff(PageName(c)), roff(c.Short))
	line(".SH SYNOPSIS\n.B %s", roff(c.CommandPath()))
	rest := strings.TrimPrefix(strings.TrimPrefix(c.UseLine(), c.CommandPath()), " ")
	if c.HasAvailableSubCommands() {
		rest = "VERB [flags]"
	}
	if rest != "" {
		line("%s", roff(rest))
	}
	line(".SH DESCRIPTION")
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	paragraphs(&b, long)
	options(&b, "OPTIONS", c.LocalFlags())
	if c.Example != "" {
		line(".SH EXAMPLES\n.nf")
		for _, l := range strings.Split(strings.Trim(c.Example, "\n"), "\n") {
			line("%s", roff(strings.TrimPrefix(l, "  ")))
		}
		line(".fi")
	}
	var also []string
	if c.HasParent() {
		also = append(also, PageName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			also = append(also, PageName(sub))
		}
	}
	for i, name := range also {
		if i == 0 {
			line(".SH SEE ALSO")
		}
		comma := ","
		if i == len(also)-1 {
			comma = ""
		}
		line(".BR %s (1)%s", roff(name), comma)
	}
	return b.String()
}

// paragraphs writes paragraphs. Lines that are indented stand as they are.
func paragraphs(b *strings.Builder, text string) {
	started, verbatim := false, false
	for i, l := range strings.Split(strings.TrimSpace(text), "\n") {
		l = strings.TrimRight(l, " ")
		if code := strings.HasPrefix(l, "  ") || strings.HasPrefix(l, "\t"); code != verbatim && l != "" {
			if verbatim = code; code {
				b.WriteString(".PP\n.nf\n")
			} else {
				b.WriteString(".fi\n")
			}
			started = false
		}
		switch {
		case l == "" && !verbatim:
			started = true
			continue
		case started && i > 0 && !verbatim:
			b.WriteString(".PP\n")
			started = false
		}
		fmt.Fprintln(b, roff(strings.ReplaceAll(l, "\t", "    ")))
	}
	if verbatim {
		b.WriteString(".fi\n")
	}
}

func options(b *strings.Builder, title string, flags *pflag.FlagSet) {
	first := true
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if first {
			fmt.Fprintf(b, ".SH %s\n", title)
			first = false
		}
		kind, text := pflag.UnquoteUsage(f)
		name := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			name = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + name
		}
		if kind != "" {
			name += ` \fI` + roff(kind) + `\fR`
		}
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" && d != "0s" {
			text += " (default " + d + ")"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", name, roff(text))
	})
}

var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`, "…", `\&...`)

// roff escapes a line of text. What cannot stand at its beginning is told apart from a request.
func roff(s string) string {
	s = roffEscapes.Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
