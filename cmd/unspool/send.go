package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// A sending is the engines that a recording is sent to; its flags are shared by record and report.
type sending struct {
	to, labels []string
	opts       export.Options

	targets []*agent.Target
	known   []export.Label
}

func (s *sending) flags(c *cobra.Command) {
	s.server(c, "to", "send the recording to an engine")
}

// server adds a flag that names engines, and those that belong to it.
func (s *sending) server(c *cobra.Command, flag, what string) {
	f := c.Flags()
	f.StringArrayVar(&s.to, flag, nil, what+": KIND=URL, where KIND is "+printable.Either(agent.Kinds())+"; may be repeated")
	f.StringArrayVar(&s.labels, "label", nil, "--"+flag+": a label of what is sent, name=value; may be repeated")
	f.StringVar(&s.opts.CA, "ca", "", "--"+flag+": a file of certificates to trust in place of the system's")
	f.StringVar(&s.opts.TokenFile, "token-file", "", "--"+flag+": a file with the token that the engine asks for")
	var kinds []string
	for _, k := range agent.Kinds() {
		kinds = append(kinds, k+"=")
	}
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoSpace|cobra.ShellCompDirectiveNoFileComp))
	c.RegisterFlagCompletionFunc("label", cobra.NoFileCompletions)
}

// check reads the flags. Nothing is sent yet.
func (s *sending) check() error {
	if len(s.to) == 0 {
		if len(s.labels) > 0 || s.opts.CA != "" || s.opts.TokenFile != "" {
			return usage("--label, --ca and --token-file are for --to")
		}
		return nil
	}
	return s.read("--to")
}

// read reads labels and engines, which a flag names.
func (s *sending) read(flag string) error {
	var err error
	if s.known, err = export.ParseLabels(s.labels); err != nil {
		return usage("--label: %w", err)
	}
	for _, to := range s.to {
		t, err := agent.Open(to, s.opts)
		if err != nil {
			return usage("%s: %w", flag, err)
		}
		s.targets = append(s.targets, t)
	}
	return nil
}

// send sends a profile to each engine, and says what became of it. path is the file that has it, and stays.
func (s *sending) send(ctx context.Context, p *profile.Profile, path string) error {
	if len(s.targets) == 0 {
		return nil
	}
	failed, err := agent.Send(ctx, s.targets, p, s.known, func(line string) { say([]string{line}) })
	if err != nil || len(failed) == 0 {
		return err
	}
	if path == "-" {
		return errors.New("not all was sent")
	}
	again := []string{"unspool", "report"}
	for _, i := range failed {
		again = append(again, "--to", s.to[i])
	}
	for _, l := range s.labels {
		again = append(again, "--label", l)
	}
	if s.opts.CA != "" {
		again = append(again, "--ca", s.opts.CA)
	}
	if s.opts.TokenFile != "" {
		again = append(again, "--token-file", s.opts.TokenFile)
	}
	return fmt.Errorf("not all was sent; %s has it: %s", path, cli.Quoted(append(again, path)))
}
