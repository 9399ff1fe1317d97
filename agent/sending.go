package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
)

// A Sending is what a command line says of engines.
type Sending struct {
	To             []string // KIND=URL, as Open takes it
	Label          []string // name=value, of all that is sent
	export.Options          // of all engines

	Targets []*Target      // after Read
	Known   []export.Label // after Read
}

// Read reads To and Label. Errors call settings by the names of the command's flags; flag is that of To.
func (s *Sending) Read(flag string) (err error) {
	if s.Known, err = export.ParseLabels(s.Label); err != nil {
		return fmt.Errorf("--label: %w", err)
	}
	for _, to := range s.To {
		t, err := Open(to, s.Options)
		if err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
		if slices.ContainsFunc(s.Targets, func(o *Target) bool { return o.String() == t.String() }) {
			return fmt.Errorf("--%s: %s is given twice", flag, t)
		}
		s.Targets = append(s.Targets, t)
	}
	return nil
}

// Send sends a profile to each engine, once, and calls say with what became of it. path is the file that has the profile, or "-": the error says how it can be
// sent again to those that have not taken it.
func (s *Sending) Send(ctx context.Context, p *profile.Profile, path string, say func(line string)) error {
	failed, err := send(ctx, s.Targets, p, s.Known, say)
	if err != nil || len(failed) == 0 {
		return err
	}
	if path == "-" {
		return errors.New("not all was sent")
	}
	return fmt.Errorf("not all was sent; %s has it: %s", path, cli.Quoted(s.again(failed, path)))
}

// again is the command that sends a file to the engines with these indices.
func (s *Sending) again(failed []int, path string) []string {
	out := []string{"unspool", "report"}
	for _, i := range failed {
		out = append(out, "--to", s.To[i])
	}
	for _, l := range s.Label {
		out = append(out, "--label", l)
	}
	if s.CA != "" {
		out = append(out, "--ca", s.CA)
	}
	if s.TokenFile != "" {
		out = append(out, "--token-file", s.TokenFile)
	}
	return append(out, path)
}
