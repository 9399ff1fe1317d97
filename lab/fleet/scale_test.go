package fleet

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/oracle"
)

// setting is the number in an environment variable, or what it is without.
func setting(t *testing.T, name string, without int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return without
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q", name, s)
	}
	return n
}

// TestScale measures what agents send of several loads, and plays 2,000 agents (UNSPOOL_FLEET_AGENTS) that send it to one collector each minute
// (UNSPOOL_FLEET_INTERVAL, in seconds), by gRPC and by HTTP, with names and without. Then the collector is away for 30 seconds. Each agent has its own
// name, queue and connection. All requests must arrive, or be counted; no second may have more than twice the mean, or six times after the absence,
// unless the machine held up the test.
func TestScale(t *testing.T) {
	oracle.Full(t)
	agents, every := setting(t, "UNSPOOL_FLEET_AGENTS", 2000), time.Duration(setting(t, "UNSPOOL_FLEET_INTERVAL", 60))*time.Second
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if most := int(limit.Max) - 500; agents > most {
		t.Logf("%d agents in place of %d: a process may have %d descriptors here", most, agents, limit.Max)
		agents = most
	}
	all := recorded(t, 10*time.Second, 3)
	for _, l := range all {
		named, plain := figureOf(l.Named), figureOf(l.Plain)
		t.Logf("| %s | %d | %.1f | %.1f | %.0f | %.0f | %.0f | %.0f |", l.name, l.frequency, named.samples, named.requests,
			named.bytes*60/1000, plain.bytes*60/1000, named.bytes/named.samples, plain.bytes/plain.samples)
	}
	for _, c := range []struct {
		scheme string
		named  bool
	}{{"grpc", true}, {"grpc", false}, {"http", true}} {
		t.Run(fmt.Sprintf("%s/named=%v", c.scheme, c.named), func(t *testing.T) { scale(t, all, agents, every, c.scheme, c.named) })
	}
}

// scale plays agents against a collector that takes requests and does nothing with them: an interval until all have sent, one that is measured, 30 s in
// which the collector is away, and the time until all has arrived.
func scale(t *testing.T, all []*load, agents int, every time.Duration, scheme string, named bool) {
	var plays []play
	for _, l := range all {
		list := l.Named
		if !named {
			list = l.Plain
		}
		for _, i := range list[:3] {
			plays = append(plays, playOf(t, i))
		}
	}
	c := newCollector(t, scheme, false)
	c.start(t, "")
	runtime.GC()
	debug.FreeOSMemory()
	self := os.Getpid()
	sender, idle := useOf(t, self), useOf(t, c.cmd.Process.Pid)
	preparing := time.Now()
	f := start(t, agents, "otlp="+scheme+"://"+c.at, every, func(int) int64 { return agent.DefaultQueue }, func(i int, e export.Exporter) (export.Exporter, int) {
		p := &player{e, zip([]byte(hostName(i))), plays[i%len(plays)]}
		return p, len(p.play)
	})
	defer f.stop()
	t.Logf("%d agents were ready in %v", agents, time.Since(preparing).Round(time.Millisecond))
	time.Sleep(time.Until(f.began.Add(every + 2*time.Second)))
	from := time.Now()
	before, beforeSender := useOf(t, c.cmd.Process.Pid), useOf(t, self)
	_, s0 := f.sum()
	late := held(every)
	to := time.Now()
	after, afterSender := useOf(t, c.cmd.Process.Pid), useOf(t, self)
	_, s1 := f.sum()
	n := float64(s1.Sent - s0.Sent)
	tries, most := f.most(from, to, time.Second)
	mean := float64(tries) / to.Sub(from).Seconds()
	t.Logf("%d agents, each %v, %d connections to the collector", agents, every, connections(t, c.cmd.Process.Pid))
	t.Logf("in %.0f s: %.0f requests, %.0f a second, %.1f kB each, %.1f kB a minute from an agent; %d tried again, %d refused, %d dropped, %d wait",
		to.Sub(from).Seconds(), n, n/to.Sub(from).Seconds(), float64(s1.SentBytes-s0.SentBytes)/n/1000, float64(s1.SentBytes-s0.SentBytes)/float64(agents)/to.Sub(from).Minutes()/1000,
		s1.Retries-s0.Retries, s1.Refused-s0.Refused, s1.Dropped-s0.Dropped, s1.Waiting)
	t.Logf("tries: %.0f a second, at most %d: %.2f times the mean", mean, most, float64(most)/mean)
	t.Logf("the collector: %.2f of a processor, %.0f µs a request; memory %d MiB, before the agents came %d MiB: %.1f KiB an agent",
		(after.cpu-before.cpu).Seconds()/to.Sub(from).Seconds(), float64((after.cpu-before.cpu).Microseconds())/n, after.kib>>10, idle.kib>>10, float64(after.kib-idle.kib)/float64(agents))
	t.Logf("the agents: %.2f of a processor, %.0f µs a request; memory %d MiB: %.1f KiB an agent",
		(afterSender.cpu-beforeSender.cpu).Seconds()/to.Sub(from).Seconds(), float64((afterSender.cpu-beforeSender.cpu).Microseconds())/n, afterSender.kib>>10, float64(afterSender.kib-sender.kib)/float64(agents))
	t.Logf("the machine held up the test for %v at most", late.Round(time.Millisecond))
	if float64(most) > 2*mean && late < time.Second/4 { // else the agents sent when they could run
		t.Errorf("a second has %d tries; the mean is %.0f", most, mean)
	}

	c.stop(t)
	time.Sleep(30 * time.Second)
	_, s2 := f.sum()
	t.Logf("after 30 s without the collector: %d requests of %.1f MB wait, %d tries have failed, %d dropped; the agents' memory %d MiB", s2.Waiting, float64(s2.Bytes)/1e6, s2.Retries-s1.Retries, s2.Dropped-s1.Dropped, useOf(t, self).kib>>10)
	back := time.Now()
	c.start(t, "")
	late = held(time.Minute) // pauses after 30 s are shorter
	f.drained(t, 2*time.Minute)
	_, s3 := f.sum()
	tries, most = f.most(back, back.Add(time.Minute), time.Second)
	t.Logf("in the minute after it was back: %d tries, at most %d in a second: %.2f times the mean of before; the collector's memory %d MiB", tries, most, float64(most)/mean, useOf(t, c.cmd.Process.Pid).kib>>10)
	if float64(most) > 6*mean && late < time.Second/4 {
		t.Errorf("a second has %d tries; the mean was %.0f before", most, mean)
	}
	f.stop()
	made, s := f.sum()
	t.Logf("%d requests in all: %d sent, %d refused, %d dropped at the end; %d dropped before, %d tries failed", made, s.Sent, s.Refused, s.Dropped-s3.Dropped, s3.Dropped, s.Retries)
	if made != s.Sent+s.Dropped || s3.Dropped > 0 {
		t.Errorf("%d profiles, %+v; before the end %+v", made, s, s3)
	}
}

// connections is how many descriptors a process has.
func connections(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
