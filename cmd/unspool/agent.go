package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/daemon"
	"github.com/unspool/unspool/agent/kubelet"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/names"
)

const (
	leastInterval = time.Second     // of profiles that are sent
	pageTime      = 5 * time.Minute // that the agent's page shows
)

// An agentRun is the flags of agent.
type agentRun struct {
	plan
	sending
	daemon.Options
	relabel []string
	kubelet kubelet.Options
	logs    string
	plain   bool
	config  *cli.Config
}

func agentCmd() *cobra.Command {
	c, _ := newAgent()
	return c
}

func newAgent() (*cobra.Command, *agentRun) {
	a := agentRun{logs: "text"}
	c := &cobra.Command{
		Use:   "agent [flags] [-- COMMAND [ARG...]]",
		Short: "Profile the machine all the time, and send the profiles to an engine",
		Long: `Profile the whole machine, processes (-p), or a command, until a signal ends it. After each interval, the agent makes
a profile for each place where samples were taken: a systemd service, a container, or a command. It sends them, with
the names of functions and inlined calls, to each --output:

  parca=http://HOST:7070          Parca; with ?names=upload it names code itself, and is sent the files with names
  pyroscope=http://HOST:4040      Grafana Pyroscope; ?names=upload, too
  otlp=http://HOST:4318           an OpenTelemetry collector; otlp=grpc://HOST:4317 by gRPC
  files=DIR?size=1G&age=168h      pprof files in a directory, of which the oldest go

With --off-cpu, each place has a second profile, of the time that its threads waited. Of the waits shorter than
--off-cpu-threshold, the agent records a random sample, weighted so that sums stay right on average.

Each profile has the labels service_name, node, kernel, cgroup, unit, container_id, container, image and pod_uid, as far
as they are known, and those of --label. --kubelet adds the names of pods, their containers and workloads. A process may
name its service itself, through OpenTelemetry's process context. If a --relabel rule reads uid, user, comm, executable
or executable_build_id (with --command-lines: cmdline, too), processes with different values get separate profiles.

Where an engine is away or busy, profiles wait in --queue bytes of memory; when these are full, the oldest go, and
are counted. http://ADDRESS/metrics, /healthz and /readyz say how the agent does; --listen is their address. A page
there shows the last minutes as unspool serve does, to those who open the address with its token, which the agent logs.

Each flag can be a line of the file that --config names, in TOML (output = ["otlp=http://127.0.0.1:4318"]), or an
environment variable (UNSPOOL_AGENT_OUTPUT; a list has its values between blanks, one a line, or as a JSON array). The
command line overrides the environment, and the environment overrides the file. --print-config prints the settings in
effect, and the defaults. On SIGHUP, an agent with a file reads the file again: outputs, labels, rules, --command-lines,
--ca, --token-file, the interval and the queue change at once; all other settings change when the agent starts again.`,
		Example: `  unspool agent --output pyroscope=http://127.0.0.1:4040
  unspool agent --output otlp=grpc://collector:4317 --label region=north --interval 30s
  unspool agent --output files=/var/lib/unspool -F 49 --comm '^nginx'
  unspool agent --config /etc/unspool/agent.toml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			a.Hangups = a.config.Hangups() // one that comes while the recording begins is for later
			if err := a.config.Read(); err != nil {
				return err
			}
			if a.config.Show {
				return a.config.Write(stdout)
			}
			a.Command = args
			if len(args) == 0 && len(a.PIDs) == 0 {
				a.All = true
			}
			if err := a.config.Attribute(a.check()); err != nil {
				return err
			}
			var h slog.Handler = slog.NewTextHandler(stderr, nil)
			if a.logs == "json" {
				h = slog.NewJSONHandler(stderr, nil)
			}
			a.Log = slog.New(h)
			return a.config.Attribute(exitStatus(daemon.Run(c.Context(), a.Options)))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	a.plan.flags(c)
	f.Lookup("frequency").Usage, f.Lookup("frequency").DefValue = "samples a second on each processor", fmt.Sprint(daemon.Frequency)
	f.Lookup("off-cpu").Usage = "record the time threads are blocked, too, as profiles of their own; -e off-cpu: only that; only with --source ebpf (root)"
	f.Lookup("off-cpu-threshold").Usage += "; 1ns: all waits"
	f.Lookup("off-cpu-threshold").DefValue = daemon.WaitThreshold.String()
	a.sending.server(c, "output", "where profiles go")
	cli.Var(c, &a.Interval, "interval", "10s", "send profiles of this time each", cli.Duration)
	f.StringArrayVar(&a.relabel, "relabel", nil, "a rule that changes labels or drops profiles, as Prometheus' relabel_config, in JSON; may be repeated")
	f.BoolVar(&a.CommandLines, "command-lines", false, "let rules read command lines, the label cmdline: they may hold secrets, and are sent where a rule reads them")
	cli.Var(c, &a.Queue, "queue", "16M", "memory for profiles that wait to be sent, for each output", cli.Size)
	f.StringVar(&a.kubelet.Address, "kubelet", "", "ask this kubelet for the names of pods: https://HOST:10250, http://127.0.0.1:10255, or HOST")
	f.StringVar(&a.kubelet.CA, "kubelet-ca", kubelet.Account+"ca.crt", "certificates that the kubelet's is checked by")
	f.StringVar(&a.kubelet.TokenFile, "kubelet-token-file", kubelet.Account+"token", "a file with the token for the kubelet")
	f.BoolVar(&a.kubelet.Insecure, "kubelet-insecure", false, "do not check the kubelet's certificate")
	f.BoolVar(&a.Self, "process-context", true, "use the service names that processes publish by OpenTelemetry's process context")
	cli.Var(c, &a.Listen, "listen", "127.0.0.1:9797", "address and port of /metrics, /healthz and /readyz; empty: none", cli.AddressOrNone)
	cli.Var(c, &a.Page, "page", pageTime.String(), "how much time the page at --listen shows; 0: no page. If given, the page is served to other machines, too", cli.DurationOr0)
	cli.Var(c, &a.MaxCPU, "max-cpu", "", "use at most so much of one processor, such as 1%: above it, fewer events take samples, each of more weight, and --off-cpu-threshold rises", cli.Percent)
	cli.Var(c, &a.MaxMemory, "max-memory", "", "use at most this much memory, such as 64M, the kernel's tables and rings included; below 256M, there are no lines, no inlined calls and no page", cli.Size)
	a.config = cli.NewConfig(c, "UNSPOOL_AGENT")
	cli.OneOf(c, &a.logs, "log-format", "how messages are written: text, json", "text", "json")
	sourceFlag(c, &a.plain)
	return c, &a
}

func (a *agentRun) check() error {
	if err := a.checkSettings(); err != nil {
		return err
	}
	daemon.Defaults(&a.Plan, a.given)
	if err := a.plan.check("compact", &a.Filter); err != nil {
		return err
	}
	if a.Page > time.Hour {
		return usage("--page shows an hour at most")
	}
	if a.kubelet.Address != "" {
		var err error
		if a.Pods, err = kubelet.New(a.kubelet); err != nil {
			return usage("--kubelet: %w", err)
		}
	}
	a.Record, a.Target = a.plan.Open, a.plan.Target()
	a.Namer = func(o names.Options) *names.Namer { return newNamer(o, a.plain) }
	a.Options.Threshold = a.InKernel.Threshold
	a.ShowPage, a.Kubelet, a.Config, a.Again = a.given("page"), a.kubelet.Address, a.config.Path(), a.again
	return nil
}

// checkSettings reads the flags that can change while the agent runs.
func (a *agentRun) checkSettings() error {
	if len(a.To) == 0 {
		return usage("name an engine with --output, such as --output pyroscope=http://127.0.0.1:4040, or files=DIR")
	}
	if err := wrong(a.Read("output")); err != nil {
		return err
	}
	a.Outputs, a.Labels = a.Targets, a.Known
	if a.Interval < leastInterval || a.Interval > time.Hour {
		return usage("--interval is %v to an hour", leastInterval)
	}
	var err error
	if a.Rules, err = agent.ParseRules(a.relabel, a.CommandLines); err != nil {
		return usage("--relabel: %w", err)
	}
	return nil
}

// reloadable are the flags that checkSettings reads.
var reloadable = []string{"output", "label", "ca", "token-file", "interval", "queue", "relabel", "command-lines"}

// again reads the configuration once more, as an agent would that starts now with the same command line.
func (a *agentRun) again() (daemon.Changeable, []string, error) {
	_, b := newAgent()
	err := b.config.ReadAs(a.config)
	if err == nil {
		err = b.config.Attribute(b.checkSettings())
	}
	return b.Changeable, a.config.Differing(b.config, reloadable), err
}
