package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile/pprof"
)

// TestSend: an engine that takes a recording, and one that does not: the recording stays, and what sends it again is said.
func TestSend(t *testing.T) {
	oracle.Long(t)
	data, err := filepath.Abs("../../testdata/perf.data")
	if err != nil {
		t.Fatal(err)
	}
	var samples uint64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/full/") {
			http.Error(w, `{"code":"resource_exhausted","message":"too\u001b many"}`, http.StatusTooManyRequests)
			return
		}
		body, _ := io.ReadAll(r.Body)
		var req struct {
			Series []struct{ Samples []struct{ RawProfile []byte } }
		}
		if err := json.Unmarshal(body, &req); err != nil {
			t.Error(err)
			return
		}
		p, err := pprof.Read(strings.NewReader(string(req.Series[0].Samples[0].RawProfile)))
		if err != nil {
			t.Error(err)
			return
		}
		samples += p.Totals.Samples
		io.WriteString(w, "{}")
	}))
	defer s.Close()
	r := runProgram(t, "report", data, "--to", "pyroscope="+s.URL, "--to", "parca="+s.URL, "--label", "a=b")
	r.want(t, 0, `(?s)pyroscope=http://\S+: sent 10 samples, \S+ \w+; look there for process_cpu:cpu:nanoseconds:cpu:nanoseconds\{a="b",.*parca=http://\S+: sent 10 samples`)
	if samples != 20 || r.out != "" {
		t.Errorf("%d samples arrived; %q", samples, r.out)
	}
	r = runProgram(t, "report", data, "--to", "parca="+s.URL, "--to", "parca="+s.URL+"/full", "--label", "a=it's")
	r.want(t, 1, `429 Too Many Requests: too  ?many \(try again\)\nunspool: not all was sent; `+regexp.QuoteMeta(data)+` has it: unspool report --to parca=http://127.0.0.1:\d+/full --label 'a=it'\\''s' `)

	c := program(t, "record", "--to", "parca="+s.URL+"/full", "-F", "499", "--", "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	r = finish(t, c)
	r.want(t, 1, `not all was sent; unspool.data has it: unspool report --to parca=`)
	if _, err := os.Stat(filepath.Join(c.Dir, "unspool.data")); err != nil {
		t.Error(err)
	}
}

// TestSendUsage: what is refused before anything is recorded or read.
func TestSendUsage(t *testing.T) {
	oracle.Long(t)
	for args, want := range map[string]string{
		"report x --to a":                                          `a target is KIND=URL, and KIND is files, otlp, parca, pyroscope or stdout`,
		"report x --to parca=ftp://a":                              `no http or https URL`,
		"report x --to otlp=grpc://a/b":                            `gRPC has no paths`,
		"report x --label a=b":                                     `--label, --ca and --token-file are for --to`,
		"report x --to parca=http://a --label a":                   `a label is name=value`,
		"report x --to parca=http://a -o x.svg":                    `it does not go with -o`,
		"record --to parca=http://a -o x.svg -- ls":                `it does not go with flame`,
		"record --to parca=http://a --label a=b --label a=c -- ls": `a is given twice`,
	} {
		runProgram(t, strings.Fields(args)...).want(t, 2, want)
	}
}
