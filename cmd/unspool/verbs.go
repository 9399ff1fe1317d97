package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// groups are the verbs as the help lists them.
var groups = []struct {
	title string
	verbs []string
}{
	{"Profile", []string{"record", "report", "serve", "diff", "top", "doctor"}},
	{"Stacks of processes and cores", []string{"stack"}},
	{"Unwind tables, and other programs that use them", []string{"dump", "verify", "stats", "compile", "unwind", "run"}},
	{"This program", []string{"help", "version", "man", "completion"}},
}

// grouped gives each verb its group.
func grouped(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, c := range root.Commands() {
			if slices.Contains(g.verbs, c.Name()) {
				c.GroupID = g.title
			}
		}
	}
	for _, c := range root.Commands() {
		if c.Name() != "help" {
			continue
		}
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

// recordings are the arguments of a verb that reads recordings: those that record writes where none is named.
func recordings(args []string, names ...string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	for _, n := range names {
		if _, err := os.Stat(n); err != nil {
			return nil, usage("name a recording: there is no %s here", n)
		}
	}
	return names, nil
}

// none or n arguments.
func noneOr(n int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 0 && len(args) != n {
			return fmt.Errorf("%d arguments", len(args))
		}
		return nil
	}
}
