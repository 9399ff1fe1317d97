package debuginfod

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// built returns a program's debug file, in a directory of its own, and its build ID.
func built(t testing.TB) (path string, id []byte) {
	t.Helper()
	oracle.Need(t, "gcc", "objcopy")
	dir := t.TempDir()
	src, prog := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	if err := os.WriteFile(src, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Mkdir(filepath.Join(dir, "serve"), 0o700)
	path = filepath.Join(dir, "serve", "a.debug")
	for _, args := range [][]string{{"gcc", "-g", "-Wl,--build-id", "-o", prog, src}, {"objcopy", "--only-keep-debug", prog, path}} {
		oracle.Run(t, args[0], args[1:]...)
	}
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	return path, bytes.Clone(img.BuildID())
}

// serve runs Debian's debuginfod over a directory, and returns its address once it has the file.
func serve(t *testing.T, dir string, id []byte) string {
	t.Helper()
	oracle.Need(t, "debuginfod")
	said := ""
	for range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		cmd := exec.Command("debuginfod", "-p", fmt.Sprint(port), "-d", ":memory:", "-t", "0", "-F", dir)
		cmd.Env = append(os.Environ(), "DEBUGINFOD_URLS=")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		gone := make(chan error, 1)
		go func() { gone <- cmd.Wait() }()
		t.Cleanup(func() { cmd.Process.Kill() })
		url := fmt.Sprintf("http://127.0.0.1:%d", port)
		late := time.After(2 * time.Minute)
		for {
			if r, err := http.Get(url + "/buildid/" + hex.EncodeToString(id) + "/debuginfo"); err == nil {
				r.Body.Close()
				if r.StatusCode == 200 {
					return url
				}
			}
			select {
			case err := <-gone: // somebody else has the port
				said = fmt.Sprintf("%v\n%s", err, &out)
			case <-late:
				cmd.Process.Kill()
				<-gone
				t.Fatalf("after two minutes, debuginfod at %s does not serve the file with build ID %x in %s; it says\n%.2000s", url, id, dir, &out)
			case <-time.After(20 * time.Millisecond):
				continue
			}
			break
		}
	}
	t.Fatalf("debuginfod, started five times, finds no free port; it ended last with %.2000s", said)
	return ""
}

// find runs elfutils' client, without servers unless some are given.
func find(t *testing.T, cache, urls string, id []byte) ([]byte, error) {
	t.Helper()
	oracle.Need(t, "debuginfod-find")
	cmd := exec.Command("debuginfod-find", "debuginfo", hex.EncodeToString(id))
	cmd.Env = append(os.Environ(), "DEBUGINFOD_URLS="+urls, "DEBUGINFOD_CACHE_PATH="+cache, "DEBUGINFOD_PROGRESS=")
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(strings.TrimSpace(string(out)))
}

// TestDebian fetches from Debian's server, and shares the cache with Debian's client.
func TestDebian(t *testing.T) {
	oracle.Long(t)
	path, id := built(t)
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, filepath.Dir(path), id)
	ours, theirs := t.TempDir(), t.TempDir()
	nowhere := "http://127.0.0.1:1"

	said := 0
	c := New(Config{URLs: []string{url}, Cache: ours, Timeout: time.Minute, Progress: func(string, int64, int64, bool) { said++ }})
	for range 2 {
		got, err := c.Fetch(t.Context(), id, Debuginfo)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(got); err != nil || !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes, %v; want %d", got, len(b), err, len(want))
		}
	}
	if said == 0 {
		t.Errorf("%s: 0 calls of Progress for %d bytes", url, len(want))
	}
	if b, err := find(t, ours, nowhere, id); err != nil || !bytes.Equal(b, want) {
		t.Errorf("debuginfod-find in our cache: %d bytes, %v", len(b), err)
	}
	if b, err := find(t, theirs, url, id); err != nil || !bytes.Equal(b, want) {
		t.Fatalf("debuginfod-find: %d bytes, %v", len(b), err)
	}
	if got, err := New(Config{URLs: []string{nowhere}, Cache: theirs}).Fetch(t.Context(), id, Debuginfo); err != nil {
		t.Errorf("in debuginfod-find's cache: %q, %v", got, err)
	}

	// What is not there is remembered, by both.
	none := bytes.Repeat([]byte{0xab}, 20)
	if got, err := c.Fetch(t.Context(), none, Debuginfo); !errors.Is(err, ErrNotFound) {
		t.Errorf("a file that nobody has: %q, %v", got, err)
	}
	if st, err := os.Stat(filepath.Join(ours, hex.EncodeToString(none), Debuginfo)); err != nil || st.Size() != 0 || st.Mode().Perm() != 0 {
		t.Errorf("what says that there is none: %v, %v", st, err)
	}
	if b, err := find(t, ours, nowhere, none); err == nil {
		t.Errorf("debuginfod-find has a file with build ID %x, which nobody has: %d bytes; want an error", none, len(b))
	}
	find(t, theirs, url, none)
	asked := 0
	count := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked++; http.NotFound(w, r) }))
	defer count.Close()
	for _, cache := range []string{ours, theirs} {
		if _, err := New(Config{URLs: []string{count.URL}, Cache: cache}).Fetch(t.Context(), none, Debuginfo); !errors.Is(err, ErrNotFound) || asked > 0 {
			t.Errorf("%v, after %d requests", err, asked)
		}
	}
	old := time.Now().Add(-time.Hour)
	os.Chtimes(filepath.Join(ours, hex.EncodeToString(none), Debuginfo), old, old)
	if _, err := New(Config{URLs: []string{count.URL}, Cache: ours}).Fetch(t.Context(), none, Debuginfo); !errors.Is(err, ErrNotFound) || asked != 1 {
		t.Errorf("an hour later: %v, after %d requests", err, asked)
	}
}

// TestHostile: servers that hang, lie and never end cost their own answer, and nothing else.
func TestHostile(t *testing.T) {
	path, id := built(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan bool)
	forever := func(r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}
	wrong := bytes.Clone(good)
	at := bytes.Index(wrong, id)
	wrong[at] ^= 1
	asked := atomic.Int64{} // a service that only this machine may ask
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); w.Write(good) }))
	t.Cleanup(func() {
		inner.Close()
		if n := asked.Load(); n > 0 {
			t.Errorf("another service was asked %d times", n)
		}
	})
	handlers := map[string]http.HandlerFunc{
		"hangs":       func(w http.ResponseWriter, r *http.Request) { forever(r) },
		"wrong file":  func(w http.ResponseWriter, r *http.Request) { w.Write(wrong) },
		"a page":      func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "<html>sign in here</html>") },
		"nothing":     func(w http.ResponseWriter, r *http.Request) {},
		"three bytes": func(w http.ResponseWriter, r *http.Request) { w.Write(good[:3]) },
		"half of it":  func(w http.ResponseWriter, r *http.Request) { w.Write(good[:len(good)/2]) },
		"fails":       func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 500) },
		"cut off": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(good)))
			w.Write(good[:len(good)/2])
			panic(http.ErrAbortHandler)
		},
		"stops": func(w http.ResponseWriter, r *http.Request) {
			w.Write(good[:len(good)/2])
			w.(http.Flusher).Flush()
			forever(r)
		},
		"drips": func(w http.ResponseWriter, r *http.Request) {
			for i := range good {
				w.Write(good[i : i+1])
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-over:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		},
		"never ends": func(w http.ResponseWriter, r *http.Request) {
			w.Write(good)
			for zeros := make([]byte, 1<<16); ; {
				if _, err := w.Write(zeros); err != nil {
					return
				}
			}
		},
		"promises too much": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000000000000")
			w.Write(good)
		},
		"compresses": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			z.Write(good)
			z.Close()
		},
		"goes in circles": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"leads elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		},
		"leads to another service": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inner.URL+r.URL.Path, http.StatusFound)
		},
	}
	fine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(good) }))
	t.Cleanup(fine.Close)
	t.Cleanup(func() { close(over) })
	for what, h := range handlers {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			bad := httptest.NewServer(h)
			t.Cleanup(bad.Close)
			cache := t.TempDir()
			c := New(Config{URLs: []string{bad.URL}, Cache: cache, Timeout: 300 * time.Millisecond, MaxSize: 10 << 20})
			got, err := c.Fetch(t.Context(), id, Debuginfo)
			if err == nil {
				t.Errorf("%s", got)
			}
			if left, _ := filepath.Glob(filepath.Join(cache, "*", "*")); len(left) > 0 {
				t.Errorf("it leaves %q", left)
			}
			notes := c.Notes()
			other := bytes.Clone(id)
			other[0] ^= 1
			_, again := c.Fetch(t.Context(), other, Debuginfo)
			if large := errors.Is(err, errTooBig); again == nil || large == errors.Is(again, errDead) || large == (len(notes) > 0) {
				t.Errorf("%v; asked again: %v; %q", err, again, notes)
			}
			t.Log(err)

			// Beside a good one it does no harm.
			c = New(Config{URLs: []string{bad.URL, fine.URL}, Cache: cache, MaxSize: 10 << 20, Timeout: 10 * time.Second})
			if got, err := c.Fetch(t.Context(), id, Debuginfo); err != nil {
				t.Errorf("with a good server: %v", err)
			} else if b, _ := os.ReadFile(got); !bytes.Equal(b, good) {
				t.Errorf("with a good server: %d bytes", len(b))
			}
		})
	}
}

// TestCancel: the user's interrupt ends a wait.
func TestCancel(t *testing.T) {
	began := make(chan bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { close(began); <-r.Context().Done() }))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := New(Config{URLs: []string{s.URL}, Cache: t.TempDir()}).Fetch(ctx, []byte("0123456789"), Debuginfo); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestCacheDir: another user's cache is not used, and nothing in a cache leads elsewhere.
func TestCacheDir(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	cache, none := t.TempDir(), []byte("0123456789")
	fetch := func() ([]string, error) {
		c := New(Config{URLs: []string{s.URL}, Cache: cache, Timeout: time.Minute})
		_, err := c.Fetch(t.Context(), none, Debuginfo)
		return c.Notes(), err
	}
	name, target := filepath.Join(cache, "cache_miss_s"), filepath.Join(t.TempDir(), "target")
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := fetch(); !errors.Is(err, ErrNotFound) {
			t.Errorf("Fetch where cache_miss_s is a link = %v, want %v", err, ErrNotFound)
		}
	}
	if st, err := os.Lstat(target); err == nil {
		t.Errorf("%s, which cache_miss_s leads to, was made: %v, %d bytes", target, st.Mode(), st.Size())
	}
	os.Remove(name)
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(); !errors.Is(err, ErrNotFound) {
		t.Errorf("Fetch where cache_miss_s is a FIFO = %v, want %v", err, ErrNotFound)
	}
	for what, spoil := range map[string]func() func(){
		"others can write": func() func() { os.Chmod(cache, 0o777); return func() { os.Chmod(cache, 0o755) } },
		"its group can":    func() func() { os.Chmod(cache, 0o775); return func() { os.Chmod(cache, 0o755) } },
		"others can write to the file's directory": func() func() {
			dir := filepath.Join(cache, hex.EncodeToString(none))
			os.MkdirAll(dir, 0o700)
			os.Chmod(dir, 0o777)
			return func() { os.RemoveAll(dir) }
		},
		"a link": func() func() {
			was := cache
			cache = filepath.Join(t.TempDir(), "link")
			os.Symlink(was, cache)
			return func() { cache = was }
		},
		"others can exchange it": func() func() {
			was, open := cache, filepath.Join(t.TempDir(), "open")
			os.Mkdir(open, 0o700)
			os.Chmod(open, 0o777)
			cache = filepath.Join(open, "cache")
			os.Mkdir(cache, 0o700)
			return func() { cache = was }
		},
	} {
		undo := spoil()
		if notes, err := fetch(); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(strings.Join(notes, " "), "is not used") {
			t.Errorf("%s: %v, %q", what, err, notes)
		}
		undo()
		if _, err := fetch(); !errors.Is(err, ErrNotFound) {
			t.Errorf("after %s: %v", what, err)
		}
	}
	if os.Chown(cache, 54321, -1) != nil {
		return // only root can
	}
	if notes, err := fetch(); err == nil || errors.Is(err, ErrNotFound) || !strings.Contains(strings.Join(notes, " "), "another user") {
		t.Errorf("another user's cache: %v, %q", err, notes)
	}
}

func TestFromEnv(t *testing.T) {
	home := t.TempDir()
	headers := filepath.Join(home, "headers")
	os.WriteFile(headers, []byte("X-Who: me\n\nnonsense\nX-Where: a: b\n"), 0o600)
	env := map[string]string{
		"HOME": home, "DEBUGINFOD_URLS": " https://one.example/ ima:enforcing http://two.example file:///etc ", "DEBUGINFOD_TIMEOUT": "7", "DEBUGINFOD_MAXSIZE": "1000",
		"DEBUGINFOD_MAXTIME": "-1", "DEBUGINFOD_HEADERS_FILE": headers,
	}
	get := func(k string) string { return env[k] }
	c, ok := FromEnv(get)
	if !ok || fmt.Sprint(c.URLs) != "[https://one.example http://two.example]" || c.Timeout != 7*time.Second || c.MaxSize != 1000 || c.MaxTime != 0 ||
		c.Headers.Get("X-Who") != "me" || c.Headers.Get("X-Where") != "a: b" || len(c.Headers) != 2 {
		t.Errorf("%+v, %v", c, ok)
	}
	for _, step := range []struct{ key, value, want string }{
		{"", "", filepath.Join(home, ".cache", "debuginfod_client")},
		{"XDG_CACHE_HOME", "/x", "/x/debuginfod_client"},
		{"DEBUGINFOD_CACHE_PATH", "/y", "/y"},
	} {
		env[step.key] = step.value
		if c, _ := FromEnv(get); c.Cache != step.want {
			t.Errorf("with %s: %q, want %q", step.key, c.Cache, step.want)
		}
	}
	env["DEBUGINFOD_URLS"], env["DEBUGINFOD_TIMEOUT"] = "", ""
	if c, ok := FromEnv(get); ok || c.Timeout != defaultTimeout {
		t.Errorf("%+v, %v", c, ok)
	}
}

// TestSameHost: where a server may lead.
func TestSameHost(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"http://a/x", "http://a/y", true}, {"https://A/x", "https://a/y", true}, {"http://a", "https://a", true}, {"http://a:80", "https://a:443", true},
		{"https://a", "http://a", false}, {"http://a", "http://b", false}, {"http://a", "http://a:8080", false}, {"http://a:8080", "https://a", false},
		{"http://a", "https://b", false}, {"http://a", "file:///a", false}, {"http://a", "http://169.254.169.254", false}, {"http://a", "ftp://a", false},
	} {
		from, _ := url.Parse(c.from)
		to, _ := url.Parse(c.to)
		if got := sameHost(from, to); got != c.want {
			t.Errorf("from %s to %s: %v", c.from, c.to, got)
		}
	}
}
