package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unspool/unspool/internal/printable"
)

// flagError says in words what is wrong with a flag.
func flagError(c *cobra.Command, err error, values map[string]string) error {
	var value *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	var said *Exit
	switch {
	case errors.As(err, &said): // by Var
		return said
	case errors.As(err, &value) && value.GetFlag().Value.Type() == "string":
		return Usage("--%s %w, not %q", value.GetFlag().Name, errors.Unwrap(value), value.GetValue())
	case errors.As(err, &value):
		return Usage("%s, not %q", takes(value.GetFlag(), values), value.GetValue())
	case errors.As(err, &missing):
		return Usage("%s: give it a value", takes(missing.GetFlag(), values))
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return Usage("unknown flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &unknown):
		return Usage("unknown flag --%s%s", unknown.GetSpecifiedName(), didYouMean(nearFlags(c, unknown.GetSpecifiedName())))
	}
	return Usage("%v", err)
}

// takes says what values a flag takes.
func takes(f *pflag.Flag, values map[string]string) string {
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand
	}
	kind := f.Value.Type()
	what := values[f.Name+" "+kind]
	if what == "" {
		switch kind {
		case "int", "int64", "uint", "uint32", "uint64":
			what = "a number such as 10"
		case "intSlice":
			what = "numbers such as 12,34"
		case "bool":
			what = "true or false"
		default:
			what = "a value"
		}
	}
	return name + " takes " + what
}

// argsError says in words that there are too few or too many arguments.
func argsError(c *cobra.Command, check cobra.PositionalArgs, args []string) error {
	more := slices.Clone(args)
	for range 3 {
		if more = append(more, "x"); check(c, more) == nil {
			return Usage("an argument is missing: %s", c.UseLine())
		}
	}
	return Usage("too many arguments: %s", c.UseLine())
}

// unknownCommand is the error of a verb that there is not.
func unknownCommand(root *cobra.Command, name string) error {
	return Usage("unknown command %q%s", name, didYouMean(root.SuggestionsFor(name)))
}

// didYouMean offers what is like a word, or is empty.
func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", printable.Either(names[:min(len(names), 3)]))
}

// nearFlags returns the flags of c that are like name.
func nearFlags(c *cobra.Command, name string) (near []string) {
	// What cobra says of commands, said of flags.
	list := &cobra.Command{SuggestionsMinimumDistance: 2}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			list.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	for _, s := range list.SuggestionsFor(name) {
		near = append(near, "--"+s)
	}
	return near
}

// NoneOr accepts no arguments, or n.
func NoneOr(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 0 && len(args) != n {
			return fmt.Errorf("%d arguments", len(args))
		}
		return nil
	}
}

// Refuse returns an error that begins with the first of some flags that is given, and says why it may not be: "needs --run".
func Refuse(c *cobra.Command, flags []string, format string, args ...any) error {
	for _, name := range flags {
		if c.Flags().Changed(name) {
			return Usage("--%s %s", name, fmt.Sprintf(format, args...))
		}
	}
	return nil
}
