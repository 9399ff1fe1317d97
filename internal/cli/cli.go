// Package cli has what the command line of every verb has in common: exit statuses, what is said of wrong usage, groups of verbs in the help,
// manual pages, flags in configuration files, and how much memory a command holds. What a verb does, and what its flags are, it does not know.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// An Exit ends the program with a status and, where it has one, a message.
type Exit struct {
	Status int
	Err    error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Status)
	}
	return e.Err.Error()
}
func (e *Exit) Unwrap() error { return e.Err }

// Usage returns the error of wrong usage: exit status 2.
func Usage(format string, args ...any) error { return &Exit{2, fmt.Errorf(format, args...)} }

// A Writer keeps its first error.
type Writer struct {
	W   io.Writer
	Err error
}

func (w *Writer) Write(b []byte) (int, error) {
	n, err := w.W.Write(b)
	if w.Err == nil {
		w.Err = err
	}
	return n, err
}

// Stderr returns standard error by another descriptor. Go ends a program that writes to descriptor 2 when its reader has gone: what it records is
// worth more than messages.
func Stderr() io.Writer {
	fd, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return os.Stderr
	}
	return os.NewFile(uintptr(fd), os.Stderr.Name())
}

// Run runs the verb that args name and returns the exit status. Messages go to stderr, one a Write. What could not be written to stdout is an error
// of the verb. A verb that ends with ctx was interrupted.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout *Writer, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetErr(stderr)
	root.SetOut(stdout)
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = stdout.Err
	}
	if err == nil {
		return 0
	}
	var exit *Exit
	switch {
	case errors.As(err, &exit):
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		exit = &Exit{130, errors.New("interrupted")}
	default:
		exit = &Exit{1, err}
	}
	if exit.Err != nil {
		fmt.Fprintf(stderr, "%s: %s\n", root.Name(), message(exit.Err))
	}
	if exit.Status == 2 {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", c.CommandPath())
	}
	return exit.Status
}

// message is an error in a line. Errors that were joined come one after the other.
func message(err error) string {
	if many, ok := err.(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
		var parts []string
		for _, e := range many.Unwrap() {
			parts = append(parts, message(e))
		}
		if len(parts) > 0 && err.Error() == errors.Join(many.Unwrap()...).Error() {
			return strings.Join(parts, "; ")
		}
	}
	return err.Error()
}

// A Group is a part of the list of verbs in the help.
type Group struct {
	Title string
	Verbs []string
}

// Setup gives a command with all its verbs the verbs that cobra makes, its groups, and words for wrong usage. Without a verb it shows its help. values
// say what a flag takes that its type does not say, by the flag's name and type: "pid int".
func Setup(root *cobra.Command, groups []Group, values map[string]string) {
	root.SilenceUsage, root.SilenceErrors, root.SuggestionsMinimumDistance = true, true, 2
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(c, err, values) })
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.Title, Title: g.Title + ":"})
		for _, c := range root.Commands() {
			if slices.Contains(g.Verbs, c.Name()) {
				c.GroupID = g.Title
			}
		}
	}
	for _, c := range root.Commands() {
		if args := c.Args; args != nil {
			c.Args = func(c *cobra.Command, a []string) error {
				if args(c, a) != nil {
					return argsError(c, args, a)
				}
				return nil
			}
		}
		if c.Name() == "help" {
			help := c.Run
			c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
				if _, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknownCommand(root, strings.Join(args, " "))
				}
				help(c, args)
				return nil
			}
		}
	}
	root.Args = func(_ *cobra.Command, a []string) error {
		if len(a) > 0 {
			return unknownCommand(root, a[0])
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error {
		c.Help()
		return &Exit{Status: 2}
	}
}

// EachVerb calls f with a command and those below it that users see.
func EachVerb(c *cobra.Command, f func(*cobra.Command) error) error {
	if err := f(c); err != nil {
		return err
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			if err := EachVerb(sub, f); err != nil {
				return err
			}
		}
	}
	return nil
}
