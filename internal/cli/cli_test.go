package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// tree is a program with two verbs of its own. What walk returns is err.
func tree(err error) *cobra.Command {
	root := &cobra.Command{Use: "prog", Short: "A program"}
	walk := &cobra.Command{Use: "walk [FILE]", Short: "Walk", Args: NoneOr(1), RunE: func(c *cobra.Command, _ []string) error {
		fmt.Fprint(c.OutOrStdout(), "walked")
		return err
	}}
	walk.Flags().IntSlice("pid", nil, "")
	walk.Flags().IntP("limit", "n", 0, "")
	walk.Flags().Bool("deep", false, "")
	walk.Flags().String("format", "", "")
	walk.Flags().String("secret", "", "")
	walk.Flags().MarkHidden("secret")
	copied := &cobra.Command{Use: "copy IN OUT", Short: "Copy", Args: cobra.ExactArgs(2), RunE: func(*cobra.Command, []string) error { return err }}
	root.AddCommand(walk, copied)
	Setup(root, []Group{{"Moves", []string{"walk"}}, {"Rest", []string{"copy", "help", "completion"}}}, map[string]string{"pid intSlice": "process IDs"})
	return root
}

// TestUsage: wrong usage has status 2, says what is wrong, and where help is.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"wlak":                `unknown command "wlak"; did you mean walk?`,
		"help wlak":           `unknown command "wlak"; did you mean walk?`,
		"zzzzzz":              `unknown command "zzzzzz"`,
		"walk --dept x":       "unknown flag --dept; did you mean --deep?",
		"walk --fromat x":     "unknown flag --fromat; did you mean --format?",
		"walk --secre x":      "unknown flag --secre",
		"walk -z":             "unknown flag -z",
		"walk --pid x":        `--pid takes process IDs, not "x"`,
		"walk -n x":           `-n takes a number such as 10, not "x"`,
		"walk --deep=x":       `--deep takes true or false, not "x"`,
		"walk --format":       "--format takes a value: give it a value",
		"walk a b":            "too many arguments: prog walk [FILE] [flags]",
		"copy a":              "an argument is missing: prog copy IN OUT [flags]",
		"copy a b c":          "too many arguments: prog copy IN OUT [flags]",
		"copy":                "an argument is missing: prog copy IN OUT [flags]",
		"walk --pid 1 --pid=": "", // an empty list is one
	} {
		var out, errs bytes.Buffer
		status := Run(context.Background(), tree(nil), strings.Fields(args), &Writer{W: &out}, &errs)
		if want == "" {
			continue
		}
		line, rest, _ := strings.Cut(errs.String(), "\n")
		if status != 2 || line != "prog: "+want || !strings.HasPrefix(rest, "Run 'prog") || !strings.HasSuffix(rest, " --help' for usage.\n") {
			t.Errorf("%s: status %d, %q, want %q", args, status, errs.String(), want)
		}
	}
}

// TestStatus: how a verb ends is the program's status, and a message of one line.
func TestStatus(t *testing.T) {
	ended, end := context.WithCancel(context.Background())
	end()
	for _, c := range []struct {
		ctx    context.Context
		err    error
		status int
		text   string
	}{
		{context.Background(), nil, 0, ""},
		{context.Background(), errors.New("no file"), 1, "prog: no file\n"},
		{context.Background(), errors.Join(errors.New("one"), errors.New("two")), 1, "prog: one; two\n"},
		{context.Background(), fmt.Errorf("x: %w", &Exit{3, errors.New("three")}), 3, "prog: three\n"},
		{context.Background(), &Exit{Status: 7}, 7, ""},
		{context.Background(), context.Canceled, 1, "prog: context canceled\n"},
		{ended, context.Canceled, 130, "prog: interrupted\n"},
		{ended, nil, 0, ""},
	} {
		var out, errs bytes.Buffer
		if status := Run(c.ctx, tree(c.err), []string{"walk"}, &Writer{W: &out}, &errs); status != c.status || errs.String() != c.text || out.String() != "walked" {
			t.Errorf("%v: status %d, %q, %q; want %d, %q", c.err, status, out.String(), errs.String(), c.status, c.text)
		}
	}
	var errs bytes.Buffer
	if status := Run(context.Background(), tree(nil), []string{"walk"}, &Writer{W: full{}}, &errs); status != 1 || errs.String() != "prog: disk full\n" {
		t.Errorf("nothing can be written: status %d, %q", status, errs.String())
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// TestSetup: the help lists all verbs in their groups, and without a verb the program shows it.
func TestSetup(t *testing.T) {
	var out, errs bytes.Buffer
	if status := Run(context.Background(), tree(nil), nil, &Writer{W: &out}, &errs); status != 2 {
		t.Errorf("without a verb: status %d", status)
	}
	text := out.String()
	at := func(s string) int { return strings.Index(text, s) }
	if !(at("Moves:") >= 0 && at("Moves:") < at("  walk ") && at("  walk ") < at("Rest:") && at("Rest:") < at("  copy ") && at("Rest:") < at("  completion ")) {
		t.Errorf("help:\n%s", text)
	}
	var names []string
	stop := errors.New("stop")
	if err := EachVerb(tree(nil), func(c *cobra.Command) error { names = append(names, c.CommandPath()); return nil }); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"prog", "prog walk", "prog copy", "prog completion", "prog completion bash"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is none of %q", want, names)
		}
	}
	if err := EachVerb(tree(nil), func(*cobra.Command) error { return stop }); err != stop {
		t.Errorf("%v, want %v", err, stop)
	}
}

func TestMessage(t *testing.T) {
	a, b := errors.New("a"), errors.New("b\nc")
	for want, err := range map[string]error{
		"a": a, "a; b\nc": errors.Join(a, b), "x: a\nb\nc": fmt.Errorf("x: %w", errors.Join(a, b)), "a; a; a": errors.Join(a, errors.Join(a, a)),
	} {
		if got := message(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
