package fleet

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	profiles "go.opentelemetry.io/proto/slim/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/oracle"
)

// A load is a command that a real agent profiles. Its requests are what the fleet's agents send.
type load struct {
	name      string
	frequency int // Hz
	command   string

	Named, Plain []interval // what was sent of whole intervals, with names and with names=none
}

// An interval is the requests that an agent sends for one: one for each place.
type interval struct {
	At       uint64 // Unix time in nanoseconds
	Length   time.Duration
	Requests [][]byte // compressed
	Raw      [][]byte
	Samples  uint64
}

// loads are what machines do. Those of shell scripts end when the file "enough" in their directory is there.
func loads() []*load {
	const until = "while [ ! -e enough ]; do %s; done"
	compile := fmt.Sprintf(until, "g++ -O2 -c program.cc -o $1.o")
	return []*load{
		{name: "almost idle", frequency: 19, command: fmt.Sprintf(until, "sleep 0.5; date >/dev/null")},
		{name: "short processes", frequency: 19, command: fmt.Sprintf(until, "date >/dev/null; ls / >/dev/null; expr 7 + 2 >/dev/null; grep -c root /etc/passwd >/dev/null")},
		{name: "python3", frequency: 19, command: "python3 program.py"},
		{name: "node", frequency: 19, command: "node program.js"},
		{name: "g++", frequency: 19, command: "set 1; " + compile},
		{name: "two of g++", frequency: 19, command: "(set 1; " + compile + ") & (set 2; " + compile + ") & wait"},
		{name: "g++, 97 Hz", frequency: 97, command: "set 1; " + compile},
	}
}

// programs are what the loads run. They end with the file "enough".
var programs = map[string]string{
	"program.cc": "#include <algorithm>\n#include <iostream>\n#include <map>\n#include <regex>\n#include <string>\n" +
		"int main(int n, char **v) { std::regex r(\"(a|b)*c\"); std::map<std::string, int> m; for (int i = 1; i < n; i++) m[std::regex_replace(v[i], r, \"x\")]++; for (auto &e : m) std::cout << e.first << e.second; }\n",
	"program.py": "import json, os, re\n" +
		"def words(s): return sorted(re.findall(r'\\w+', s))\n" +
		"def tree(n): return {'k%d' % i: tree(n - 1) if i % 2 else [i, str(i)] for i in range(n)}\n" +
		"while not os.path.exists('enough'):\n\tt = json.dumps(tree(9))\n\tjson.loads(t)\n\twords(t)\n",
	"program.js": "const fs = require('fs'), zlib = require('zlib'), crypto = require('crypto');\n" +
		"function tree(n) { const o = {}; for (let i = 0; i < n; i++) o['k' + i] = i % 2 ? tree(n - 1) : [i, String(i)]; return o; }\n" +
		"while (!fs.existsSync('enough')) { const s = JSON.stringify(tree(9)); JSON.parse(s); zlib.gzipSync(s); crypto.createHash('sha256').update(s).digest('hex'); s.match(/k\\d+/g).sort(); }\n",
}

// recorded returns the loads with requests, which it keeps in a file for the next run if UNSPOOL_FLEET_REQUESTS names one.
func recorded(t *testing.T, every time.Duration, intervals int) (all []*load) {
	t.Helper()
	path := os.Getenv("UNSPOOL_FLEET_REQUESTS")
	if b, err := os.ReadFile(path); err == nil {
		all = loads()
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		t.Logf("the requests are those of %s", path)
		return all
	}
	all = record(t, every, intervals)
	if path != "" {
		b, err := json.Marshal(all)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// record profiles the loads by real agents, one after the other, and keeps the requests of so many whole intervals of that length.
func record(t *testing.T, every time.Duration, intervals int) []*load {
	t.Helper()
	oracle.Need(t, "go", "sh", "g++", "python3", "node")
	if os.Getuid() != 0 {
		oracle.Lacks(t, "root, to record by an agent")
	}
	exe := filepath.Join(t.TempDir(), "unspool")
	oracle.Run(t, "go", "build", "-o", exe, "../../cmd/unspool")
	all := loads()
	for _, l := range all {
		l.record(t, exe, every, intervals)
	}
	return all
}

func (l *load) record(t *testing.T, exe string, every time.Duration, intervals int) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	got := map[string][][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Encoding") != "gzip" {
			http.Error(w, "want gzip", http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		got[kind] = append(got[kind], b)
	}))
	defer server.Close()
	c := exec.Command(exe, "agent", "--listen", "", "-F", strconv.Itoa(l.frequency), "--interval", every.String(), "--label", "node="+hostName(0),
		"--output", "otlp="+server.URL+"/named", "--output", "otlp="+server.URL+"/plain?names=none", "--", "sh", "-c", l.command)
	c.Dir = dir
	c.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log bytes.Buffer
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	time.Sleep(time.Duration(intervals+2) * every) // the first and the last are shorter, and may hold what the agent does at first
	if err := os.WriteFile(filepath.Join(dir, "enough"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", l.name, err, &log)
	}
	mu.Lock()
	defer mu.Unlock()
	l.Named, l.Plain = whole(t, got["named"], every), whole(t, got["plain"], every)
	if len(l.Named) < intervals || len(l.Named) != len(l.Plain) {
		t.Fatalf("%s: %d and %d whole intervals, want %d\n%s", l.name, len(l.Named), len(l.Plain), intervals, &log)
	}
}

// whole sorts requests by intervals, and leaves out those that are not whole.
func whole(t *testing.T, requests [][]byte, every time.Duration) (out []interval) {
	t.Helper()
	all := map[uint64]*interval{}
	for _, z := range requests {
		r, err := gzip.NewReader(bytes.NewReader(z))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		var m profiles.ExportProfilesServiceRequest
		if err := proto.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		for _, p := range m.ResourceProfiles[0].ScopeProfiles[0].Profiles {
			i := all[p.TimeUnixNano]
			if i == nil {
				i = &interval{At: p.TimeUnixNano, Length: time.Duration(p.DurationNano)}
				all[p.TimeUnixNano] = i
			}
			if m.Dictionary.StringTable[p.SampleType.TypeStrindex] != "samples" {
				continue
			}
			i.Requests, i.Raw = append(i.Requests, z), append(i.Raw, raw)
			for _, s := range p.Samples {
				for _, v := range s.Values {
					i.Samples += uint64(v)
				}
			}
		}
	}
	for _, i := range all {
		if i.Length > every-time.Second && i.Length < every+time.Second {
			out = append(out, *i)
		}
	}
	slices.SortFunc(out, func(a, b interval) int { return cmp.Compare(a.At, b.At) })
	return out
}

// A figure is what an agent sends of a load, on average.
type figure struct {
	requests       float64 // for an interval
	bytes, samples float64 // in a second
	raw            float64 // bytes before compression, in a second
}

func figureOf(list []interval) (f figure) {
	seconds := 0.0
	for _, i := range list {
		seconds += i.Length.Seconds()
		f.requests += float64(len(i.Requests))
		f.samples += float64(i.Samples)
		for k, z := range i.Requests {
			f.bytes += float64(len(z))
			f.raw += float64(len(i.Raw[k]))
		}
	}
	f.requests, f.bytes, f.samples, f.raw = f.requests/float64(len(list)), f.bytes/seconds, f.samples/seconds, f.raw/seconds
	return f
}

// A play is an interval that any machine can send: each request in three parts that gzip has compressed, of which the middle one is the machine's name.
// A file of gzip may have several (RFC 1952, section 2.2).
type play [][2][]byte

func playOf(t *testing.T, i interval) (p play) {
	t.Helper()
	for _, raw := range i.Raw {
		head, tail, ok := bytes.Cut(raw, []byte(hostName(0)))
		if !ok || bytes.Contains(tail, []byte(hostName(0))) {
			t.Fatalf("a request has not one name of its machine")
		}
		p = append(p, [2][]byte{zip(head), zip(tail)})
	}
	return p
}

func zip(b []byte) []byte {
	var z bytes.Buffer
	w, _ := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	w.Write(b)
	w.Close()
	return z.Bytes()
}

// A player is an exporter that sends requests of a real agent, with another machine's name in them: the same ones in each interval.
type player struct {
	export.Exporter
	name []byte // compressed
	play play
}

// Encode returns the request of a place. The service of a place is its number in the play.
func (p *player) Encode(b *export.Batch) (*export.Request, error) {
	at, err := strconv.Atoi(b.Label(export.ServiceName))
	if err != nil {
		return nil, err
	}
	return &export.Request{Body: slices.Concat(p.play[at][0], p.name, p.play[at][1])}, nil
}
