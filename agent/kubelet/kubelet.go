// Package kubelet asks a node's kubelet for its pods, and tells the names that belong to the UID of a pod and to the ID of a container.
//
// Pods asks at the beginning, then each minute, and soon after somebody wanted to know a pod or a container that it does not know. Find never
// waits. A kubelet that is away, slow, refuses or lies costs an error and a counter: the names that were known stay known for some minutes. How
// much of an answer is read and kept is bounded.
//
// The answer is a v1 PodList (Kubernetes API reference, Pod). The service's name follows OpenTelemetry's convention for Kubernetes
// (semantic conventions, non-normative, "Specify resource attributes using Kubernetes annotations"), without its labels app.kubernetes.io.
package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/unspool/unspool/agent/export"
)

// Account is where Kubernetes puts the files of a pod's service account.
const Account = "/var/run/secrets/kubernetes.io/serviceaccount/"

const (
	port     = "10250"          // of the kubelet, with TLS
	patience = 10 * time.Second // for a request and all of its answer
	regular  = time.Minute      // between requests
	least    = 5 * time.Second  // between requests, if pods are wanted that are not known
	longest  = 2 * time.Minute  // between requests, if they fail
	retained = 5 * time.Minute  // names of a pod that is gone: its last samples may still come
	maxKnown = 1 << 14          // pods and containers
	maxAsked = 1 << 12          // pods and containers that are wanted and not known
	maxTries = 3                // requests within a minute for a pod or container that the kubelet does not know
	maxFile  = 4 << 20          // bytes of a file of certificates or of a token
)

// Options say how a kubelet is asked. The files are read for each request: Kubernetes renews them.
type Options struct {
	Address   string // https://HOST:PORT, http://HOST:PORT, or HOST: then https with port 10250
	CA        string // a file of certificates in PEM to trust; empty: the system's
	TokenFile string // a file with a token, which is sent by https only; empty: none
	Insecure  bool   // do not check the kubelet's certificate
}

// Names are those of a container. All are valid UTF-8 of at most 512 bytes, and may be empty.
type Names struct {
	Namespace, Pod   string
	Container, Image string // empty if only the pod is known
	Kind, Controller string // of the workload: Deployment, StatefulSet, DaemonSet, CronJob, Job, ReplicaSet, or another owner's kind
	Service          string // OpenTelemetry's service.name
	ServiceNamespace string // OpenTelemetry's service.namespace, if an annotation gives it
}

// Pods know the names of a node's pods. They are safe for concurrent use. A nil *Pods knows none.
type Pods struct {
	o      Options
	url    *url.URL
	wanted chan struct{}

	mu    sync.Mutex
	known map[string]entry // by UIDs of pods and IDs of containers
	tries map[string]int   // of what is not known
	stats Stats
}

type entry struct {
	*Names
	until time.Time // then it is forgotten
}

// Stats count what Pods have done.
type Stats struct {
	Asked, Failed uint64
	Damaged       uint64 // pods of answers that could not be read
	Known         int    // pods and containers
	Last          time.Time
	Err           error // of the last request
}

// New returns Pods that know nothing yet: see Run.
func New(o Options) (*Pods, error) {
	if !strings.Contains(o.Address, "/") {
		if host := strings.Trim(o.Address, "[]"); net.ParseIP(host) != nil || !strings.Contains(host, ":") {
			o.Address = net.JoinHostPort(host, port)
		}
		o.Address = "https://" + o.Address
	}
	u, err := url.Parse(o.Address)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%q: the kubelet is at https://HOST:10250, or http://127.0.0.1:10255", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q: the URL of a kubelet has no user, no query and no fragment", u.Redacted())
	}
	return &Pods{o: o, url: u.JoinPath("pods"), wanted: make(chan struct{}, 1), known: map[string]entry{}, tries: map[string]int{}}, nil
}

// Find returns the names of a container, by its ID, or else those of its pod, by its UID. It asks for what is not known, and does not wait.
func (p *Pods) Find(pod, container string) (n Names, ok bool) {
	if p == nil {
		return n, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range []string{container, pod} {
		if id == "" {
			continue
		}
		if e, known := p.known[id]; known {
			return *e.Names, true
		}
		if pod != "" { // a container without a pod is not the kubelet's
			p.want(id)
		}
	}
	return n, false
}

func (p *Pods) want(id string) {
	n, asked := p.tries[id]
	if n >= maxTries || !asked && len(p.tries) >= maxAsked {
		return
	}
	p.tries[id] = n // counted when the kubelet has been asked
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

// Run asks until ctx ends. It calls log with an error when requests begin to fail, and with nil when they succeed again.
func (p *Pods) Run(ctx context.Context, log func(error)) {
	p.run(ctx, log, p.fetch)
}

func (p *Pods) run(ctx context.Context, log func(error), fetch func(context.Context) (map[string]*Names, int, error)) {
	var last, full time.Time // requests, and those of each minute
	failures := 0
	for due := time.Now(); ; {
		wanted := p.wanted
		if failures > 0 {
			wanted = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-wanted:
			if soon := last.Add(least + jitter(least)); soon.Before(due) {
				due = soon
			}
			continue
		case <-time.After(time.Until(due)):
		}
		names, damaged, err := fetch(ctx)
		if ctx.Err() != nil {
			return
		}
		last = time.Now()
		again := last.Sub(full) >= regular
		if again {
			full = last
		}
		p.learn(names, damaged, err, last, again)
		if err != nil {
			if failures++; failures == 1 {
				log(err)
			}
			pause := min(least<<min(failures-1, 10), longest)
			due = last.Add(pause + jitter(pause))
			continue
		}
		if failures > 0 {
			log(nil)
		}
		failures = 0
		due = last.Add(regular + jitter(regular))
	}
}

// jitter is up to a fifth of a time, so that the agents of many nodes do not ask together.
func jitter(d time.Duration) time.Duration { return rand.N(d / 5) }

// learn takes an answer, or the error of a request. again says that what the kubelet did not know may be asked for again.
func (p *Pods) learn(names map[string]*Names, damaged int, err error, now time.Time, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Asked++
	p.stats.Err = err
	p.stats.Damaged += uint64(damaged)
	for id, e := range p.known {
		if now.After(e.until) {
			delete(p.known, id)
		}
	}
	if len(p.known)+len(names) > maxKnown {
		clear(p.known)
	}
	for id, n := range names { // at most maxKnown
		p.known[id] = entry{n, now.Add(retained)}
	}
	p.stats.Known = len(p.known)
	if again {
		clear(p.tries)
	} else if err == nil {
		for id := range p.tries {
			p.tries[id]++
		}
	}
	if err != nil {
		p.stats.Failed++
		return
	}
	p.stats.Last = now
}

// fetch asks the kubelet. It returns the names by UIDs of pods and IDs of containers, and how many pods could not be read.
func (p *Pods) fetch(ctx context.Context) (map[string]*Names, int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	t := &http.Transport{
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: p.o.Insecure},
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		DisableKeepAlives:      true,
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url.String(), nil)
	if err != nil {
		return nil, 0, err
	}
	if p.url.Scheme == "https" {
		if p.o.CA != "" && !p.o.Insecure {
			pem, err := read(p.o.CA)
			if err != nil {
				return nil, 0, err
			}
			t.TLSClientConfig.RootCAs = x509.NewCertPool()
			if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
				return nil, 0, fmt.Errorf("%s has no certificate in PEM", p.o.CA)
			}
		}
		if p.o.TokenFile != "" {
			token, err := read(p.o.TokenFile)
			if err != nil {
				return nil, 0, err
			}
			word := string(bytes.TrimSpace(token))
			if word == "" || strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return nil, 0, fmt.Errorf("%s holds no token", p.o.TokenFile)
			}
			req.Header.Set("Authorization", "Bearer "+word)
		}
	}
	client := http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("the kubelet does not answer: %s", words(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return nil, 0, fmt.Errorf("the kubelet refuses: %d %s", resp.StatusCode, export.Words(string(b)))
	}
	names, damaged, err := decode(resp.Body)
	if err != nil {
		return nil, damaged, fmt.Errorf("the kubelet's answer: %s", words(err))
	}
	return names, damaged, nil
}

// words are an error's: a server may have put its own into it.
func words(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() {
			return "no answer in time"
		}
		err = u.Err
	}
	return export.Words(err.Error())
}

// read reads a small file.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, err
}

// Stats returns what the Pods have done so far.
func (p *Pods) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

var (
	descAsked   = prometheus.NewDesc("unspool_kubelet_requests_total", "Requests to the kubelet.", nil, nil)
	descFailed  = prometheus.NewDesc("unspool_kubelet_failed_requests_total", "Requests that it did not answer, or answered with an error.", nil, nil)
	descDamaged = prometheus.NewDesc("unspool_kubelet_damaged_pods_total", "Pods of its answers that could not be read.", nil, nil)
	descKnown   = prometheus.NewDesc("unspool_kubelet_names", "Pods and containers that have names.", nil, nil)
	descLast    = prometheus.NewDesc("unspool_kubelet_last_answer_timestamp_seconds", "When the kubelet last told its pods.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *Pods) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(p, to) }

// Collect implements prometheus.Collector.
func (p *Pods) Collect(to chan<- prometheus.Metric) {
	s := p.Stats()
	to <- prometheus.MustNewConstMetric(descAsked, prometheus.CounterValue, float64(s.Asked))
	to <- prometheus.MustNewConstMetric(descFailed, prometheus.CounterValue, float64(s.Failed))
	to <- prometheus.MustNewConstMetric(descDamaged, prometheus.CounterValue, float64(s.Damaged))
	to <- prometheus.MustNewConstMetric(descKnown, prometheus.GaugeValue, float64(s.Known))
	last := 0.0
	if !s.Last.IsZero() {
		last = float64(s.Last.UnixNano()) / 1e9
	}
	to <- prometheus.MustNewConstMetric(descLast, prometheus.GaugeValue, last)
}
