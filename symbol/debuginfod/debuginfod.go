// Package debuginfod fetches debug files from debuginfod servers, by build ID. It keeps them in elfutils' cache directory, which all users
// of elfutils' library share (debuginfod_find_debuginfo(3), "ENVIRONMENT VARIABLES" and "CACHE"; debuginfod(8), "WEBAPI").
//
// Servers can hang, lie and never end. A redirection is followed only to the same host, or there from http to https: a request to another
// host would use this machine's rights. A file is kept only if it is an ELF file with the requested build ID. Each server must send at
// a minimum speed. A server that was too slow or lied is not asked again.
package debuginfod

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/internal/procfs"
)

// Kinds of files.
const (
	Debuginfo  = "debuginfo"
	Executable = "executable"
)

// Config has the servers to ask, and limits.
type Config struct {
	URLs    []string
	Cache   string        // a directory, made when needed
	Timeout time.Duration // for each 100 KiB, or the rest; 0: no limit
	MaxTime time.Duration // for a file; 0: 20 times Timeout
	MaxSize int64         // bytes of a file; 0: maxSize
	Headers http.Header   // more to send

	// Progress, if not nil, is called now and then with the name of the file being fetched, the bytes received, and the bytes expected (0 if
	// unknown). done marks the last call for the file.
	Progress func(what string, have, total int64, done bool)
}

const (
	progress       = 100 << 10 // bytes in each Timeout
	defaultTimeout = 90 * time.Second
	maxSize        = 4 << 30
	maxHeaders     = 64 << 10 // of the file of headers, and of an answer's
	cacheMiss      = 600      // seconds, if the cache does not say otherwise
)

// FromEnv returns the configuration that the environment asks for: DEBUGINFOD_URLS, DEBUGINFOD_CACHE_PATH, DEBUGINFOD_TIMEOUT,
// DEBUGINFOD_MAXTIME, DEBUGINFOD_MAXSIZE, DEBUGINFOD_HEADERS_FILE. ok is false if no servers are named, or if there is no directory for the
// files.
func FromEnv(env func(string) string) (c Config, ok bool) {
	for _, u := range strings.Fields(env("DEBUGINFOD_URLS")) {
		if p, err := url.Parse(u); err == nil && (p.Scheme == "http" || p.Scheme == "https") && p.Host != "" {
			c.URLs = append(c.URLs, strings.TrimRight(u, "/"))
		}
	}
	c.Cache = cacheDir(env)
	number := func(name string, otherwise int64) int64 {
		n, err := strconv.ParseInt(env(name), 10, 64)
		if err != nil {
			return otherwise
		}
		return max(n, 0)
	}
	seconds := func(n int64) time.Duration { return time.Duration(min(n, 1<<30)) * time.Second }
	c.Timeout = seconds(number("DEBUGINFOD_TIMEOUT", int64(defaultTimeout/time.Second)))
	c.MaxTime = seconds(number("DEBUGINFOD_MAXTIME", 0))
	c.MaxSize = number("DEBUGINFOD_MAXSIZE", 0)
	if name := env("DEBUGINFOD_HEADERS_FILE"); name != "" {
		c.Headers = readHeaders(name)
	}
	return c, len(c.URLs) > 0 && c.Cache != ""
}

// cacheDir is elfutils' choice, its old directory included.
func cacheDir(env func(string) string) string {
	if dir := env("DEBUGINFOD_CACHE_PATH"); dir != "" {
		return dir
	}
	home := env("HOME")
	if old := filepath.Join(home, ".debuginfod_client_cache"); home != "" {
		if st, err := os.Stat(old); err == nil && st.IsDir() {
			return old
		}
	}
	if dir := env("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(dir, "debuginfod_client")
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".cache", "debuginfod_client")
}

// readHeaders reads lines of "Name: value"; others are left out.
func readHeaders(name string) http.Header {
	b, err := os.ReadFile(name)
	if err != nil || len(b) > maxHeaders {
		return nil
	}
	h := http.Header{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k != "" {
			h.Add(strings.TrimSpace(k), strings.TrimSpace(v))
		}
	}
	return h
}

// A Client fetches files. It is safe for concurrent use.
type Client struct {
	c    Config
	http *http.Client

	mu     sync.Mutex
	dead   map[string]error // servers that are not asked any more
	unused error            // why the cache is not used
	calls  map[string]*call
}

// A call is a file that is being fetched, or was.
type call struct {
	done chan struct{}
	path string
	err  error
}

// New returns a Client.
func New(c Config) *Client {
	if c.MaxSize == 0 {
		c.MaxSize = maxSize
	}
	if c.MaxTime == 0 {
		c.MaxTime = 20 * c.Timeout
	}
	return &Client{c: c, http: newHTTP(), dead: map[string]error{}, calls: map[string]*call{}}
}

// ErrNotFound says that no server has the file.
var ErrNotFound = errors.New("no debuginfod server has it")

var errDead = errors.New("no debuginfod server answers")

// Fetch returns the path of a file in the cache, by build ID and kind (Debuginfo or Executable). If the cache lacks the file, Fetch asks the
// servers first. It asks them for a file once. Like elfutils, it remembers for ten minutes that no server has a file.
func (c *Client) Fetch(ctx context.Context, buildID []byte, kind string) (string, error) {
	if len(buildID) < 2 || len(buildID) > 64 {
		return "", fmt.Errorf("a build ID of %d bytes", len(buildID))
	}
	id := hex.EncodeToString(buildID)
	c.mu.Lock()
	k := c.calls[id+kind]
	if k == nil {
		k = &call{done: make(chan struct{})}
		c.calls[id+kind] = k
		c.mu.Unlock()
		k.path, k.err = c.fetch(ctx, buildID, id, kind)
		close(k.done)
		return k.path, k.err
	}
	c.mu.Unlock()
	select {
	case <-k.done:
		return k.path, k.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (c *Client) fetch(ctx context.Context, buildID []byte, id, kind string) (string, error) {
	dir := filepath.Join(c.c.Cache, id)
	if err := cmp.Or(foreign(c.c.Cache), foreign(dir)); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unused = err
		return "", err
	}
	path := filepath.Join(dir, kind)
	if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
		if st.Size() > 0 {
			now := time.Now()
			os.Chtimes(path, now, time.Time{}) // the cache is cleaned by the time of the last access
			return path, nil
		}
		if time.Since(st.ModTime()) < c.missing() {
			return "", ErrNotFound
		}
		os.Remove(path)
	}
	if len(c.alive()) == 0 {
		return "", errDead
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	err := c.download(ctx, buildID, id, kind, path)
	if errors.Is(err, ErrNotFound) && len(c.alive()) == len(c.c.URLs) {
		// An empty file says that there is none.
		if f, ferr := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0); ferr == nil {
			f.Close()
		}
	}
	if err != nil {
		os.Remove(dir) // if it is empty
		return "", err
	}
	return path, nil
}

// missing is how long it is believed that there is no file.
func (c *Client) missing() time.Duration {
	name := filepath.Join(c.c.Cache, "cache_miss_s") // it has a number
	n := int64(cacheMiss)
	if st, err := os.Lstat(name); err == nil && st.Mode().IsRegular() {
		b, _ := os.ReadFile(name)
		if v, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32); err == nil && v >= 0 {
			n = v
		}
	} else if errors.Is(err, fs.ErrNotExist) && os.MkdirAll(c.c.Cache, 0o700) == nil {
		if f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
			f.WriteString(strconv.Itoa(cacheMiss))
			f.Close()
		}
	}
	return time.Duration(n) * time.Second
}

// foreign says why a directory of the cache is not used: what is there could be anybody's, and lead anywhere.
func foreign(dir string) error {
	err := procfs.OwnDir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) { // it is to be made
		return nil
	}
	return fmt.Errorf("the cache is not used: %w; or set DEBUGINFOD_CACHE_PATH to a directory of your own", err)
}

// alive returns the servers that may be asked.
func (c *Client) alive() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.c.URLs), func(u string) bool { return c.dead[u] != nil })
}

// kill says that a server is not to be asked again.
func (c *Client) kill(server string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead[server] = err
}

// redacted returns a server's URL without its password.
func redacted(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return "?"
	}
	return u.Redacted()
}

// Notes says which servers are not asked any more, or that the cache is not used, with reasons.
func (c *Client) Notes() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for u, err := range c.dead {
		out = append(out, fmt.Sprintf("debuginfod server %s is not asked any more: %v", redacted(u), err))
	}
	if slices.Sort(out); c.unused != nil {
		out = append(out, "debuginfod: "+c.unused.Error())
	}
	return out
}
