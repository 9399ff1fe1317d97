package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// TestTargetOptions: the options of a server's URL hold for it alone, and stand before those of all servers.
func TestTargetOptions(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token, word := file("token", "all"), file("word", "me:word")
	var got *http.Request
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Write([]byte("{}"))
	}))
	defer s.Close()
	for _, c := range []struct{ query, authorization, tenant string }{
		{"", "Bearer all", ""},
		{"?header=X-Scope-OrgID:a", "Bearer all", "a"},
		{"?password-file=" + word, "Basic bWU6d29yZA==", ""},
		{"?token-file=" + file("other", "one") + "&header=X-Scope-OrgID:b", "Bearer one", "b"},
	} {
		name := "pyroscope=" + s.URL + "/base" + c.query
		target, err := Open(name, export.Options{TokenFile: token})
		if err != nil {
			t.Fatal(err)
		}
		if target.String() != name {
			t.Errorf("%s is called %s", name, target)
		}
		if _, err := target.Send(context.Background(), &export.Request{}); err != nil {
			t.Fatal(err)
		}
		if got.URL.RawQuery != "" || !strings.HasPrefix(got.URL.Path, "/base/") || got.Header.Get("Authorization") != c.authorization || got.Header.Get("X-Scope-OrgID") != c.tenant {
			t.Errorf("%s: %s, %v", c.query, got.URL, got.Header)
		}
	}
	for query, want := range map[string]string{
		"size=1G": `not "size"`, "ca=": "names one file", "token-file=a&token-file=b": "names one file", "ca=/none": "no such file", "%zz": "cannot be read",
		"header=X-Api-Key:x": "X-Api-Key:@FILE", "token-file=" + token + "&password-file=" + word: "one of their files",
		"names=": "host, none or upload", "names=none&names=host": "given twice",
	} {
		if _, err := Open("parca="+s.URL+"?"+query, export.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
}

// TestTargetError: an error does not show what is behind the kind, which may be a password.
func TestTargetError(t *testing.T) {
	for _, s := range []string{"phlare=https://me:hunter2@host", "https://me:hunter2@host", "parca=https://me:hunter2@host", "parca=https://me:hunter2@ho st", "parca=me:hunter2@host"} {
		if _, err := Open(s, export.Options{}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// TestUnnamed: with names=none, code of files with a build ID has addresses and no names; all other code has its names. No other target is concerned.
func TestUnnamed(t *testing.T) {
	p := &profile.Profile{
		Modules:  []profile.Module{{Path: "[kernel]", Kernel: true}, {Path: "/usr/bin/a", BuildID: "aabb"}, {Path: "/usr/bin/b"}},
		Mappings: []profile.Mapping{{Lo: 0x1000, Hi: 0x2000, Module: 1}, {Lo: 0x3000, Hi: 0x4000, Module: 2}},
		Funcs:    []profile.Func{{Name: "schedule"}, {Name: "inner", Module: 1}, {Name: "outer", Module: 1}, {Name: "other", Module: 2}},
		Files:    []string{"", "/a.c"},
		Locs: []profile.Loc{
			{Addr: 1<<63 + 5, Mapping: -1}, {Addr: 0x1005, Off: 5, Func: 1, Module: 1, Inlined: true, File: 1, Line: 3},
			{Addr: 0x1005, Off: 5, Func: 2, Module: 1, File: 1, Line: 9}, {Addr: 0x3007, Off: 7, Func: 3, Module: 2, Mapping: 1},
		},
		Stacks: []profile.Stack{{Frames: []uint32{0, 1, 2, 3}, Count: 1}},
	}
	b, err := export.NewBatch(p, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	show := func(query string) (out []string) {
		t.Helper()
		target, err := Open("parca=http://127.0.0.1:1"+query, export.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := target.Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Series []struct {
				Samples []struct{ RawProfile []byte }
			}
		}
		if err := json.Unmarshal(r.Body, &m); err != nil {
			t.Fatal(err)
		}
		got, err := proto.ParseData(m.Series[0].Samples[0].RawProfile)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range got.Sample[0].Location {
			s := fmt.Sprintf("%#x %s %s %v", l.Address, l.Mapping.File, l.Mapping.BuildID, l.Mapping.HasFunctions)
			for _, line := range l.Line {
				s += fmt.Sprintf(" %s:%d", line.Function.Name, line.Line)
			}
			out = append(out, s)
		}
		return out
	}
	kernel, other := "0x8000000000000005 [kernel]  true schedule:0", "0x3007 /usr/bin/b  true other:0"
	for query, want := range map[string][]string{
		"":              {kernel, "0x1005 /usr/bin/a aabb true inner:3 outer:9", other},
		"?names=host":   {kernel, "0x1005 /usr/bin/a aabb true inner:3 outer:9", other},
		"?names=none":   {kernel, "0x1005 /usr/bin/a aabb false", other},
		"?names=upload": {kernel, "0x1005 /usr/bin/a aabb false", other},
	} {
		if got := show(query); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", query, got, want)
		}
	}
	if _, err := Open("otlp=http://127.0.0.1:1?names=upload", export.Options{}); err == nil || !strings.Contains(err.Error(), "no protocol") {
		t.Errorf("%v", err)
	}
}

// TestStdout: the standard output needs no URL, and may have a format.
func TestStdout(t *testing.T) {
	for name, want := range map[string]string{"stdout": "", "stdout=": "", "stdout=top": "", "stdout=svg": "callees or folded", "files": "KIND=URL"} {
		target, err := Open(name, export.Options{})
		if want == "" && (err != nil || target.String() != strings.TrimSuffix(name, "=")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", name, target, err)
		}
	}
}
