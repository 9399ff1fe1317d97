package agent

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/profile"
)

// A filer is an engine that takes files with names.
type filer struct {
	taker
	mu    sync.Mutex
	asked []string
}

func (f *filer) Wants(_ context.Context, d *export.DebugFile) (bool, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, d.Name)
	return true, 0, nil
}

func (*filer) Upload(context.Context, *export.DebugFile) error { return nil }

func (f *filer) names() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.asked, " ")
}

// using is a profile with a stack in a program of the machine.
func using(t *testing.T, program string) *profile.Profile {
	t.Helper()
	path := oracle.Tool(t, program)
	id, _ := procfs.FileBuildID(path, 0)
	if id == nil {
		oracle.Lacks(t, "a "+program+" with a build ID")
	}
	return &profile.Profile{
		Modules: []profile.Module{{Path: path, BuildID: hex.EncodeToString(id)}}, Locs: []profile.Loc{{Mapping: -1}}, Stacks: []profile.Stack{{Frames: []uint32{0}, Count: 1}},
	}
}

// TestFiles: an output with names=upload is sent each file once, also after the configuration was read again; other outputs are sent none.
func TestFiles(t *testing.T) {
	o := NewOutputs(time.Second, func(target *Target, err error) { t.Errorf("%s: %v", target, err) })
	defer o.Close()
	first, second, other := &filer{}, &filer{}, &filer{}
	set := func(f *filer) {
		o.Set([]*Target{{Exporter: f, Kind: "parca", URL: "http://p?names=upload", Names: export.Uploaded}, {Exporter: other, Kind: "parca", URL: "http://q?names=none", Names: export.Nobody}}, 1<<20)
	}
	wait := func(f *filer, names string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); f.names() != names; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("asked for %q, want %q", f.names(), names)
			}
		}
	}
	sleep, env := using(t, "sleep"), using(t, "env")
	set(first)
	if o.named() {
		t.Errorf("named says that one of %d outputs takes names; they have names=upload and names=none", len(o.Queues()))
	}
	o.offer(sleep)
	wait(first, "sleep")
	set(second)
	o.offer(sleep)
	o.offer(env)
	wait(second, "env")
	if was, none := first.names(), other.names(); was != "sleep" || none != "" {
		t.Errorf("the first engine was asked for %q, want sleep; the other for %q, want nothing", was, none)
	}
	view := &Outside{Agent: newAgent(Options{}, time.Now()), Outputs: o, Kernel: func() (Kernel, bool) { return Kernel{}, false }}
	w := httptest.NewRecorder()
	view.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{`unspool_files_sent_total{target="parca=http://p?names=upload"} `, `unspool_files_not_sent_total{target="parca=http://p?names=upload",why="unreadable"} 0`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if strings.Contains(w.Body.String(), `files_sent_total{target="parca=http://q`) {
		_, line, _ := strings.Cut(w.Body.String(), `files_sent_total{target="parca=http://q`)
		line, _, _ = strings.Cut(line, "\n")
		t.Errorf("/metrics counts files of http://q%s; want no such line: this output is sent none", line)
	}
}
