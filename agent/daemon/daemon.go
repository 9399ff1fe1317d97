// Package daemon runs an agent: it records, sends the profiles, answers over HTTP, asks the kubelet, and takes another configuration while it runs.
// What happens goes to a log.
package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/containers"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/kubelet"
	"github.com/unspool/unspool/agent/otelctx"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/serve"
)

const (
	filesMemory = 32 << 20               // bytes of unwind tables and symbol tables, beside what was used in the last seconds
	lastWords   = 2 * time.Second        // for what is still to be sent at the end
	lastRecords = 800 * time.Millisecond // after a signal ends the agent, for the samples that wait
	lastRead    = 2 * lastRecords        // from the signal on, until whoever reads them is no longer waited for
	lastMade    = 3 * lastRecords        // the same, until profiles are no longer made

	makeTogether = 16 << 20 // bytes that making tables at the same time takes, if they are several

	smallMachine = 256 << 20 // bytes of memory to live by, below which one thing is done at a time, and there are no lines and no page

	filesShare = 16 // where memory is limited, filesMemory is this part of the limit at most
	queueShare = 16 // what waits for all outputs together, the same
	makeShare  = 4  // making a table may take this part, for a moment
	heapShare  = 8  // and the garbage collector works harder above four of these parts, or five where memory is small: the rest is the kernel's for this program, and mapped tables
)

// Options say what a daemon records, and what it does with the profiles.
type Options struct {
	Changeable
	Record func(context.Context, *modules.Set) (*record.Live, error)
	Target string // what is recorded, for the log
	Filter record.Filter
	Namer  func(names.Options) *names.Namer

	Listen   string        // the address for HTTP; "": none
	Page     time.Duration // the page there shows this last time; 0: there is no page
	ShowPage bool          // also to others than this machine, if they reach the address

	MaxMemory uint64        // bytes to live by, if the machine's and the control groups' limits are not less; 0: those alone
	MaxCPU    float64       // of a processor, that the daemon may use before it records less; 0: there is no bound
	Threshold time.Duration // of waits, at first; 0: none are recorded

	Pods    *kubelet.Pods // nil: the kubelet is not asked
	Kubelet string        // its address, for the log
	Self    bool          // use what processes say of themselves

	Config  string                               // the file that is read again for each of Hangups; "": there is none
	Hangups <-chan os.Signal                     // nil: there is no file
	Again   func() (Changeable, []string, error) // reads it; the names are of flags that differ, and cannot change

	Log *slog.Logger
}

// Changeable is what can change while a daemon runs.
type Changeable struct {
	agent.Settings
	Outputs []*agent.Target
	Queue   uint64 // bytes of what an output does not take at once, for each
}

// A daemon is what Run has opened.
type daemon struct {
	*Options
	rec     *record.Live
	agent   *agent.Agent
	outputs *agent.Outputs
	self    *otelctx.Reader // nil: it is not used
	page    *serve.Live     // nil: there is none
	token   string          // of the page
	queues  int64           // bytes of all queues together, at most; 0: there is no bound
	began   time.Time
	pace    atomic.Pointer[agent.Pace] // nil: it does not change
}

// Run records until ctx ends, or what is recorded. It returns the status that the program ends with, and a note on it, as record.Live.ExitStatus does.
func Run(ctx context.Context, o Options) (status int, note string, err error) {
	defer cli.Trim(cli.FirstTrim, func() { module.ReleasePages(); pages.ReleaseFiles(); pages.ReleaseProgram() })()
	mods := modules.New()
	whole := true
	ifWhole := func(close func() error) { // else somebody still uses it; the program ends
		if whole {
			close()
		}
	}
	defer func() { ifWhole(mods.Close) }()
	d := daemon{Options: &o}
	small := d.live(mods)
	var listener net.Listener
	if o.Listen != "" {
		if listener, err = net.Listen("tcp", o.Listen); err != nil {
			return 0, "", fmt.Errorf("--listen: %w", err)
		}
		defer listener.Close()
	}
	if d.rec, err = o.Record(ctx, mods); err != nil {
		return 0, "", err
	}
	defer func() { ifWhole(d.rec.Close) }()
	n := o.Namer(names.Options{Mods: mods})
	defer func() { ifWhole(n.Close) }()
	if small {
		n.Lines = false
		n.Kernel(make([]uint64, 1), make([]profile.Name, 1)) // reads all names, which takes more now than it keeps
		debug.FreeOSMemory()
	}
	for _, note := range d.rec.Notes() {
		o.Log.Info(note)
	}
	if err := d.rec.Drop(n); err != nil {
		o.Log.Warn(err.Error())
	}
	walk := record.Options{Mods: mods, Names: n, Filter: o.Filter, Prompt: true}
	if small {
		walk.Workers = 1
	}
	s := d.rec.Session(walk)
	d.start(n, s.Info.Host, listener)
	if listener != nil {
		defer d.listen(listener)()
	}
	if err := cli.Started(); err != nil {
		o.Log.Warn("systemd does not hear that the agent has started: " + err.Error())
	}

	ended := make(chan error, 1)
	gathering, over := context.WithCancel(context.Background())
	go func() {
		ended <- s.Run(context.Background(), d.agent.Add) // not ctx: its end stops the recorder, and then this ends
		over()
	}()
	if o.Pods != nil {
		go o.Pods.Run(gathering, d.tellKubelet)
	}
	go d.reload(gathering)
	if o.MaxCPU > 0 {
		go d.govern(gathering)
	}
	go d.tellLosses(gathering)
	late, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(lastRead, over)
		time.AfterFunc(lastMade, cancel)
	})()
	whole = d.agent.Run(gathering, late)
	d.outputs.Close()
	ran := true
	select {
	case err = <-ended:
	case <-late.Done():
		select {
		case err = <-ended:
		default:
			whole, ran = false, false
		}
	}
	if ran {
		for _, note := range append(d.rec.EndNotes(), s.Notes()...) {
			o.Log.Info(note)
		}
	}
	d.sum()
	if err != nil {
		return 0, "", err
	}
	return d.rec.ExitStatus(ctx, d.rec.TimedOut())
}

// live makes the program live by its memory limit. small says that one thing is to be done at a time.
func (d *daemon) live(mods *modules.Set) (small bool) {
	mods.Files.Memory.Max = filesMemory
	procfs.LimitMemory(d.MaxMemory)
	limit, ok := procfs.MemoryLimit()
	if !ok {
		return false
	}
	d.queues = int64(limit / queueShare)
	mods.Files.Memory.Max = min(filesMemory, int64(limit/filesShare))
	if limit >= smallMachine {
		mods.Bound(int64(limit/heapShare*4), makeTogether)
		cli.LimitMemory(int64(limit / heapShare * 4))
		return false
	}
	cli.LimitMemory(int64(limit / heapShare * 5)) // with four, it works all the time beside 200 programs: half of the agent's CPU time
	mods.Bound(int64(limit/makeShare), 0)
	module.LimitInflated(int64(limit / filesShare))
	d.Page = 0
	d.Log.Info("there are no lines, no inlined calls and no page: they take too much of the memory", "limit", limit)
	return true
}

// queue returns how many bytes may wait for each output.
func (d *daemon) queue(c *Changeable) int64 {
	if d.queues == 0 {
		return int64(c.Queue)
	}
	return min(int64(c.Queue), d.queues/int64(max(len(c.Outputs), 1)))
}

// start makes the agent, its outputs, and the page for a listener.
func (d *daemon) start(n *names.Namer, host string, listener net.Listener) {
	d.outputs = agent.NewOutputs(lastWords, d.tellOutput)
	d.outputs.Gone = d.tellMissing
	d.outputs.Set(d.Outputs, d.queue(&d.Changeable))
	info := profile.Info{Host: host}
	for _, e := range d.rec.Decoder().Events() {
		info.Events = append(info.Events, profile.NewEvent(e.Name))
	}
	var show func(*export.Batch)
	if listener != nil && d.Page > 0 && (isLoopback(listener.Addr()) || d.ShowPage) {
		d.token = serve.NewToken()
		d.page = serve.NewLive(host, d.Page, d.token)
		show = func(b *export.Batch) {
			d.page.Add(b.Profile, profile.NewPlace(b.Label(export.ServiceName), b.Label("namespace"), b.Label("pod")))
		}
	}
	if d.Self {
		d.self = otelctx.NewReader()
	}
	d.began = time.Now()
	d.agent = agent.New(agent.Options{
		Settings: d.Settings, Outputs: d.outputs, Names: n, Info: info, Lost: d.rec.Lost, Pods: d.Pods, Self: d.self, Local: containers.New(containers.Docker, containers.Podman), Kernel: release(),
		Log: func(err error) { d.Log.Error(err.Error()) }, Show: show,
	}, d.began)
	d.Log.Info("profiling", "target", printable.Marked(d.Target), "event", d.rec.Event(), "interval", d.Interval, "version", cli.Version())
}

// release returns the kernel's release (uname(2)); empty if it is not known.
func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return strings.ToValidUTF8(unix.ByteSliceToString(u.Release[:]), "\ufffd")
}

// listen answers over HTTP, until stop is called.
func (d *daemon) listen(l net.Listener) (stop func() error) {
	view := &agent.Outside{Agent: d.agent, Outputs: d.outputs, Kernel: d.kernel, Began: d.began, Debug: isLoopback(l.Addr())}
	if d.page != nil {
		view.Page = d.page
		d.Log.Info("the last minutes are on a page", "address", serve.URL(l.Addr(), d.token))
	}
	if d.self != nil {
		view.More = append(view.More, d.self)
	}
	if d.Pods != nil {
		view.More = append(view.More, d.Pods)
	}
	stop = answer(l, view.Handler())
	d.Log.Info("listening", "address", l.Addr().String())
	return stop
}

// isLoopback says whether only this machine can reach an address.
func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// kernel returns what the recording has in the kernel.
func (d *daemon) kernel() (k agent.Kernel, ok bool) {
	st := d.rec.Kernel()
	if st == nil {
		return k, false
	}
	if p := d.pace.Load(); p != nil {
		k.Pace = *p
	}
	return agent.Kernel{
		Pace: k.Pace, Tables: st.Tables, TableBytes: int(st.TableBytes), MapBytes: st.MapBytes, Processes: st.Processes,
		Walked: st.Samples, Copied: st.Copied, CutOff: st.CutOff, RingFull: st.RingFull, Nested: st.Nested, Forgotten: st.Forgotten, Outside: st.Outside,
		Evicted: uint64(st.Evicted), Failed: uint64(st.Failed), CPU: st.RunTime, Unplugged: d.rec.Unplugged(),
	}, true
}

func (d *daemon) tellOutput(t *agent.Target, err error) {
	if err != nil {
		d.Log.Warn(err.Error(), "output", t.String())
	} else {
		d.Log.Info("takes profiles again", "output", t.String())
	}
}

// tellMissing says what an output that has ended has not taken.
func (d *daemon) tellMissing(t *agent.Target, s agent.QueueStats) {
	if s.Dropped+s.Refused > 0 {
		d.Log.Warn("profiles are missing", "output", t.String(), "sent", s.Sent, "dropped", s.Dropped, "refused", s.Refused)
	}
}

func (d *daemon) tellKubelet(err error) {
	if err != nil {
		d.Log.Warn(err.Error(), "kubelet", d.Kubelet)
	} else {
		d.Log.Info("the kubelet tells its pods")
	}
}

// reload reads the configuration again for each of Hangups.
func (d *daemon) reload(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.Hangups:
			d.readAgain()
		}
	}
}

// readAgain takes what has changed in the configuration. One with a mistake changes nothing.
func (d *daemon) readAgain() {
	now, fixed, err := d.Again()
	if err != nil {
		d.Log.Error("the configuration stays as it was: " + err.Error())
		return
	}
	d.outputs.Set(now.Outputs, d.queue(&now))
	d.agent.Change(now.Settings)
	d.Log.Info("read again", "config", d.Config, "outputs", len(now.Outputs), "interval", now.Interval)
	if len(fixed) > 0 {
		d.Log.Warn("these change when the agent starts again", "flags", strings.Join(fixed, " "))
	}
}

// sum says what was recorded, and what is missing.
func (d *daemon) sum() {
	for _, q := range d.outputs.Queues() {
		d.tellMissing(q.Target(), q.Stats())
	}
	d.agent.End()
	st := d.agent.Stats()
	d.Log.Info("done", "samples", st.Samples-st.Idle, "lost", st.Lost, "profiles", st.Profiles)
}

// tellLosses says each minute how many records were lost, if they are more than one in a hundred.
func (d *daemon) tellLosses(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	var before agent.Stats
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := d.agent.Stats()
		if lost, samples := since(&before, &now); lossy(lost, samples) {
			d.Log.Warn("records were lost in the last minute; a lower --frequency, or with --off-cpu a higher --off-cpu-threshold, makes fewer", "lost", lost, "samples", samples)
		}
		before = now
	}
}

func since(before, now *agent.Stats) (lost, samples uint64) {
	return now.Lost - before.Lost, now.Samples - before.Samples
}

// lossy says whether more than one of a hundred records was lost.
func lossy(lost, samples uint64) bool { return lost > (lost+samples)/100 }

// governed is how often the daemon looks at what it uses.
const governed = 5 * time.Second

// govern records less while the daemon uses more than it may: its own CPU time, and that of the kernel's programs where the kernel counts it
// (kernel.bpf_stats_enabled).
func (d *daemon) govern(ctx context.Context) {
	g := agent.NewGovernor(d.MaxCPU, agent.Pace{OneOf: 1, Threshold: d.Threshold}, record.MaxThreshold)
	set := func() error {
		p := g.Pace()
		d.pace.Store(&p)
		return d.rec.SetPace(p.OneOf, p.Threshold)
	}
	if err := set(); err != nil {
		d.Log.Warn("--max-cpu changes nothing: stacks are not walked in the kernel")
		d.pace.Store(nil)
		return
	}
	tick := time.NewTicker(governed)
	defer tick.Stop()
	for was, at := d.used(), time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		used, now := d.used(), time.Now()
		share := float64(used-was) / float64(now.Sub(at))
		if g.Observe(used-was, now.Sub(at)) {
			if err := set(); err != nil {
				d.Log.Error(err.Error())
			}
			p := g.Pace()
			d.Log.Info("records at another pace", "one-of", p.OneOf, "off-cpu-threshold", p.Threshold, "used", fmt.Sprintf("%.2f%%", 100*share), "max-cpu", fmt.Sprintf("%.2f%%", 100*d.MaxCPU))
		}
		was, at = used, now
	}
}

// used returns the CPU time that the daemon has used.
func (d *daemon) used() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	sum := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	if st := d.rec.Kernel(); st != nil {
		sum += st.RunTime
	}
	return sum
}
