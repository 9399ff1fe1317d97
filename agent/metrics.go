package agent

import (
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unspool/unspool/unwind"
)

// Outside is what an agent shows to others over HTTP: /metrics for Prometheus, /healthz and /readyz, which have no names of what is profiled, and
// for those who have its token, a page of the last minutes.
type Outside struct {
	Agent   *Agent
	Outputs *Outputs
	Kernel  func() (k Kernel, ok bool)
	More    []prometheus.Collector // of what else the agent asks
	Began   time.Time
	Page    http.Handler // what serve.Live answers; nil: there is none
	Debug   bool         // show the agent's own profiles, at /debug/pprof/; these have names of what the agent does, and none of what is profiled
}

// A Kernel is what the program that walks in the kernel has, and has done. There may be none: ok is false then.
type Kernel struct {
	Tables, TableBytes, Processes int
	Evicted, Copied, CutOff       uint64
	Walked                        uint64 // stacks, in the kernel
	RingFull, Nested, Forgotten   uint64 // lost samples, by why
	Outside                       uint64 // not taken: samples of processes outside the agent's PID namespace
	Failed                        uint64 // address spaces and tables that could not be brought into the kernel
	MapBytes                      uint64 // all that its maps take
	CPU                           time.Duration
	Unplugged                     int  // processors that came online and are not recorded
	Pace                          Pace // OneOf 0: it does not change
}

// Handler returns the pages.
func (o *Outside) Handler() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), o)
	r.MustRegister(o.More...)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, o.healthy(time.Now())) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, o.ready()) })
	if o.Page != nil {
		for _, path := range []string{"/{$}", "/live/", "/pprof/"} {
			mux.Handle(path, o.Page)
		}
	}
	if o.Debug {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	}
	return mux
}

func answer(w http.ResponseWriter, wrong string) {
	if wrong != "" {
		http.Error(w, wrong, http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// healthy says what is wrong, if something is that a restart may repair: intervals do not end any more. An engine that is away is not.
func (o *Outside) healthy(now time.Time) string {
	last := o.Agent.Stats().Last
	if last.IsZero() {
		last = o.Began
	}
	if now.Sub(last) > 3*o.Agent.patience()+time.Minute {
		return "no interval has ended since " + last.UTC().Format(time.RFC3339)
	}
	return ""
}

// ready says what is missing: the first interval, or a target that takes what it is sent.
func (o *Outside) ready() string {
	if o.Agent.Stats().Last.IsZero() {
		return "the first interval has not ended"
	}
	for _, q := range o.Outputs.Queues() {
		if s := q.Stats(); s.Err != nil {
			return q.Target().Kind + " does not take what it is sent"
		}
	}
	return ""
}

var (
	descSamples   = describe("samples_total", "Samples of threads that ran, and waits.")
	descWaits     = describe("waits_total", "Of these, waits.")
	descIdle      = describe("idle_samples_total", "Samples of processors that had nothing to do.")
	descLost      = describe("lost_samples_total", "Samples that were lost.")
	descStacks    = describe("stacks_total", "User stacks by why they end; outermost: they are whole.", "stop")
	descUnplaced  = describe("unplaced_samples_total", "Samples of processes that had gone before it was known where they lived.")
	descUnread    = describe("unread_processes_total", "Processes whose build ID or command line a rule asks for, and that could not be read in time.")
	descCrowded   = describe("crowded_samples_total", "Samples that were counted for the service other, because there were too many.")
	descProfiles  = describe("profiles_total", "Profiles of intervals.")
	descUnwanted  = describe("unwanted_profiles_total", "Profiles that a relabelling rule has dropped.")
	descProcesses = describe("processes", "Processes that had samples in the last interval.")
	descLast      = describe("last_interval_timestamp_seconds", "When the last interval ended.")

	descTables  = describe("kernel_tables", "Unwind tables in the kernel.")
	descBytes   = describe("kernel_table_bytes", "Their memory.")
	descMaps    = describe("kernel_map_bytes", "Memory of all maps of the programs in the kernel.")
	descRun     = describe("kernel_cpu_seconds_total", "CPU time of the programs in the kernel, where it counts it (kernel.bpf_stats_enabled).")
	descFailed  = describe("kernel_failed_total", "Address spaces and unwind tables that could not be brought into the kernel.")
	descLostWhy = describe("kernel_lost_samples_total", "Samples that the programs in the kernel have lost: ring-full (nobody read in time), nested (one interrupted another), forgotten (a thread or stack found no room).", "why")
	descOutside = describe("kernel_outside_samples_total", "Samples of processes outside the agent's container, which were not taken.")
	descWalked  = describe("walked_stacks_total", "Stacks walked in the kernel.")
	descEvicted = describe("kernel_tables_evicted_total", "Unwind tables that had to make room.")
	descSpaces  = describe("kernel_processes", "Processes whose mappings the kernel's walk knows.")
	descCopied  = describe("copied_stacks_total", "Stacks that the kernel's walk left to a copy.")
	descUnheard = describe("processors_not_recorded", "Processors that came online, and that the agent lacks the right to record.")
	descCutOff  = describe("cut_off_stacks_total", "Stacks that the kernel's walk did not finish, and that were not to be copied.")

	descOneOf     = describe("one_of_events", "Of so many events, one takes a sample, which counts for all of them: --max-cpu.")
	descThreshold = describe("wait_threshold_seconds", "Waits shorter than this are recorded by chance.")

	descSent     = describe("sent_total", "Profiles that a target has taken.", "target")
	descSentB    = describe("sent_bytes_total", "Their bytes.", "target")
	descRefused  = describe("refused_total", "Profiles that a target will not take.", "target")
	descDropped  = describe("dropped_total", "Profiles that were dropped for want of room, or because their output ended.", "target")
	descRetries  = describe("retries_total", "Attempts that failed and are repeated.", "target")
	descQueue    = describe("queue", "Profiles that wait.", "target")
	descQueueB   = describe("queue_bytes", "Their bytes.", "target")
	descFiles    = describe("files_sent_total", "Files with names of code that a target has taken.", "target")
	descFilesB   = describe("files_sent_bytes_total", "Their bytes.", "target")
	descFilesNot = describe("files_not_sent_total", "Files with names of code that were not sent: had (by the target, or another sends it), refused (by the target), unreadable (by the profiled process, or gone), nameless, large, crowded (asked for again).", "target", "why")
	descFilesErr = describe("files_failed_total", "Attempts to send a file with names of code that the target has not answered, or that broke off.", "target")
	descFilesQ   = describe("files_queue", "Files with names of code that wait.", "target")

	descTaken = describe("last_sent_timestamp_seconds", "When a target last took a profile.", "target")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("unspool_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (o *Outside) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(o, to) }

// Collect implements prometheus.Collector.
func (o *Outside) Collect(to chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	moment := func(d *prometheus.Desc, at time.Time, labels ...string) {
		if !at.IsZero() {
			gauge(d, float64(at.UnixNano())/1e9, labels...)
		}
	}
	s := o.Agent.Stats()
	counter(descSamples, s.Samples-s.Idle)
	counter(descWaits, s.Waits)
	counter(descIdle, s.Idle)
	counter(descLost, s.Lost)
	counter(descUnplaced, s.Unplaced)
	counter(descCrowded, s.Crowded)
	counter(descUnread, s.Unread)
	counter(descProfiles, s.Profiles)
	counter(descUnwanted, s.Dropped)
	gauge(descProcesses, float64(s.Processes))
	moment(descLast, s.Last)
	for stop, n := range s.Stops {
		counter(descStacks, n, unwind.Stop(stop).String())
	}
	if k, ok := o.Kernel(); ok {
		gauge(descTables, float64(k.Tables))
		gauge(descBytes, float64(k.TableBytes))
		gauge(descSpaces, float64(k.Processes))
		gauge(descMaps, float64(k.MapBytes))
		counter(descEvicted, k.Evicted)
		counter(descFailed, k.Failed)
		for why, n := range map[string]uint64{"ring-full": k.RingFull, "nested": k.Nested, "forgotten": k.Forgotten} {
			counter(descLostWhy, n, why)
		}
		to <- prometheus.MustNewConstMetric(descRun, prometheus.CounterValue, k.CPU.Seconds())
		counter(descOutside, k.Outside)
		counter(descWalked, k.Walked)
		counter(descCopied, k.Copied)
		counter(descCutOff, k.CutOff)
		gauge(descUnheard, float64(k.Unplugged))
		if k.Pace.OneOf > 0 {
			gauge(descOneOf, float64(k.Pace.OneOf))
			gauge(descThreshold, k.Pace.Threshold.Seconds())
		}
	}
	for target, s := range o.Outputs.Stats() {
		counter(descSent, s.Sent, target)
		counter(descSentB, s.SentBytes, target)
		counter(descRefused, s.Refused, target)
		counter(descDropped, s.Dropped, target)
		counter(descRetries, s.Retries, target)
		gauge(descQueue, float64(s.Waiting), target)
		gauge(descQueueB, float64(s.Bytes), target)
		moment(descTaken, s.Last, target)
	}
	for target, s := range o.Outputs.Files() {
		counter(descFiles, s.Uploads, target)
		counter(descFilesB, s.Bytes, target)
		counter(descFilesErr, s.Failed, target)
		gauge(descFilesQ, float64(s.Waiting), target)
		for why, n := range map[string]uint64{"had": s.Unneeded, "refused": s.Refused, "unreadable": s.Unreadable, "nameless": s.Nameless, "large": s.TooLarge, "crowded": s.Dropped} {
			counter(descFilesNot, n, target, why)
		}
	}
}
