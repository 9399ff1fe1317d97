package main

import (
	"encoding/json"
	"errors"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/cli"
)

func doctorCmd() *cobra.Command {
	asJSON, quick, rights := false, false, false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this kernel and this user allow, and what to change",
		Long: `Try each way of working: recording by copies of stacks (user space, with the kernel's frames, the whole machine),
recording with stacks walked in the kernel, names of kernel functions, unspool run. Each line answers yes, or no with
the reason and the setting to change. ? means that this user cannot find out.

If the kernel can walk stacks, doctor records the whole machine for a second and measures the cost.

With --agent, doctor lists the capabilities that unspool agent starts with as another user than root, and says which
it keeps.

The exit status is 0, or 1 if nothing can be recorded.`,
		Example: "  unspool doctor\n  sudo unspool doctor\n  unspool doctor --agent",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case rights && asJSON:
				return writeJSON(caps.Agent())
			case rights:
				return doctor.WriteRights(stdout, caps.Agent())
			}
			d := doctor.Diagnose(cli.Version())
			if !quick && d.Way("record-ebpf").OK {
				m, err := doctor.Measure(c.Context())
				if err != nil {
					return err
				}
				d.Measured = m
			}
			var err error
			if asJSON {
				err = writeJSON(d)
			} else {
				err = d.Write(stdout)
			}
			if err != nil {
				return err
			}
			if d.Records() {
				return nil
			}
			return &cli.Exit{Status: 1, Err: errors.New("nothing can be recorded here")}
		},
	}
	c.Flags().BoolVar(&rights, "agent", false, "list the capabilities of unspool agent")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&quick, "quick", false, "do not measure")
	return c
}

func writeJSON(v any) error {
	e := json.NewEncoder(stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
