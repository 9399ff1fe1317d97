package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/containers"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/kubelet"
	"github.com/unspool/unspool/agent/otelctx"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/serve"
	"github.com/unspool/unspool/source/perfevent"
)

const (
	agentFrequency = 19               // Hz: out of step with what runs ten or twenty times a second
	agentFiles     = 32 << 20         // bytes of unwind tables and symbol tables, beside what was used in the last seconds
	leastInterval  = time.Second      // of profiles that are sent
	lastWords      = 5 * time.Second  // for what is still to be sent at the end
	maxConfig      = 1 << 20          // bytes of a configuration
	pageTime       = 5 * time.Minute  // that the agent's page shows
	slowClient     = 10 * time.Second // for a request to the agent's pages
)

// An agentRun is the flags of agent.
type agentRun struct {
	plan
	sending
	flt                  filter
	every, queue, shows  string
	page                 time.Duration // 0: there is none
	interval             time.Duration
	relabel              []string
	rules                []*agent.Rule
	kubelet              kubelet.Options
	pods                 *kubelet.Pods // of the kubelet; nil: it is not asked
	self                 bool          // use what processes say of themselves
	room                 uint64
	listen, config, logs string
	plain, show          bool
}

func agentCmd() *cobra.Command {
	c, _ := newAgent()
	return c
}

func newAgent() (*cobra.Command, *agentRun) {
	var a agentRun
	c := &cobra.Command{
		Use:   "agent [flags] [-- COMMAND [ARG...]]",
		Short: "Profile the machine all the time, and send the profiles to an engine",
		Long: `Profile the whole machine, processes (-p), or a command, until a signal ends it. After each interval, the agent makes
a profile for each place where samples were taken: a systemd service, a container, or a command. It sends them, with
the names of functions and inlined calls, to each --output:

  parca=http://HOST:7070          Parca
  pyroscope=http://HOST:4040      Grafana Pyroscope
  otlp=http://HOST:4318           an OpenTelemetry collector; otlp=grpc://HOST:4317 by gRPC
  files=DIR?size=1G&age=168h      pprof files in a directory, of which the oldest go

Each profile has the labels service_name, node, cgroup, unit, container_id, container, image and pod_uid, as far as they
are known, and those of --label. --kubelet adds the names of pods, their containers and workloads. A process may name
its service itself, by OpenTelemetry's process context. Command lines are not sent.

Where an engine is away or busy, profiles wait in --queue bytes of memory; when these are full, the oldest go, and
are counted. http://ADDRESS/metrics, /healthz and /readyz say how the agent does; --listen is their address. A page
there shows the last minutes as unspool serve does, to those who open the address with its token, which the agent logs.

Each flag can be a line of the file that --config names, in TOML (output = ["otlp=http://127.0.0.1:4318"]), or an
environment variable (UNSPOOL_AGENT_OUTPUT; lists are separated by spaces). The command line comes first, then the
environment, then the file. --print-config prints what holds. An agent with a file reads it again on SIGHUP: outputs,
labels, rules, the interval and the queue change at once; the rest changes when the agent starts again.`,
		Example: `  unspool agent --output pyroscope=http://127.0.0.1:4040
  unspool agent --output otlp=grpc://collector:4317 --label region=north --interval 30s
  unspool agent --output files=/var/lib/unspool -F 49 --comm '^nginx'
  unspool agent --config /etc/unspool/agent.toml`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			given := changed(c)
			a.config = cmp.Or(a.config, os.Getenv(variable("config")))
			if err := configure(c, a.config); err != nil {
				return err
			}
			if a.show {
				return toml.NewEncoder(stdout).Encode(configured(c))
			}
			a.Command = args
			if len(args) == 0 && len(a.PIDs) == 0 {
				a.All = true
			}
			if err := a.check(); err != nil {
				return err
			}
			return a.run(c.Context(), given, configured(c))
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is the command's
	a.plan.flags(c)
	a.sending.server(c, "output", "where profiles go")
	f.StringVar(&a.every, "interval", "10s", "send profiles of this time each")
	f.StringArrayVar(&a.relabel, "relabel", nil, "a rule that changes labels or drops profiles, as Prometheus' relabel_config, in JSON; may be repeated")
	f.StringVar(&a.queue, "queue", "16M", "memory for what an output does not take at once, for each")
	f.StringVar(&a.kubelet.Address, "kubelet", "", "ask this kubelet for the names of pods: https://HOST:10250, http://127.0.0.1:10255, or HOST")
	f.StringVar(&a.kubelet.CA, "kubelet-ca", kubelet.Account+"ca.crt", "certificates that the kubelet's is checked by")
	f.StringVar(&a.kubelet.TokenFile, "kubelet-token-file", kubelet.Account+"token", "a file with the token for the kubelet")
	f.BoolVar(&a.kubelet.Insecure, "kubelet-insecure", false, "do not check the kubelet's certificate")
	f.BoolVar(&a.self, "process-context", true, "use the service names that processes publish by OpenTelemetry's process context")
	f.StringVar(&a.listen, "listen", "127.0.0.1:9797", "address and port of /metrics, /healthz and /readyz; empty: none")
	f.StringVar(&a.shows, "page", pageTime.String(), "the last so much time is on the page at the address of --listen; 0: no page; also if others than this machine reach the address, if given")
	f.StringVar(&a.config, "config", "", "a file with flags, in TOML")
	c.MarkFlagFilename("config", "toml")
	f.BoolVar(&a.show, "print-config", false, "print the configuration, and end")
	cli.OneOf(c, &a.logs, "log-format", "how messages are written (first): text, json", "text", "json")
	sourceFlag(c, &a.plain)
	return c, &a
}

// changed returns the flags that are set.
func changed(c *cobra.Command) (out []*pflag.Flag) {
	c.Flags().Visit(func(f *pflag.Flag) { out = append(out, f) })
	return out
}

// again reads the configuration once more, as an agent would that starts now with these flags on its command line.
func (a *agentRun) again(given []*pflag.Flag) (*agentRun, map[string]any, error) {
	c, b := newAgent()
	for _, f := range given {
		words := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			words = list.GetSlice()
		}
		for _, w := range words {
			if err := c.Flags().Set(f.Name, w); err != nil {
				return nil, nil, err
			}
		}
	}
	b.config = a.config
	if err := configure(c, b.config); err != nil {
		return nil, nil, err
	}
	b.Command, b.All = a.Command, a.All
	return b, configured(c), b.checkSettings()
}

// configure sets the flags that the command line does not have: by the environment, or by the file.
func configure(c *cobra.Command, path string) error {
	given := map[string]bool{}
	c.Flags().Visit(func(f *pflag.Flag) { given[f.Name] = true })
	file := map[string]any{}
	if path != "" {
		var err error
		if file, err = readConfig(path); err != nil {
			return err
		}
	}
	var err error
	known := func(f *pflag.Flag) bool {
		return !f.Hidden && !slices.Contains([]string{"config", "print-config", "help"}, f.Name)
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		value, there := file[f.Name]
		if known(f) {
			delete(file, f.Name)
		}
		env, inEnv := os.LookupEnv(variable(f.Name))
		if err != nil || given[f.Name] || !known(f) || !there && !inEnv {
			return
		}
		where := fmt.Sprintf("%s: %s", path, f.Name)
		var words []string
		if inEnv {
			where = variable(f.Name)
			words = []string{env}
			if _, list := f.Value.(pflag.SliceValue); list {
				words = strings.Fields(env)
			}
		} else if words, err = flagWords(value); err != nil {
			err = usage("%s: %v", where, err)
			return
		}
		for _, w := range words {
			if e := c.Flags().Set(f.Name, w); e != nil {
				err = usage("%s: %v", where, e)
				return
			}
		}
	})
	if err != nil {
		return err
	}
	for name := range file {
		return usage("%s: there is no flag %q", path, name)
	}
	return nil
}

// variable is the environment's name of a flag.
func variable(flag string) string {
	return "UNSPOOL_AGENT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func readConfig(path string) (file map[string]any, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = errors.New("larger than a configuration can be")
	}
	if err == nil {
		_, err = toml.Decode(string(b), &file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, nil
}

// flagWords returns what a flag is set to, one call each: a value, or those of a list. A table, such as of labels, is a list of key=value;
// tables, such as of rules, are objects in JSON.
func flagWords(v any) (out []string, err error) {
	add := func(prefix string, v any) {
		switch v.(type) {
		case string, int64, bool, float64:
			out = append(out, prefix+fmt.Sprint(v))
		default:
			err = errors.New("want a string, a number, true or false, or a list or table of these")
		}
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			add("", e)
		}
	case []map[string]any: // of rules
		for _, e := range v {
			text, err := json.Marshal(e)
			if err != nil {
				return nil, err
			}
			out = append(out, string(text))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			add(key+"=", v[key])
		}
	default:
		add("", v)
	}
	return out, err
}

// configured returns the flags that differ from their defaults, as a file that --config takes.
func configured(c *cobra.Command) map[string]any {
	set := map[string]any{}
	for _, f := range changed(c) {
		if f.Hidden || f.Name == "config" || f.Name == "print-config" {
			continue
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			set[f.Name] = list.GetSlice()
		} else {
			set[f.Name] = f.Value.String()
		}
	}
	return set
}

func (a *agentRun) check() error {
	if err := a.checkSettings(); err != nil {
		return err
	}
	if !a.given("frequency") && a.Period == 0 && !a.offCPU && a.Event != perfevent.OffCPU {
		a.Frequency = agentFrequency
	}
	if err := a.plan.check("compact", &a.flt); err != nil {
		return err
	}
	var err error
	if a.page, err = cli.Duration("--page", a.shows); err != nil {
		return err
	}
	if a.page > time.Hour {
		return usage("--page shows an hour at most")
	}
	if a.kubelet.Address != "" {
		if a.pods, err = kubelet.New(a.kubelet); err != nil {
			return usage("--kubelet: %w", err)
		}
	}
	if a.listen != "" {
		if host, _, err := net.SplitHostPort(a.listen); err != nil {
			return usage("--listen: %v", err)
		} else if host == "" {
			return usage("--listen %q: name the address, too: 127.0.0.1%s, or 0.0.0.0%s for all", a.listen, a.listen, a.listen)
		}
	}
	return nil
}

// checkSettings reads the flags that can change while the agent runs.
func (a *agentRun) checkSettings() error {
	if len(a.to) == 0 {
		return usage("name an engine with --output, such as --output pyroscope=http://127.0.0.1:4040, or files=DIR")
	}
	if err := a.sending.read("--output"); err != nil {
		return err
	}
	var err error
	if a.interval, err = cli.Duration("--interval", a.every); err != nil {
		return err
	}
	if a.interval < leastInterval || a.interval > time.Hour {
		return usage("--interval is %v to an hour", leastInterval)
	}
	if a.room, err = cli.Size("--queue", a.queue); err != nil {
		return err
	}
	for _, text := range a.relabel {
		r, err := agent.ParseRule(text)
		if err != nil {
			return usage("--relabel: %w", err)
		}
		a.rules = append(a.rules, r)
	}
	return nil
}

// reloadable are the flags that checkSettings reads.
var reloadable = []string{"output", "label", "ca", "token-file", "interval", "queue", "relabel"}

func (a *agentRun) settings() agent.Settings {
	return agent.Settings{Labels: a.known, Rules: a.rules, Interval: a.interval}
}

// isLoopback says whether only this machine can reach an address.
func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// kernelOf returns what a recording has in the kernel.
func kernelOf(rec *record.Live) (k agent.Kernel, ok bool) {
	st := rec.Kernel()
	if st == nil {
		return k, false
	}
	return agent.Kernel{Tables: st.Tables, TableBytes: int(st.TableBytes), Processes: st.Processes, Evicted: uint64(st.Evicted), Copied: st.Copied, CutOff: st.CutOff}, true
}

func (a *agentRun) run(ctx context.Context, given []*pflag.Flag, was map[string]any) error {
	var h slog.Handler = slog.NewTextHandler(stderr, nil)
	if a.logs == "json" {
		h = slog.NewJSONHandler(stderr, nil)
	}
	log := slog.New(h)

	defer cli.Trim(cli.FirstTrim, func() { module.ReleasePages(); pages.ReleaseProgram() })()
	mods := modules.New()
	mods.Files.Memory.Max = agentFiles
	defer mods.Close()
	var outside net.Listener
	if a.listen != "" {
		var err error
		if outside, err = net.Listen("tcp", a.listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
		defer outside.Close()
	}
	rec, err := a.open(ctx, mods)
	if err != nil {
		return err
	}
	defer rec.Close()
	for _, note := range rec.Notes() {
		log.Info(note)
	}
	n := newNamer(names.Options{Mods: mods})
	defer n.Close()
	n.Lines = !a.plain
	if err := rec.Drop(n); err != nil {
		log.Warn(err.Error())
	}
	s := rec.Session(record.Options{Mods: mods, Names: n, Filter: a.flt.Filter, Prompt: true})

	outputs := agent.NewOutputs(lastWords, func(t *agent.Target, err error) {
		if err != nil {
			log.Warn(err.Error(), "output", t.String())
		} else {
			log.Info("takes profiles again", "output", t.String())
		}
	})
	outputs.Set(a.targets, int64(a.room))
	info := profile.Info{Host: s.Info.Host}
	for _, e := range rec.Decoder().Events() {
		info.Events = append(info.Events, profile.NewEvent(e.Name))
	}
	var page *serve.Live
	var show func(*export.Batch)
	token := serve.NewToken()
	if outside != nil && a.page > 0 && (isLoopback(outside.Addr()) || a.given("page")) {
		page = serve.NewLive(info.Host, a.page, token)
		show = func(b *export.Batch) { page.Add(b.Profile, b.Label(export.ServiceName)) }
	}
	var self *otelctx.Reader
	if a.self {
		self = otelctx.NewReader()
	}
	began := time.Now()
	ag := agent.New(agent.Options{
		Settings: a.settings(), Outputs: outputs, Names: n, Info: info, Lost: rec.Lost, Pods: a.pods, Self: self, Local: containers.New(containers.Docker, containers.Podman),
		Log: func(err error) { log.Error(err.Error()) }, Show: show,
	}, began)
	log.Info("profiling", "target", printable.Marked(a.Target()), "event", rec.Event(), "interval", a.interval, "version", cli.Version())
	if outside != nil {
		view := &agent.Outside{Agent: ag, Outputs: outputs, Kernel: func() (agent.Kernel, bool) { return kernelOf(rec) }, Interval: a.interval, Began: began, Debug: isLoopback(outside.Addr())}
		if page != nil {
			view.Page = page
			log.Info("the last minutes are on a page", "address", serve.URL(outside.Addr(), token))
		}
		if self != nil {
			view.More = append(view.More, self)
		}
		if a.pods != nil {
			view.More = append(view.More, a.pods)
		}
		server := http.Server{Handler: view.Handler(), ReadHeaderTimeout: slowClient, ReadTimeout: slowClient, WriteTimeout: 3 * slowClient, MaxHeaderBytes: 1 << 16}
		go server.Serve(outside)
		defer server.Close()
		log.Info("listening", "address", outside.Addr().String())
	}

	ended := make(chan error, 1)
	gathering, over := context.WithCancel(context.Background())
	go func() {
		ended <- s.Run(context.Background(), ag.Add) // not ctx: its end stops the recorder, and then this ends
		over()
	}()
	if a.pods != nil {
		go a.pods.Run(gathering, func(err error) {
			if err != nil {
				log.Warn(err.Error(), "kubelet", a.kubelet.Address)
			} else {
				log.Info("the kubelet tells its pods")
			}
		})
	}
	if a.config != "" {
		defer cli.OnHangup(func() {
			b, now, err := a.again(given)
			if err != nil {
				log.Error("the configuration stays as it was: " + err.Error())
				return
			}
			outputs.Set(b.targets, int64(b.room))
			ag.Change(b.settings())
			log.Info("read again", "config", a.config, "outputs", len(b.targets), "interval", b.interval)
			if names := differing(was, now); len(names) > 0 {
				log.Warn("these change when the agent starts again", "flags", strings.Join(names, " "))
			}
		})()
	}
	ag.Run(gathering)
	outputs.Close()
	err = <-ended
	for _, q := range outputs.Queues() {
		if s := q.Stats(); s.Dropped+s.Refused > 0 {
			log.Warn("profiles are missing", "output", q.Target().String(), "sent", s.Sent, "dropped", s.Dropped, "refused", s.Refused)
		}
	}
	st := ag.Stats()
	log.Info("done", "samples", st.Samples-st.Idle, "lost", st.Lost, "profiles", st.Profiles)
	if err != nil {
		return err
	}
	return exitStatus(ctx, rec, rec.TimedOut())
}

// differing returns the flags that differ between two configurations, and that cannot change while the agent runs; sorted.
func differing(a, b map[string]any) []string {
	names := map[string]bool{}
	for name := range a {
		names[name] = true
	}
	for name := range b {
		names[name] = true
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool {
		return slices.Contains(reloadable, name) || reflect.DeepEqual(a[name], b[name])
	})
	return slices.Sorted(maps.Keys(names))
}
