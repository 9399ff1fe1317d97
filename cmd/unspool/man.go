package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write manual pages",
		Long:    "Write a manual page for unspool and each of its verbs into a directory, for man(1).",
		Example: "  unspool man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			return eachVerb(c.Root(), func(c *cobra.Command) error {
				return writeFile(filepath.Join(args[0], manName(c)+".1"), []byte(manPage(c)))
			})
		},
	}
}

// eachVerb calls f with a command and those below it that users see.
func eachVerb(c *cobra.Command, f func(*cobra.Command) error) error {
	if err := f(c); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := eachVerb(sub, f); err != nil {
			return err
		}
	}
	return nil
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns a command's manual page, in the macros of man(7).
func manPage(c *cobra.Command) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH "%s" 1 "%s" "unspool %s" "User Commands"`, strings.ToUpper(roff(manName(c))), manDate(), roff(version()))
	line(".SH NAME\n%s \\- %s", roff(manName(c)), roff(c.Short))
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
	manText(&b, long)
	manFlags(&b, "OPTIONS", c.LocalFlags())
	if c.Example != "" {
		line(".SH EXAMPLES\n.nf")
		for _, l := range strings.Split(strings.Trim(c.Example, "\n"), "\n") {
			line("%s", roff(strings.TrimPrefix(l, "  ")))
		}
		line(".fi")
	}
	var also []string
	if c.HasParent() {
		also = append(also, manName(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			also = append(also, manName(sub))
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

// manText writes paragraphs. Lines that are indented stand as they are.
func manText(b *strings.Builder, text string) {
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

func manFlags(b *strings.Builder, title string, flags *pflag.FlagSet) {
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

// manDate is when this version was committed, where that is known.
func manDate() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" && len(s.Value) >= 10 {
				return s.Value[:10]
			}
		}
	}
	return ""
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

// generated adds the verbs that cobra makes, with examples.
func generated(root *cobra.Command) {
	root.SuggestionsMinimumDistance = 2
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	examples := map[string]string{
		"unspool help":                  "  unspool help record",
		"unspool completion":            "  unspool completion bash --help",
		"unspool completion bash":       "  unspool completion bash > /etc/bash_completion.d/unspool",
		"unspool completion zsh":        "  unspool completion zsh > \"${fpath[1]}/_unspool\"",
		"unspool completion fish":       "  unspool completion fish > ~/.config/fish/completions/unspool.fish",
		"unspool completion powershell": "  unspool completion powershell | Out-String | Invoke-Expression",
	}
	eachVerb(root, func(c *cobra.Command) error {
		if e, ok := examples[c.CommandPath()]; ok {
			c.Example = e
		}
		return nil
	})
}
