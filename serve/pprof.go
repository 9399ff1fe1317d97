package serve

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/driver"
	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// pprofPath is where pprof's pages are; with a token, below a key.
const pprofPath = "/pprof/"

// pprofPolicy lets the pages of pprof run the scripts that are in them, in an origin of their own: they get nothing from
// this server but pages.
const pprofPolicy = "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; " +
	"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pprofPages are those of pprof's pages that open no files, start no programs and keep nothing.
var pprofPages = []string{"/", "/top", "/peek", "/flamegraph", "/flamegraph2", "/flamegraphold", "/download"}

// A pprofView is pprof's own interface.
type pprofView struct {
	once  sync.Once
	busy  sync.Mutex // one page at a time: each copies the profile
	pages map[string]http.Handler
	err   error
}

func (s *Server) servePprof(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	d := s.data
	s.mu.Unlock()
	if d == nil {
		http.Error(w, errLoading.Error(), http.StatusServiceUnavailable)
		return
	}
	v := &s.pprof
	v.busy.Lock()
	defer v.busy.Unlock()
	v.once.Do(func() { v.pages, v.err = openPprof(d) })
	if v.err != nil {
		http.Error(w, "pprof: "+v.err.Error(), http.StatusInternalServerError)
		return
	}
	base := pprofPath
	if key := pprofKey(s.opts.Token); key != "" {
		if base += key + "/"; !strings.HasPrefix(r.URL.Path, base) {
			to := base + strings.TrimPrefix(r.URL.Path, pprofPath)
			if r.URL.RawQuery != "" {
				to += "?" + r.URL.RawQuery
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
	}
	page := v.pages["/"+strings.TrimPrefix(r.URL.Path, base)]
	if page == nil {
		http.Error(w, "pprof's pages with source and graphs are not offered here: see the source view of unspool", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Security-Policy", pprofPolicy)
	page.ServeHTTP(w, r)
}

// openPprof hands the profile, without the baseline, to pprof and returns its pages.
func openPprof(d *data) (map[string]http.Handler, error) {
	p := *d.p
	p.Stacks = p.Stacks[:d.base]
	p.Totals = d.totals[0]
	var pages map[string]http.Handler
	err := driver.PProf(&driver.Options{
		Flagset: &pprofFlags{args: []string{"profile"}, set: map[string]string{"http": "localhost:1", "symbolize": "none"}},
		Fetch:   pprofFetcher{&p},
		Obj:     noObjects{},
		UI:      silent{},
		HTTPServer: func(a *driver.HTTPServerArgs) error {
			pages = map[string]http.Handler{}
			for _, name := range pprofPages {
				pages[name] = a.Handlers[name]
			}
			return nil
		},
	})
	return pages, err
}

// A pprofFetcher gives pprof the profile.
type pprofFetcher struct{ p *profile.Profile }

func (f pprofFetcher) Fetch(string, time.Duration, time.Duration) (*proto.Profile, string, error) {
	var b bytes.Buffer
	if err := pprof.Write(&b, f.p); err != nil {
		return nil, "", err
	}
	p, err := proto.Parse(&b)
	return p, "", err
}

// pprofFlags are a command line that has the flags of set and no others.
type pprofFlags struct {
	args []string
	set  map[string]string
}

func (f *pprofFlags) Bool(name string, def bool, _ string) *bool {
	if name == "no_browser" {
		def = true
	}
	return &def
}
func (f *pprofFlags) Int(_ string, def int, _ string) *int             { return &def }
func (f *pprofFlags) Float64(_ string, def float64, _ string) *float64 { return &def }
func (f *pprofFlags) String(name, def, _ string) *string {
	if v, ok := f.set[name]; ok {
		def = v
	}
	return &def
}
func (f *pprofFlags) StringList(_, def, _ string) *[]*string { return &[]*string{} }
func (f *pprofFlags) ExtraUsage() string                     { return "" }
func (f *pprofFlags) AddExtraUsage(string)                   {}
func (f *pprofFlags) Parse(func()) []string                  { return f.args }

// noObjects opens no binaries.
type noObjects struct{}

var errNoObjects = errors.New("no binaries here")

func (noObjects) Open(string, uint64, uint64, uint64, string) (driver.ObjFile, error) {
	return nil, errNoObjects
}
func (noObjects) Disasm(string, uint64, uint64, bool) ([]driver.Inst, error) {
	return nil, errNoObjects
}

// silent is a user interface without a user.
type silent struct{}

func (silent) ReadLine(string) (string, error)       { return "", errors.New("no terminal") }
func (silent) Print(...any)                          {}
func (silent) PrintErr(...any)                       {}
func (silent) IsTerminal() bool                      { return false }
func (silent) WantBrowser() bool                     { return false }
func (silent) SetAutoComplete(func(s string) string) {}
