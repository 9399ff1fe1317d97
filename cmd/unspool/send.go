package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/modules"
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
	seen := map[string]bool{}
	for _, text := range s.labels {
		l, err := export.ParseLabel(text)
		if err != nil {
			return usage("--label: %w", err)
		}
		if seen[l.Name] {
			return usage("--label: %s is given twice", l.Name)
		}
		seen[l.Name] = true
		s.known = append(s.known, l)
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
	b, err := export.NewBatch(p, s.known, time.Now())
	if err != nil {
		return err
	}
	var failed []string
	for i, t := range s.targets {
		q, err := t.Encode(b)
		if err != nil {
			return err
		}
		r, err := t.Send(ctx, q)
		if err != nil {
			fmt.Fprintf(stderr, "unspool: %s: %v\n", t, err)
			failed = append(failed, "--to "+quoted(s.to[i]))
			continue
		}
		where := ""
		if q.Query != "" {
			where = "; look there for " + q.Query
		}
		fmt.Fprintf(stderr, "unspool: %s: sent %s, %s%s\n", t, profile.Count(p.Totals.Samples, "sample", "samples"), profile.Bytes(int64(r.Bytes)), where)
		if r.Note != "" {
			fmt.Fprintf(stderr, "unspool: %s: the server says: %s\n", t, r.Note)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	if path == "-" {
		return errors.New("not all was sent")
	}
	again := "unspool report " + strings.Join(failed, " ")
	for _, l := range s.labels {
		again += " --label " + quoted(l)
	}
	if s.opts.CA != "" {
		again += " --ca " + quoted(s.opts.CA)
	}
	if s.opts.TokenFile != "" {
		again += " --token-file " + quoted(s.opts.TokenFile)
	}
	return fmt.Errorf("not all was sent; %s has it: %s %s", path, again, quoted(path))
}

// quoted returns s as a word of a shell.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:=@%+,", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// sendReport reads a recording and sends it.
func sendReport(ctx context.Context, path string, o *output, flt *filter, mods *modules.Set, to *sending) error {
	p, err := readProfile(ctx, path, o, flt, mods)
	if err != nil {
		return err
	}
	return to.send(ctx, p, path)
}
