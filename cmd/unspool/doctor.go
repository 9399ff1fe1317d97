package main

import (
	"encoding/json"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/doctor"
)

func doctorCmd() *cobra.Command {
	asJSON, quick := false, false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this kernel and this user allow, and what to change",
		Long: `Try each way of working: recording by copies of stacks, in user space, with the kernel's part and of the whole
machine; recording with stacks walked in the kernel; names of kernel functions; unspool run. Each line says yes or no, why
not, and what to change, or ? for what this user cannot find out.

Where the kernel may walk, its program is loaded and follows the whole machine for a second: what it takes is measured.

The exit status is 0, or 1 if nothing at all can be recorded.`,
		Example: "  unspool doctor\n  sudo unspool doctor",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d := doctor.Diagnose(doctor.Options{Version: version(), Runtime: func() error { _, err := findRuntime(""); return err }})
			if !quick && d.Way("record-ebpf").OK {
				m, err := doctor.Measure(c.Context())
				if err != nil {
					return err
				}
				d.Measured = m
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				if err := e.Encode(d); err != nil {
					return err
				}
			} else if err := d.Write(os.Stdout); err != nil {
				return err
			}
			if d.Records() {
				return nil
			}
			return &exitError{1, errors.New("nothing can be recorded here")}
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&quick, "quick", false, "do not measure")
	return c
}
