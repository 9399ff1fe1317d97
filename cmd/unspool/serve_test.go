package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
)

// TestServe serves a recording, and the same as pprof: the page has the numbers of report.
func TestServe(t *testing.T) {
	canRecord(t)
	dir := t.TempDir()
	file, pb := filepath.Join(dir, "x.data"), filepath.Join(dir, "x.pb.gz")
	runProgram(t, append([]string{"record", "-o", file, "--"}, busy...)...).want(t, 7, "samples")
	runProgram(t, "report", file, "-o", pb).want(t, 0, "")
	r := runProgram(t, "report", file)
	r.want(t, 0, "")
	head, _, _ := strings.Cut(r.out, " ")

	page := filepath.Join(dir, "page.html")
	runProgram(t, "serve", file, "--export", page).want(t, 0, "")
	if b, err := os.ReadFile(page); err != nil || !strings.Contains(string(b), `"samples":`+strings.ReplaceAll(head, ",", "")+",") {
		t.Errorf("the page of %s samples: %d bytes, %v", head, len(b), err)
	}
	runProgram(t, "serve", file, "--export", file).want(t, 2, "is the input")
	for _, args := range [][]string{{file}, {pb}, {file, "--baseline", pb}, {file, pb}, {"--listen", "0.0.0.0:0", file}} {
		c := program(t, append([]string{"serve"}, args...)...)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		timeout := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
		url, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("no address: %v\n%s", err, stderr.String())
		}
		url = strings.TrimSpace(url)
		jar, _ := cookiejar.New(nil)
		client := &http.Client{Jar: jar}
		if r, err := client.Get(url); err != nil || r.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v %v", url, r, err)
		}
		url, token, _ := strings.Cut(url, "?token=")
		if r, err := http.Get(url); err != nil || r.StatusCode != http.StatusForbidden || len(token) < 26 {
			t.Errorf("%s without the token: %v %v", url, r, err)
		}
		get := func(path string, v any) int {
			r, err := client.Get(url + path)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			b, err := io.ReadAll(r.Body)
			if err == nil && r.StatusCode == http.StatusOK {
				err = json.Unmarshal(b, v)
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			return r.StatusCode
		}
		if got := get("api/status", new(any)); got != http.StatusOK {
			t.Fatalf("%s: status %d", url, got)
		}
		var st struct{ State, Error string }
		for st.State != "ready" {
			get("api/status", &st)
			if st.State == "failed" {
				t.Fatalf("%s: api/status is failed, want ready: %s", url, st.Error)
			}
		}
		var top struct {
			All  [2]uint64
			Rows []struct{ ID int }
		}
		if get("api/top", &top); profile.Comma(top.All[0]) != head {
			t.Errorf("serve %v: %d samples, report has %s", args, top.All[0], head)
		}
		two := args[0] == file && len(args) > 1
		if two && top.All[0] != top.All[1] || !two && top.All[1] != 0 {
			t.Errorf("a recording and the same as pprof: %v", top.All)
		}
		var source map[string]any
		want := http.StatusOK
		if args[0] == pb {
			want = http.StatusBadRequest // pprof's files lead to no source
		}
		if got := get(fmt.Sprintf("api/source?fn=%d", top.Rows[0].ID), &source); got != want {
			t.Errorf("serve %v: source: status %d, want %d", args, got, want)
		}
		c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("serve %v: %v\n%s", args, err, stderr.String())
		}
		if note := strings.Contains(stderr.String(), "; write --baseline "+pb+" instead"); note != (len(args) == 2 && two) {
			t.Errorf("serve %v: %s", args, stderr.String())
		}
		timeout.Stop()
	}
}

// TestListenRefused: the message about an address that cannot be had names the flag, and the address once.
func TestListenRefused(t *testing.T) {
	file, err := filepath.Abs("../../testdata/perf.data")
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	runProgram(t, "serve", "--listen", addr, file).want(t, 1, "^unspool: --listen "+addr+": bind: address already in use\n$")
}
