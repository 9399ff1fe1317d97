package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
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
			return cli.EachVerb(c.Root(), func(c *cobra.Command) error {
				return outfile.WriteFile(filepath.Join(args[0], cli.PageName(c)+".1"), []byte(cli.Page(c)), outfile.Options{})
			})
		},
	}
}
