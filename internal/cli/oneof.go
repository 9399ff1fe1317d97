package cli

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/printable"
)

// OneOf adds a flag that takes one of names, which shells complete. *p is its default, which may be empty.
func OneOf(c *cobra.Command, p *string, flag, help string, names ...string) {
	c.Flags().Var(&oneOf{p, names}, flag, help)
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// A oneOf is the value of such a flag (pflag.Value).
type oneOf struct {
	p     *string
	names []string
}

func (o *oneOf) Type() string { return "string" }

func (o *oneOf) String() string {
	if o.p == nil {
		return ""
	}
	return *o.p
}

func (o *oneOf) Set(s string) error {
	if !slices.Contains(o.names, s) {
		return fmt.Errorf("%s", o.is())
	}
	*o.p = s
	return nil
}

// is says what the flag can be.
func (o *oneOf) is() string { return "is " + printable.Either(o.names) }

// Regexp reads the value of a flag that is a regular expression; "" is nil.
func Regexp(flag, s string) (*regexp.Regexp, error) {
	if s == "" {
		return nil, nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, Usage("%s: %v", flag, err)
	}
	return re, nil
}
