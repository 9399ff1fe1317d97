package main

import (
	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
)

func manCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write manual pages",
		Long:    "Write a manual page for unspool and each of its verbs into a directory, for man(1).",
		Example: "  unspool man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE:    func(c *cobra.Command, args []string) error { return cli.WritePages(c.Root(), args[0]) },
	}
}
