package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/manpage"
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
			return eachVerb(c.Root(), func(c *cobra.Command) error {
				return outfile.WriteFile(filepath.Join(args[0], manpage.Name(c)+".1"), []byte(manpage.Page(c, version())))
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
