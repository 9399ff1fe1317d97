// Package serve shows profiles in a browser: it answers a page's questions about one profile, or about two compared profiles. All sums are made
// here, so a profile of any size becomes a few thousand rectangles and rows. The page, web/, draws them.
//
// A Server serves only the inputs it was made with: functions have numbers, and no request names a file. It answers GET requests to its own
// host, from its own pages, by clients that know its token.
package serve

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
)

//go:embed web
var web embed.FS

// Options describe what a Server shows.
type Options struct {
	Inputs    []Input   // one, or two: the profile, and the baseline that it is compared with
	Annotator Annotator // nil: there is no source
	Token     string    // what a request needs to be answered (NewToken); "": nothing
	Live      bool      // there is a newer page at "/"
}

// An Input is a profile that is still to be read.
type Input struct {
	Name string
	Read func(ctx context.Context, progress func(Progress)) (*Recording, error) // errors have the name
}

// Progress is how far work is.
type Progress struct {
	Done    int64  `json:"done"` // bytes, or parts in a thousand
	Total   int64  `json:"total"`
	Samples uint64 `json:"samples,omitempty"`
}

// An Annotator finds the source and the instructions of a function: something that can be marshalled as JSON. It is
// called by one goroutine at a time. The files that it reads must be ones that debug information of this machine names.
type Annotator interface {
	Annotate(p *profile.Profile, fn int32, by profile.Weight) (any, error)
}

// A Server is an http.Handler. It answers while its inputs are being read.
type Server struct {
	opts Options
	mux  *http.ServeMux
	busy chan struct{} // one for each computation at a time

	mu     sync.Mutex
	status status
	data   *data
	trees  map[string]*treeEntry
	sums   []*sumEntry // the last used first
	source sync.Mutex
	pprof  pprofView
}

type status struct {
	State    string   `json:"state"` // "reading", "ready", "failed"
	Name     string   `json:"name"`  // of what is being read
	Progress Progress `json:"progress"`
	Work     float64  `json:"work,omitempty"` // the share of a tree that is done
	Error    string   `json:"error,omitempty"`
}

// New returns a Server. Load reads its inputs.
func New(o Options) *Server {
	s := &Server{opts: o, busy: make(chan struct{}, runtime.GOMAXPROCS(0)), trees: map[string]*treeEntry{}}
	s.status = status{State: "reading", Name: o.Inputs[0].Name}
	s.mux = http.NewServeMux()
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	static := http.FileServerFS(files)
	for _, name := range []string{"{$}", "app.css", "app.js", "graph.js", "model.js", "tables.js", "timeline.js", "source.js", "icon.svg"} {
		s.mux.Handle("GET /"+name, static)
	}
	s.mux.HandleFunc("GET /names.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		io.WriteString(w, report.Names+"\nexport { fit };\n")
	})
	s.mux.HandleFunc("GET /api/status", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		st := s.status
		s.mu.Unlock()
		reply(w, st)
	})
	for name, f := range map[string]func(*request) (any, error){
		"info": (*request).info, "graph": (*request).graph, "top": (*request).top, "timeline": (*request).timeline,
		"source": (*request).source,
	} {
		s.mux.HandleFunc("GET /api/"+name, func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, f) })
	}
	s.mux.HandleFunc("GET "+pprofPath, s.servePprof)
	return s
}

// Load reads the inputs, one after the other. It returns what went wrong, which the page shows too.
func (s *Server) Load(ctx context.Context) error {
	var recs [2]*Recording
	for i := range s.opts.Inputs {
		in := &s.opts.Inputs[i]
		rec, err := in.Read(ctx, func(p Progress) {
			s.mu.Lock()
			s.status.Name, s.status.Progress = in.Name, p
			s.mu.Unlock()
		})
		if err == nil && rec.Profile.Totals.Samples == 0 {
			err = fmt.Errorf("%s: no samples", in.Name)
		}
		if err != nil {
			s.mu.Lock()
			s.status = status{State: "failed", Name: in.Name, Error: err.Error()}
			s.mu.Unlock()
			return err
		}
		recs[i] = rec
	}
	d := newData(recs[0], recs[1])
	s.mu.Lock()
	s.data = d
	s.status = status{State: "ready", Name: s.opts.Inputs[0].Name}
	s.mu.Unlock()
	return nil
}

// policy is the Content-Security-Policy of the page. That of /pprof/ is in pprof.go.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if guard(w, r, s.opts.Token) {
		s.mux.ServeHTTP(w, r)
	}
}

// guard says whether a request may be answered, and answers it where it may not.
func guard(w http.ResponseWriter, r *http.Request, token string) bool {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if !ourHost(r) {
		http.Error(w, "this server answers by its address, or as localhost, and at its own port", http.StatusForbidden)
		return false
	}
	if !ourPage(r) {
		http.Error(w, "requests of other pages are not answered", http.StatusForbidden)
		return false
	}
	if r.Method != http.MethodGet {
		h.Set("Allow", "GET")
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return false
	}
	if !allowed(w, r, token) {
		http.Error(w, unknown, http.StatusForbidden)
		return false
	}
	return true
}

// ourHost says whether a request is to the address that it came in on. A name that somebody else made to lead to this
// machine (DNS rebinding) is none of it.
func ourHost(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	ip, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return false
	}
	host, hostPort, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, hostPort = strings.Trim(r.Host, "[]"), "80"
	}
	if hostPort != port {
		return false
	}
	return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == ip
}

// ourPage says whether a request is by a page of this server, by a person, or by a program that is no browser.
func ourPage(r *http.Request) bool {
	if o := r.Header.Get("Origin"); o != "" && o != "http://"+r.Host {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	}
	return true
}

// Show runs a server with a token of its own at an address to listen on. begun is told where the page is; its error ends the server. With browse, a browser
// opens the page, and noBrowser is told why it does not.
func Show(ctx context.Context, o Options, address string, begun func(url string) error, browse bool, noBrowser func(error)) error {
	o.Token = NewToken()
	l, err := net.Listen("tcp", address)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // without the address once more
	}
	if err != nil {
		return fmt.Errorf("--listen %s: %w", address, err)
	}
	url := URL(l.Addr(), o.Token)
	if err := begun(url); err != nil {
		l.Close()
		return err
	}
	if browse {
		if closed, err := openBrowser(url); err != nil {
			noBrowser(err)
		} else {
			defer closed()
		}
	}
	return New(o).Run(ctx, l)
}

// Run loads the recordings and answers on l meanwhile and afterwards, until ctx ends, or one of the two fails. It closes l.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := newHTTPServer(s)
	served, failed := make(chan error, 1), make(chan error, 1)
	go func() { served <- h.Serve(l) }()
	go func() {
		if err := s.Load(ctx); err != nil {
			failed <- err
		}
	}()
	var err error
	select {
	case err = <-failed:
	case err = <-served:
	case <-ctx.Done():
	}
	// Answers under way get a moment.
	end, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	h.Shutdown(end)
	if errors.Is(err, http.ErrServerClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}

// newHTTPServer returns a server for h that bounds what a client may take of time and memory.
func newHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute,
		IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 16,
	}
}

func reply(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Write(b)
}

// A request is a question about a profile that is there.
type request struct {
	s   *Server
	d   *data
	ctx context.Context
	r   *http.Request
}

// errBad is what a request has wrong.
type errBad struct{ error }

var errLoading = errors.New("the profile is still being read")

// answer computes an answer, a few at a time. It stops when nobody waits for it any more.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, f func(*request) (any, error)) {
	s.mu.Lock()
	d := s.data
	s.mu.Unlock()
	if d == nil {
		http.Error(w, errLoading.Error(), http.StatusServiceUnavailable)
		return
	}
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-r.Context().Done():
		return
	}
	v, err := f(&request{s, d, r.Context(), r})
	var bad errBad
	switch {
	case r.Context().Err() != nil: // superseded
	case errors.As(err, &bad):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		reply(w, v)
	}
}

// A treeEntry is a tree that is there or being made.
type treeEntry struct {
	ready chan struct{}
	tree  *tree
}

// tree returns the tree of a grouping, which is made once and kept.
func (s *Server) tree(ctx context.Context, d *data, group string) (*tree, error) {
	s.mu.Lock()
	e := s.trees[group]
	if e == nil {
		e = &treeEntry{ready: make(chan struct{})}
		s.trees[group] = e
		// It goes on if this request is not wanted any more: the next one will need it.
		go func() {
			e.tree = newTree(context.Background(), d, groupings[group], func(done float64) {
				s.mu.Lock()
				s.status.Work = done
				s.mu.Unlock()
			})
			s.mu.Lock()
			s.status.Work = 0
			s.mu.Unlock()
			close(e.ready)
		}()
	}
	s.mu.Unlock()
	select {
	case <-e.ready:
		return e.tree, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// maxSums is how many filters' sums are kept.
const maxSums = 3

type sumEntry struct {
	f filter
	w *weights
}

// weights returns the sums of a filter; those of the last few are kept.
func (s *Server) weights(ctx context.Context, d *data, f filter) (*weights, error) {
	t, err := s.tree(ctx, d, f.group)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	for i, e := range s.sums {
		if e.f == f {
			copy(s.sums[1:], s.sums[:i])
			s.sums[0] = e
			s.mu.Unlock()
			return e.w, nil
		}
	}
	s.mu.Unlock()
	w := d.weigh(ctx, t, &f)
	if w == nil {
		return nil, ctx.Err()
	}
	s.mu.Lock()
	s.sums = append([]*sumEntry{{f, w}}, s.sums[:min(len(s.sums), maxSums-1)]...)
	s.mu.Unlock()
	return w, nil
}
