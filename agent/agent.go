// Package agent profiles a machine all the time, and sends the profiles to the engines that store and show them.
//
// An Agent takes samples, and sorts them by the place where their process lives: Add. At the end of each interval, it makes a profile of each
// place's samples, with labels (Cut), and puts it into the Queue of each target. A Queue sends in its own time, in bounded memory. The packages
// below this one speak the engines' protocols: export has what they share.
//
// All that processes say of themselves, and all that engines answer, is hostile: names are bounded and valid UTF-8, and so are numbers of places.
package agent

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/agent/containers"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/kubelet"
	"github.com/unspool/unspool/agent/otelctx"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Options say what an agent does with samples.
type Options struct {
	Settings // at first: see Change
	Outputs  *Outputs
	Names    profile.Namer
	Info     profile.Info      // of the recording: events, host
	Lost     func() uint64     // samples lost since the recording began
	Log      func(error)       // is told what could not be encoded; may be nil
	Pods     *kubelet.Pods     // names of pods and containers; may be nil
	Self     *otelctx.Reader   // what processes say of themselves; may be nil
	Local    *containers.Files // names of docker's and podman's containers; may be nil
	Kernel   string            // its release, a label of all profiles; may be empty

	Show func(*export.Batch) // is told of what is sent; may be nil
}

// Settings are what can change while an agent runs.
type Settings struct {
	Labels   []export.Label // of all profiles; these precede what is found out
	Rules    []*Rule        // change the labels, and drop profiles
	Interval time.Duration  // of profiles

	CommandLines bool // rules may read command lines
}

// A series is the samples of one event in a place: each makes a profile of its own, because engines keep CPU time and waits apart.
type series struct {
	group
	event int // in Info.Events
}

// An Agent gathers samples. Add and Cut are safe for concurrent use.
type Agent struct {
	o Options

	mu       sync.Mutex
	settings *Settings     // those of now, which do not change
	changed  chan struct{} // the interval may be another one; of one element
	groups   map[series]*profile.Builder
	places   map[group]bool    // of groups, with the settings of now
	members  map[int32]*member // processes of this interval
	since    time.Time
	was      uint64 // lost before
	ended    bool   // there is no interval any more
	stats    Stats
	longest  time.Duration // the longest of the intervals since stats.Last; 0: it has not changed

	reader patient // of processes

	left uint64 // samples of intervals that have ended, whose profiles have not all been put into queues
	over bool   // it is too late for those
}

// Stats count what an agent has seen since it began.
type Stats struct {
	Samples   uint64
	Waits     uint64 // of these, of what waited
	Idle      uint64 // of processors that had nothing to do: they are nowhere else
	Lost      uint64
	Profiles  uint64
	Dropped   uint64                  // profiles, by a rule
	Crowded   uint64                  // samples that were counted for "other", because there were too many places
	Unplaced  uint64                  // samples of processes that had gone before it was known where they lived
	Unread    uint64                  // processes of which a rule asks what could not be read in time
	Stops     [unwind.NumStops]uint64 // of user stacks, by why they end
	Processes int                     // in the last interval
	Last      time.Time               // when it ended
}

// A group is what the samples of a profile have in common.
type group struct {
	settings *Settings // by which it was asked, and its labels are made
	service  string
	asked
	self otelctx.Service
	Place
}

const (
	maxGroups  = 512 // profiles of an interval, by the same settings
	maxMembers = 1 << 16
	maxService = 128 // bytes of a service's name
)

// New returns an agent whose first interval begins now.
func New(o Options, now time.Time) *Agent {
	first := o.Settings
	return &Agent{o: o, settings: &first, reader: patient{patience: askPatience}, changed: make(chan struct{}, 1), groups: map[series]*profile.Builder{}, places: map[group]bool{}, members: map[int32]*member{}, since: now}
}

// Add takes a sample. Its error is always nil.
func (a *Agent) Add(s *profile.Sample) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Samples++
	if s.PID == 0 && !s.HasUser { // not a process of another PID namespace, which has no number here
		a.stats.Idle++
		return nil
	}
	if a.ended {
		a.stats.Lost++
		return nil
	}
	if s.HasUser && s.Stop < unwind.NumStops {
		a.stats.Stops[s.Stop]++
	}
	g := a.member(s).group
	if g.Cgroup == "" {
		a.stats.Unplaced++
	}
	if !a.places[g] && len(a.places) >= maxGroups {
		g = group{settings: a.settings, service: "other"}
		a.stats.Crowded++
	}
	a.places[g] = true
	x := *s
	x.Event = 0
	key := series{g, s.Event}
	if s.Event >= len(a.o.Info.Events) {
		key.event = 0
	} else if a.o.Info.Events[s.Event].Name == profile.OffCPU {
		a.stats.Waits++
	}
	b := a.groups[key]
	if b == nil {
		b = profile.NewBuilder()
		a.groups[key] = b
	}
	b.Add(&x)
	return nil
}

// name is the service of a place: the unit's, without its kind. Units of people's sessions, and those that run containers, are no services.
func (p *Place) name() string {
	unit, ok := strings.CutSuffix(p.Unit, ".service")
	if !ok || p.Container != "" || strings.HasPrefix(unit, "user@") {
		return ""
	}
	return name(unit)
}

// name returns a service's name: at most 128 bytes of valid UTF-8.
func name(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxService)], "\ufffd")
}

// labels are those of a group, as far as they are known now. The service of a pod is its workload; export.NewBatch finds a name for others.
func (a *Agent) labels(g *group) (out []export.Label) {
	n, ok := a.o.Pods.Find(g.Pod, g.named())
	if !ok && g.Pod == "" {
		local, _ := a.o.Local.Find(g.named())
		n.Container, n.Image = local.Container, local.Image
	}
	for _, l := range []export.Label{
		{Name: export.ServiceName, Value: cmp.Or(g.service, n.Service)}, {Name: "service_namespace", Value: cmp.Or(g.self.Namespace, n.ServiceNamespace)},
		{Name: "service_instance_id", Value: g.self.Instance}, {Name: "service_version", Value: g.self.Version},
		{Name: "deployment_environment_name", Value: g.self.Environment}, {Name: "uid", Value: g.uid}, {Name: "user", Value: g.user},
		{Name: "comm", Value: g.comm}, {Name: "executable", Value: g.executable}, {Name: "executable_build_id", Value: g.buildID}, {Name: "cmdline", Value: g.cmdline},
		{Name: "kernel", Value: a.o.Kernel},
		{Name: "cgroup", Value: g.Cgroup}, {Name: "unit", Value: g.Unit},
		{Name: "container_id", Value: g.Container}, {Name: "container", Value: n.Container}, {Name: "image", Value: n.Image},
		{Name: "pod_uid", Value: g.Pod}, {Name: "pod", Value: n.Pod}, {Name: "namespace", Value: n.Namespace},
		{Name: "controller", Value: n.Controller}, {Name: "controller_kind", Value: n.Kind},
	} {
		if l.Value != "" {
			out = append(out, l)
		}
	}
	return out
}

// Cut ends the interval, and returns a batch for each place and event that had samples, the largest first. That one says how many samples were lost on the
// machine.
func (a *Agent) Cut(now time.Time) (out []*export.Batch, err error) {
	for _, l := range a.take(now).lots {
		batches, e := a.make(l)
		out, err = append(out, batches...), cmp.Or(err, e)
	}
	return out, err
}

// send makes and sends the profiles of an interval. It is for one goroutine at a time.
func (a *Agent) send(c *interval) {
	for _, l := range c.lots {
		if a.late(0) {
			return
		}
		batches, err := a.make(l)
		a.log(err)
		left := l.samples
		for _, b := range batches {
			if a.o.Show != nil {
				a.o.Show(b)
			}
			a.o.Outputs.offer(b.Profile)
			var puts []func()
			for _, q := range a.o.Outputs.Queues() {
				r, err := q.Target().Encode(b)
				if err != nil {
					a.log(fmt.Errorf("%s: %w", q.Target(), err))
					continue
				}
				puts = append(puts, func() { a.o.Outputs.put(q, r) })
			}
			n := b.Profile.Totals.Samples
			if a.late(n) {
				return
			}
			for _, put := range puts {
				put()
			}
			left -= min(n, left)
		}
		a.late(left)
	}
}

// late says whether it is too late to send so many samples, which are lost then. Else they do not wait any more.
func (a *Agent) late(samples uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.over {
		a.left -= min(samples, a.left)
	}
	return a.over
}

// unnamed is a Namer that does not ask for names that no target takes.
type unnamed struct{ profile.Namer }

func (n unnamed) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	if is := profile.ModuleOf(m); m.PID != 0 || !export.HasDebugFile(&is) {
		n.Namer.User(m, offs, names)
	}
}

// Stats returns what the agent has seen so far.
func (a *Agent) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stats
}

// Change gives the agent other settings. They hold for samples that are added from now on, also in the interval that runs; of those before, see take.
func (a *Agent) Change(s Settings) {
	a.mu.Lock()
	a.longest = max(a.longest, a.settings.Interval, s.Interval)
	a.settings, a.places = &s, map[group]bool{}
	a.mu.Unlock()
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

func (a *Agent) interval() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settings.Interval
}

// patience is the longest interval that may not have ended.
func (a *Agent) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(a.longest, a.settings.Interval)
}

// waiting is how many intervals that have ended may wait for their profiles to be made. When they do, the one that runs becomes longer.
const waiting = 2

// Run ends intervals in time, also while profiles of those before are made, and the last one when ctx or late ends. It puts the profiles into the
// queues. The first interval is shorter by chance, so that machines that start together do not send together; so is the first after a change of the
// length. After ctx, profiles are made until late ends. Samples without a profile then are lost, and counted, and whole is false: a goroutine still uses
// the agent and what its Options have.
func (a *Agent) Run(ctx, late context.Context) (whole bool) {
	cuts, made := make(chan *interval, waiting), make(chan struct{})
	go func() {
		defer close(made)
		for c := range cuts {
			a.send(c)
		}
	}()
	every := a.interval()
	next := a.since.Add(rand.N(every) + 1)
	for over := false; !over; {
		select {
		case <-a.changed:
			if now := a.interval(); now != every { // all machines may hear of it at the same moment
				every = now
				next = time.Now().Add(rand.N(every) + 1)
			}
			continue
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			over = true
		case <-late.Done():
			over = true
		}
		now := time.Now()
		if over || len(cuts) < cap(cuts) { // nobody else puts any
			c := a.take(now)
			select {
			case cuts <- c:
			case <-late.Done():
			}
		}
		if next = next.Add(every); now.After(next) { // the machine slept
			next = now.Add(every)
		}
	}
	close(cuts)
	select {
	case <-made:
		whole = true
	case <-late.Done():
	}
	a.mu.Lock()
	a.over = true
	n := uint64(0)
	if !whole {
		n = a.left
	}
	for _, b := range a.groups { // they came after the last interval
		n += b.Totals().Samples
	}
	a.stats.Lost += n
	a.ended, a.groups = true, nil
	a.mu.Unlock()
	if n > 0 {
		a.log(fmt.Errorf("%d samples were not sent: there was no time at the end to make their profiles", n))
	}
	return whole
}

// End counts what was lost after Run's last interval. Samples that are added after Run count as lost.
func (a *Agent) End() {
	lost := a.o.Lost()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.Lost += lost - min(lost, a.was)
	a.was = max(lost, a.was)
}

func (a *Agent) log(err error) {
	if err != nil && a.o.Log != nil {
		a.o.Log(err)
	}
}
