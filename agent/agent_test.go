package agent

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	osuser "os/user"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/agent/containers"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/kubelet"
	"github.com/unspool/unspool/agent/otelctx"
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// A namer knows no names.
type namer struct{}

func (namer) User(*unwind.Module, []uint64, []profile.Name) {}
func (namer) Kernel([]uint64, []profile.Name)               {}

func newAgent(o Options, now time.Time) *Agent {
	o.Names = namer{}
	o.Info = profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}, Host: "node-7"}
	if o.Lost == nil {
		o.Lost = func() uint64 { return 0 }
	}
	return New(o, now)
}

func sample(pid int32, comm string, pc arch.Addr) *profile.Sample {
	return &profile.Sample{PID: pid, TID: pid, Comm: comm, Period: 1e7, HasUser: true, User: []unwind.Frame{{PC: pc, Exact: true}}, Stop: unwind.Outermost}
}

// TestHealthy: an agent is well until three intervals and a minute have passed, by the longest interval since the last that ended.
func TestHealthy(t *testing.T) {
	now := time.Now()
	a := newAgent(Options{Settings: Settings{Interval: time.Second}}, now)
	o := Outside{Agent: a, Began: now}
	after := func(d time.Duration, well bool) {
		t.Helper()
		if wrong := o.healthy(now.Add(d)); (wrong == "") != well {
			t.Errorf("after %v: %q", d, wrong)
		}
	}
	after(62*time.Second, true)
	after(64*time.Second, false)
	a.Change(Settings{Interval: 10 * time.Minute})
	after(30*time.Minute, true)
	after(32*time.Minute, false)
	a.Change(Settings{Interval: time.Second}) // an interval of ten minutes may be running
	after(30*time.Minute, true)
	now = now.Add(30 * time.Minute)
	a.take(now)
	after(62*time.Second, true)
	after(64*time.Second, false)
}

// Each place has a profile of its own; the sums are those of all samples, and losses count once.
func TestCut(t *testing.T) {
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	now := time.Now()
	lost := uint64(3)
	a := newAgent(Options{Lost: func() uint64 { return lost }, Settings: Settings{Labels: []export.Label{{Name: "region", Value: "north"}}}}, now)
	for i := range 5 {
		a.Add(sample(int32(os.Getpid()), "a thread", arch.Addr(i%2)))
	}
	a.Add(sample(int32(sleeper.Process.Pid), "sleep", 7))
	a.Add(sample(1<<30, "short", 7)) // no process has this number
	a.Add(&profile.Sample{})         // a processor with nothing to do
	batches, err := a.Cut(now.Add(10 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	total := uint64(0)
	for _, b := range batches {
		services = append(services, b.Label(export.ServiceName))
		total += b.Profile.Totals.Samples
		if b.Label("region") != "north" || b.Label("node") != "node-7" || b.Profile.Start != now || b.Profile.Duration != 10*time.Second {
			t.Errorf("%+v, %v, %v", b.Labels, b.Profile.Start, b.Profile.Duration)
		}
	}
	own := PlaceOf(int32(os.Getpid()))
	want := []string{name(command(int32(os.Getpid()))), "sleep", "short"}
	if own.name() != "" { // a service that runs tests
		want = []string{own.name(), "short"}
		if len(services) == 3 {
			want = []string{own.name(), "sleep", "short"}
		}
	}
	if len(services) == 3 && services[1] == "short" { // as many samples as the other
		services[1], services[2] = services[2], services[1]
	}
	if fmt.Sprint(services) != fmt.Sprint(want) || total != 7 || batches[0].Profile.Loss.Samples != 3 {
		t.Errorf("%q with %d samples, %d lost, want %q", services, total, batches[0].Profile.Loss.Samples, want)
	}
	if own.Cgroup != "" && batches[0].Label("cgroup") != own.Cgroup {
		t.Errorf("%+v, want %+v", batches[0].Labels, own)
	}
	if s := a.Stats(); s.Samples != 8 || s.Idle != 1 || s.Lost != 3 || s.Unplaced != 1 || s.Processes != 3 || s.Profiles != uint64(len(batches)) {
		t.Errorf("%+v", s)
	}
	lost = 5
	a.Add(sample(1<<30, "short", 7))
	batches, err = a.Cut(now.Add(20 * time.Second))
	if err != nil || len(batches) != 1 || batches[0].Profile.Loss.Samples != 2 || batches[0].Profile.Totals.Samples != 1 {
		t.Errorf("%v, %v", batches, err)
	}
}

// What runs and what waits in a place are two profiles with the same labels, also after a rule has merged places.
func TestTwoEvents(t *testing.T) {
	r, err := ParseRule(`{"source_labels":["service_name"],"regex":"worker-.*","target_label":"service_name","replacement":"workers"}`)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a := newAgent(Options{Settings: Settings{Rules: []*Rule{r}}}, now)
	a.o.Info.Events = append(a.o.Info.Events, profile.NewEvent(profile.OffCPU))
	for i := range 6 {
		s := sample(1<<30+int32(i), fmt.Sprintf("worker-%d", i), 7)
		if i < 4 {
			s.Event, s.Period = 1, 3e6
		}
		a.Add(s)
	}
	batches, err := a.Cut(now.Add(10 * time.Second))
	if err != nil || len(batches) != 2 {
		t.Fatalf("%d profiles: %v", len(batches), err)
	}
	for i, want := range []struct {
		name        string
		samples, ns uint64
	}{{"off-cpu", 4, 12e6}, {"cpu", 2, 20e6}} {
		b := batches[i]
		name, unit := b.Type()
		if p := b.Profile; name != want.name || unit != "nanoseconds" || len(p.Events) != 1 || p.Totals.Samples != want.samples || p.Totals.Period != want.ns {
			t.Errorf("%s in %s, %d samples, %d ns; want %+v", name, unit, p.Totals.Samples, p.Totals.Period, want)
		}
	}
	if batches[0].Selector() != batches[1].Selector() || a.Stats().Waits != 4 {
		t.Errorf("%s and %s, %d waits", batches[0].Selector(), batches[1].Selector(), a.Stats().Waits)
	}
}

// However many commands there are, an interval has a bounded number of profiles.
func TestCrowded(t *testing.T) {
	now := time.Now()
	a := newAgent(Options{}, now)
	const many = 2 * maxGroups
	for i := range many {
		a.Add(sample(1<<30+int32(i), fmt.Sprintf("\xff%d%s", i, strings.Repeat("é", 100)), 7))
	}
	batches, err := a.Cut(now.Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	total := uint64(0)
	for _, b := range batches {
		total += b.Profile.Totals.Samples
		if s := b.Label(export.ServiceName); strings.ToValidUTF8(s, "") != s || len(s) > 2*maxService {
			t.Errorf("%q", s)
		}
	}
	if len(batches) != maxGroups+1 || total != many || batches[0].Label(export.ServiceName) != "other" || a.Stats().Crowded != many-maxGroups {
		t.Errorf("%d profiles with %d samples, %+v", len(batches), total, a.Stats())
	}
}

// Places that a rule gives the same labels have one profile, with the sums of all.
func TestSameLabels(t *testing.T) {
	r, err := ParseRule(`{"source_labels":["service_name"],"regex":"worker-.*","target_label":"service_name","replacement":"workers"}`)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	a := newAgent(Options{Settings: Settings{Rules: []*Rule{r}}}, now)
	for i := range 5 {
		a.Add(sample(1<<30+int32(i), fmt.Sprintf("worker-%d", i), arch.Addr(i%2)))
	}
	a.Add(sample(1<<30+5, "other", 7))
	batches, err := a.Cut(now.Add(10 * time.Second))
	if err != nil || len(batches) != 2 {
		t.Fatalf("%d profiles, %v", len(batches), err)
	}
	p := batches[0].Profile
	if batches[0].Label(export.ServiceName) != "workers" || p.Totals.Samples != 5 || p.Totals.Stops[unwind.Outermost] != 5 || p.Start != now || p.Duration != 10*time.Second || len(p.Events) != 1 || p.Host != "node-7" {
		t.Errorf("%+v, %+v", batches[0].Labels, p)
	}
	count := uint64(0)
	for _, s := range p.Stacks {
		count += s.Count
	}
	if count != 5 || a.Stats().Profiles != 2 {
		t.Errorf("%d samples, %+v", count, a.Stats())
	}
}

// A slow is an exporter that takes its time to encode, and counts samples.
type slow struct {
	samples uint64
	encode  func()
	seen    func(*export.Batch) // may be nil
}

func (s *slow) Encode(b *export.Batch) (*export.Request, error) {
	s.encode()
	if s.seen != nil {
		s.seen(b)
	}
	s.samples += b.Profile.Totals.Samples
	return &export.Request{}, nil
}

func (s *slow) Send(context.Context, *export.Request) (export.Receipt, error) {
	return export.Receipt{}, nil
}

// The last interval is sent whenever the end comes, also while the one before is being sent.
func TestLastInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		e := &slow{}
		a := newAgent(Options{Settings: Settings{Interval: time.Second}, Outputs: &Outputs{all: []*output{{queue: NewQueue(&Target{Exporter: e}, 1)}}}}, time.Now())
		a.Add(sample(1<<30, "short", 7))
		first := true
		e.encode = func() {
			if first { // the second sample comes, and then the end
				first = false
				a.Add(sample(1<<30, "short", 7))
				cancel()
			}
		}
		if !a.Run(ctx, context.Background()) {
			t.Errorf("Run says that not all was sent: %d samples of 2; %+v", e.samples, a.Stats())
		}
		if e.samples != 2 {
			t.Errorf("%d samples were sent of 2", e.samples)
		}
	})
}

// Intervals end in time while the profiles of one before are made. When there are as many of these as may wait, the one that runs becomes longer.
func TestBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var took []time.Duration
		e := &slow{encode: func() { time.Sleep(2500 * time.Millisecond) }, seen: func(b *export.Batch) { took = append(took, b.Profile.Duration) }}
		a := newAgent(Options{Settings: Settings{Interval: time.Second}, Outputs: &Outputs{all: []*output{{queue: NewQueue(&Target{Exporter: e}, 1)}}}}, time.Now())
		go func() {
			for range 95 { // samples, to the middle between two
				a.Add(sample(1<<30, "short", 7))
				time.Sleep(100 * time.Millisecond)
			}
			cancel()
		}()
		if !a.Run(ctx, context.Background()) || e.samples != 95 || len(took) < 5 {
			t.Errorf("%d samples were sent of 95, of %v", e.samples, took)
		}
		longer := 0
		for _, d := range took[1 : len(took)-1] {
			if d%time.Second != 0 {
				t.Errorf("an interval of %v", d)
			}
			if d > time.Second {
				longer++
			}
		}
		if took[1] != time.Second || took[2] != time.Second || longer == 0 {
			t.Errorf("%v", took)
		}
	})
}

// When it is too late for a profile, the agent ends without it. Its samples, and those of later ones, are lost and counted; the largest has been sent.
func TestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		late, over := context.WithCancel(t.Context())
		said := ""
		n := 0
		end := make(chan struct{})
		defer close(end)
		e := &slow{encode: func() {
			if n++; n == 2 {
				<-end
			}
		}}
		a := newAgent(Options{Settings: Settings{Interval: time.Minute}, Outputs: &Outputs{all: []*output{{queue: NewQueue(&Target{Exporter: e}, 1)}}},
			Log: func(err error) { said += err.Error() }}, time.Now())
		for i, comm := range []string{"c", "b", "a", "a", "b", "a"} {
			a.Add(sample(1<<30+int32(i), comm, 7))
		}
		go func() {
			time.Sleep(time.Millisecond)
			cancel()
			time.Sleep(time.Second)
			a.Add(sample(1<<30, "c", 7))
			over()
		}()
		began := time.Now()
		if a.Run(ctx, late) || time.Since(began) > 2*time.Second {
			t.Errorf("it took %v", time.Since(began))
		}
		if st := a.Stats(); e.samples != 3 || st.Lost != 4 || said != "4 samples were not sent: there was no time at the end to make their profiles" {
			t.Errorf("%d samples sent, %d lost: %q", e.samples, st.Lost, said)
		}
	})
}

// What comes after the last interval is lost and counted, where all before has been sent: samples that a slow reader adds, and what it says was lost.
// Of an interval whose profiles are made together, those that have been sent are not lost.
func TestAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := uint64(0)
		ctx, cancel := context.WithCancel(t.Context())
		e := &slow{encode: func() {}}
		a := newAgent(Options{Settings: Settings{Interval: time.Minute}, Outputs: &Outputs{all: []*output{{queue: NewQueue(&Target{Exporter: e}, 1)}}},
			Lost: func() uint64 { return lost }}, time.Now())
		a.Add(sample(1<<30, "c", 7))
		cancel()
		if !a.Run(ctx, context.Background()) {
			t.Errorf("Run says that not all was sent: %d samples of 1; %+v", e.samples, a.Stats())
		}
		for range 3 {
			a.Add(sample(1<<30, "c", 7))
		}
		a.Add(&profile.Sample{})
		lost = 5
		a.End()
		a.End()
		if st := a.Stats(); e.samples != 1 || st.Lost != 8 || st.Samples != 5 || st.Idle != 1 {
			t.Errorf("%d samples sent: %+v", e.samples, st)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		late, over := context.WithCancel(t.Context())
		n, end := 0, make(chan struct{})
		defer close(end)
		e := &slow{encode: func() {
			if n++; n == 2 {
				<-end
			}
		}}
		r, err := ParseRule(`{"regex":"service_name","action":"labeldrop"}`)
		if err != nil {
			t.Fatal(err)
		}
		a := newAgent(Options{Settings: Settings{Interval: time.Minute, Rules: []*Rule{r}}, Outputs: &Outputs{all: []*output{{queue: NewQueue(&Target{Exporter: e}, 1)}}}}, time.Now())
		for i, comm := range []string{"b", "a", "a", "b", "a"} {
			a.Add(sample(1<<30+int32(i), comm, 7))
		}
		time.AfterFunc(2*time.Minute, over)
		if a.Run(context.Background(), late) {
			t.Errorf("Run that is cut off says that all was sent: %d samples of 5", e.samples)
		}
		if st := a.Stats(); st.Lost != 2 {
			t.Errorf("%d samples sent, %d lost, of 5", e.samples, st.Lost)
		}
	})
}

// A pod's profiles have the kubelet's names, and its workload is their service; so it is for each command in the container.
func TestPods(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kind":"PodList","items":[{"metadata":{"name":"shop-1","namespace":"market","uid":%q,"ownerReferences":[{"kind":"StatefulSet","name":"shop","controller":true}]},
			"spec":{"containers":[{"name":"web","image":"shop:1.2"}]},"status":{"containerStatuses":[{"name":"web","containerID":"containerd://%s"}]}}]}`, pod, id)
	}))
	defer server.Close()
	pods, err := kubelet.New(kubelet.Options{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(Options{Pods: pods}, time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	known := make(chan error, 1)
	go pods.Run(ctx, func(err error) { known <- err })
	for end := time.Now().Add(20 * time.Second); pods.Stats().Asked == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s, the kubelet at %s was not asked: %+v", server.URL, pods.Stats())
		}
	}
	for _, c := range []struct {
		g    group
		want string
	}{
		{group{Place: Place{Cgroup: "/x", Container: id, Pod: pod}},
			"service_name=shop cgroup=/x container_id=" + id + " container=web image=shop:1.2 pod_uid=" + pod + " pod=shop-1 namespace=market controller=shop controller_kind=StatefulSet"},
		{group{Place: Place{Pod: pod, Container: id2}}, "service_name=shop container_id=" + id2 + " pod_uid=" + pod + " pod=shop-1 namespace=market controller=shop controller_kind=StatefulSet"},
		{group{service: "x", Place: Place{Container: id, Claimed: true}}, "service_name=x container_id=" + id}, // a user's own
		{group{Place: Place{Pod: pod, Container: id, Claimed: true}}, "service_name=shop container_id=" + id + " pod_uid=" + pod + " pod=shop-1 namespace=market controller=shop controller_kind=StatefulSet"},
		{group{Place: Place{Pod: strings.Repeat("0", 32)}}, "pod_uid=" + strings.Repeat("0", 32)},
		{group{service: "own", self: otelctx.Service{Name: "own", Namespace: "n", Instance: "i", Version: "v", Environment: "e"}, asked: asked{uid: "7"}, Place: Place{Pod: pod, Container: id}},
			"service_name=own service_namespace=n service_instance_id=i service_version=v deployment_environment_name=e uid=7 container_id=" + id + " container=web image=shop:1.2 pod_uid=" + pod + " pod=shop-1 namespace=market controller=shop controller_kind=StatefulSet"},
		{group{service: "cron", Place: Place{Unit: "cron.service"}}, "service_name=cron unit=cron.service"},
	} {
		var got []string
		for _, l := range a.labels(&c.g) {
			got = append(got, l.Name+"="+l.Value)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v:\n got %s\nwant %s", c.g, got, c.want)
		}
	}
	select {
	case err := <-known:
		t.Error(err)
	default:
	}
}

// Only where a rule asks for the user, samples of different users are in different profiles.
func TestUser(t *testing.T) {
	own := fmt.Sprint(os.Geteuid())
	u, err := osuser.LookupId(own)
	if err != nil {
		oracle.Lacks(t, "a name for this user")
	}
	who := u.Username
	for rule, want := range map[string]string{
		`{"source_labels":["uid"],"regex":"` + own + `","action":"keep"}`:  own,
		`{"source_labels":["uid"],"regex":"` + own + `","action":"drop"}`:  "dropped",
		`{"source_labels":["unit"],"regex":"x","action":"drop"}`:           "",
		`{"source_labels":["user"],"target_label":"uid"}`:                  who,
		`{"source_labels":["user"],"regex":"` + who + `","action":"drop"}`: "dropped",
		`{"source_labels":["user"],"regex":"no-one","action":"keep"}`:      "dropped",
	} {
		r, err := ParseRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		a := newAgent(Options{Settings: Settings{Rules: []*Rule{r}}}, time.Now())
		a.Add(sample(int32(os.Getpid()), "a thread", 7))
		batches, err := a.Cut(time.Now())
		got := "dropped"
		if len(batches) > 0 {
			got = batches[0].Label("uid")
		}
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", rule, got, err, want)
		}
	}
}

// A process that publishes a context names its service itself.
func TestSelf(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	exe, payload := dir+"/publish", dir+"/payload"
	if out, err := exec.Command("gcc", "-O2", "-o", exe, "otelctx/testdata/publish.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(payload, []byte("\x0a\x18\x0a\x16\x0a\x0cservice.name\x12\x06\x0a\x04shop"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, "memfd", payload)
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	self := otelctx.NewReader()
	for range 2000 { // a young process is not looked at
		if self.Of(int32(c.Process.Pid)).Name != "" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	a := newAgent(Options{Self: self}, time.Now())
	a.Add(sample(int32(c.Process.Pid), "publish", 7))
	a.Add(sample(1<<30, "short", 7))
	batches, err := a.Cut(time.Now())
	var services []string
	for _, b := range batches {
		services = append(services, b.Label(export.ServiceName))
	}
	if slices.Sort(services); err != nil || fmt.Sprint(services) != "[shop short]" {
		t.Errorf("%q, %v", services, err)
	}
}

// A container without a pod has the name that docker has for it.
func TestContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/containers/"+id, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/containers/"+id+"/config.v2.json", []byte(`{"Name":"/shop","Config":{"Image":"shop:1.2"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newAgent(Options{Local: containers.New(dir, dir)}, time.Now())
	for _, c := range []struct {
		place Place
		want  string
	}{
		{Place{Container: id}, "[{service_name x} {container_id " + id + "} {container shop} {image shop:1.2}]"},
		{Place{Container: id, Pod: pod}, "[{service_name x} {container_id " + id + "} {pod_uid " + pod + "}]"},
		{Place{Container: id, Claimed: true}, "[{service_name x} {container_id " + id + "}]"},
	} {
		if got := fmt.Sprint(a.labels(&group{service: "x", Place: c.place})); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
