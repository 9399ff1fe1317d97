package otelctx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

const (
	young     = time.Second           // a process that is younger is not looked at: most have published nothing yet, and many end before they do
	patience  = 20 * time.Millisecond // for the memory of a process
	grudge    = 10 * time.Second      // in which no process is waited for, after one was slow
	maxStuck  = 8                     // threads that a slow process holds
	soonest   = 5 * time.Second       // until a process without a context is looked at again; then twice as long each time
	latest    = 10 * time.Minute
	changed   = time.Minute // until a context is looked at again
	maxKnown  = 1 << 14     // processes
	forgotten = 2 * time.Minute
)

// A Reader knows the contexts of processes. It is safe for concurrent use. A nil *Reader knows none.
type Reader struct {
	read func(pid int32, known uint64) (result, error)
	now  func() time.Time
	age  func(start uint64) time.Duration

	mu    sync.Mutex
	known map[int32]*entry
	stuck int       // reads that go on
	angry time.Time // until when no read is waited for
	swept time.Time
	stats Stats
}

type result struct {
	service   Service
	published uint64 // when, in nanoseconds since boot; 0: there is none
}

// An entry is a process.
type entry struct {
	result
	start   uint64    // of the process, in ticks since boot: another process may have its number
	next    time.Time // when it is read again
	pause   time.Duration
	asked   time.Time
	reading bool
}

// Stats count what a Reader has done.
type Stats struct {
	Reads    uint64 // looks at a process
	Failed   uint64 // contexts that could not be read
	Slow     uint64 // processes that did not let themselves be read in time
	Skipped  uint64 // looks that were left out because slow processes held all threads
	Contexts int    // processes with a context
}

// NewReader returns a Reader that knows no process.
func NewReader() *Reader {
	return &Reader{read: look, now: time.Now, age: age, known: map[int32]*entry{}}
}

// Of returns what a process says of itself, as far as that is known now; it returns the zero Service if the process says nothing. A process with a context
// is looked at each minute, one without more and more seldom. Of waits up to 20 ms, once in 10 s.
func (r *Reader) Of(pid int32) Service {
	if r == nil {
		return Service{}
	}
	start := started(pid)
	r.mu.Lock()
	now := r.now()
	r.sweep(now)
	e := r.known[pid]
	if e == nil || e.start != start {
		if start == 0 {
			r.mu.Unlock()
			return Service{}
		}
		e = &entry{start: start}
		if age := r.age(start); age >= 0 && age < young {
			e.next = now.Add(young - age)
		}
		r.known[pid] = e
	}
	e.asked = now
	if e.reading || now.Before(e.next) {
		defer r.mu.Unlock()
		return e.service
	}
	if r.stuck >= maxStuck {
		r.stats.Skipped++
		defer r.mu.Unlock()
		return e.service
	}
	r.stuck++
	r.stats.Reads++
	e.reading = true
	wait := !now.Before(r.angry)
	before := e.published
	r.mu.Unlock()

	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err := r.read(pid, before)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stuck--
		e.reading = false
		r.learn(e, got, err)
	}()
	slow := !wait
	if wait {
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case <-done:
		case <-t.C:
			slow = true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if wait && slow {
		r.stats.Slow++
		r.angry = r.now().Add(grudge)
	}
	return e.service
}

// learn takes what a look at a process has found.
func (r *Reader) learn(e *entry, got result, err error) {
	if err != nil && !errors.Is(err, errNone) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		r.stats.Failed++
	}
	if errors.Is(err, errBusy) { // what it said before holds
		return
	}
	switch {
	case err != nil:
		e.result = result{}
	case got.published != e.published:
		e.result = got
	}
	e.pause = min(max(2*e.pause, soonest), latest)
	if e.published != 0 {
		e.pause = changed
	}
	e.next = r.now().Add(e.pause)
}

// sweep forgets processes that nobody has asked for, and all if there are too many.
func (r *Reader) sweep(now time.Time) {
	if len(r.known) < maxKnown && now.Sub(r.swept) < forgotten {
		return
	}
	r.swept = now
	for pid, e := range r.known {
		if now.Sub(e.asked) >= forgotten {
			delete(r.known, pid)
		}
	}
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
}

// look reads the context of a process, unless it is the one known, which is published at that time.
func look(pid int32, known uint64) (result, error) {
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return result{}, err
	}
	defer memory.Close()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return result{}, err
	}
	defer maps.Close()
	all, err := candidates(maps, sharedMemory())
	if err == nil {
		err = errNone
	}
	for _, at := range all {
		s, published, e := readContext(memory, at, known, func(lo, hi uint64) bool {
			return covered(io.NewSectionReader(maps, 0, maxMaps), sharedMemory(), lo, hi)
		})
		if e == nil {
			return result{s, published}, nil
		}
		err = e
	}
	return result{}, err
}

// sharedMemory is the file system that the kernel has for memory that memfd_create(2) and mmap(2) share; one that nothing has, if that is not known.
var sharedMemory = sync.OnceValue(func() device {
	none := device{1<<32 - 1, 1<<32 - 1}
	fd, err := unix.MemfdCreate("unspool", unix.MFD_CLOEXEC)
	if err != nil {
		return none
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return none
	}
	return device{unix.Major(st.Dev), unix.Minor(st.Dev)}
})

// started returns when a process started, in ticks since boot (proc_pid_stat(5), field 22); 0 if it has gone.
func started(pid int32) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	i := bytes.LastIndexByte(b, ')') // the name may have some
	if err != nil || i < 0 {
		return 0
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return 0
	}
	n, _ := strconv.ParseUint(string(f[19]), 10, 64)
	return n
}

// age returns how long ago a process started.
func age(start uint64) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return young
	}
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(t.Nano()) - time.Duration(start)*tick
}

// Stats returns what the Reader has done so far.
func (r *Reader) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	for _, e := range r.known {
		if e.published != 0 {
			s.Contexts++
		}
	}
	return s
}

var (
	descReads    = prometheus.NewDesc("unspool_process_context_reads_total", "Looks at a process for its OpenTelemetry context.", nil, nil)
	descFailed   = prometheus.NewDesc("unspool_process_context_failed_total", "Contexts that could not be read.", nil, nil)
	descSlow     = prometheus.NewDesc("unspool_process_context_slow_total", "Processes that did not let their context be read in time.", nil, nil)
	descSkipped  = prometheus.NewDesc("unspool_process_context_skipped_total", "Looks that were left out, because slow processes held all threads.", nil, nil)
	descContexts = prometheus.NewDesc("unspool_process_contexts", "Processes that have a context.", nil, nil)
)

// Describe implements prometheus.Collector.
func (r *Reader) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(r, to) }

// Collect implements prometheus.Collector.
func (r *Reader) Collect(to chan<- prometheus.Metric) {
	s := r.Stats()
	to <- prometheus.MustNewConstMetric(descReads, prometheus.CounterValue, float64(s.Reads))
	to <- prometheus.MustNewConstMetric(descFailed, prometheus.CounterValue, float64(s.Failed))
	to <- prometheus.MustNewConstMetric(descSlow, prometheus.CounterValue, float64(s.Slow))
	to <- prometheus.MustNewConstMetric(descSkipped, prometheus.CounterValue, float64(s.Skipped))
	to <- prometheus.MustNewConstMetric(descContexts, prometheus.GaugeValue, float64(s.Contexts))
}
