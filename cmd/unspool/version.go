package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/source/ebpf"
)

// versionCmd is the version as a verb, beside --version.
func versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version, the commit where the build knows it, and what is inside: the machines whose stacks can be walked, the
program for the kernel, the version of compiled tables, and the library of unspool run.`,
		Example: "  unspool version",
		Args:    cobra.NoArgs,
		Run:     func(*cobra.Command, []string) { fmt.Fprint(stdout, about()) },
	}
}

// about is the version and what is inside.
func about() string {
	var walks []string
	for _, m := range arch.Machines() {
		walks = append(walks, m.Name)
	}
	kernel := "BPF program for " + ebpf.Machine.Name
	if ebpf.Machine.Name == "" {
		kernel = "no BPF program for this machine"
	}
	dropin, err := doctor.FindDropin("")
	if err != nil {
		dropin = err.Error()
	}
	return cli.About("unspool", [2]string{"walks", strings.Join(walks, ", ")}, [2]string{"kernel", kernel},
		[2]string{"tables", fmt.Sprint("version ", compact.Version)}, [2]string{"drop-in", dropin})
}
