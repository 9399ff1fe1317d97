package main

import (
	"github.com/spf13/cobra"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/internal/printable"
)

// A sending is an agent.Sending with its flags, which record and report share.
type sending struct{ agent.Sending }

func (s *sending) flags(c *cobra.Command) {
	s.server(c, "to", "send the recording to an engine")
}

// server adds a flag that names engines, and those that belong to it.
func (s *sending) server(c *cobra.Command, flag, what string) {
	f := c.Flags()
	f.StringArrayVar(&s.To, flag, nil, what+": KIND=URL, where KIND is "+printable.Either(agent.Kinds())+"; may be repeated")
	f.StringArrayVar(&s.Label, "label", nil, "--"+flag+": a label of what is sent, name=value; may be repeated")
	f.StringVar(&s.CA, "ca", "", "--"+flag+": a file of certificates to trust in place of the system's")
	f.StringVar(&s.TokenFile, "token-file", "", "--"+flag+": a file with the token that the engine asks for")
	var kinds []string
	for _, k := range agent.Kinds() {
		kinds = append(kinds, k+"=")
	}
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("label", cobra.NoFileCompletions)
}

// check reads the flags. Nothing is sent yet.
func (s *sending) check() error {
	if len(s.To) == 0 {
		if len(s.Label) > 0 || s.CA != "" || s.TokenFile != "" {
			return usage("--label, --ca and --token-file are for --to")
		}
		return nil
	}
	return wrong(s.Read("to"))
}
