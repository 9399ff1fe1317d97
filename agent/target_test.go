package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/agent/export"
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

// TestStdout: the standard output needs no URL, and may have a format.
func TestStdout(t *testing.T) {
	for name, want := range map[string]string{"stdout": "", "stdout=": "", "stdout=top": "", "stdout=svg": "folded, top or tree", "files": "KIND=URL"} {
		target, err := Open(name, export.Options{})
		if want == "" && (err != nil || target.String() != strings.TrimSuffix(name, "=")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, %v", name, target, err)
		}
	}
}
