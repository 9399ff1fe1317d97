package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
)

// A saved is what a page without a server answers from (web/offline.js): the stacks, merged as a tree, without times and source.
type saved struct {
	Info   any            `json:"info"`
	Labels []savedLabel   `json:"labels"`
	Bases  []string       `json:"bases"` // of modules
	Comms  []string       `json:"comms"`
	Parent []int32        `json:"parent"` // by node; that of a node comes before it
	Label  []int32        `json:"label"`
	Marks  []uint16       `json:"marks"`
	Base   int            `json:"base"` // stacks from here on are the baseline's
	Stacks savedStacks    `json:"stacks"`
	lookup map[string]int // of Comms
}

type savedLabel struct {
	Text   string `json:"text"`
	Module int32  `json:"module"`
	Kind   kind   `json:"kind"`
	Note   string `json:"note,omitempty"`
}

type savedStacks struct {
	Leaf   []int32  `json:"leaf"`
	Count  []uint64 `json:"count"`
	Period []uint64 `json:"period"`
	PID    []int32  `json:"pid"`
	TID    []int32  `json:"tid"`
	Comm   []int    `json:"comm"`
	Event  []int32  `json:"event"`
	Stop   []uint16 `json:"stop"`
}

// saved collects what a page without a server needs.
func (s *Server) saved(ctx context.Context) (*saved, error) {
	s.mu.Lock()
	d := s.data
	s.mu.Unlock()
	if d == nil {
		return nil, errLoading
	}
	t, err := s.tree(ctx, d, d.grouping())
	if err != nil {
		return nil, err
	}
	info, err := (&request{s: s, d: d, ctx: ctx}).info()
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for _, k := range []string{"timed", "source", "services"} {
		all[k] = json.RawMessage("false")
	}
	out := &saved{Info: all, Parent: t.parent, Label: t.label, Marks: t.marks, Base: d.base, lookup: map[string]int{}}
	for _, l := range t.labels {
		out.Labels = append(out.Labels, savedLabel{l.text, l.module, l.kind, l.note})
	}
	for i := range d.p.Modules {
		out.Bases = append(out.Bases, d.p.Modules[i].Base())
	}
	for i := range d.p.Stacks {
		out.stack(&d.p.Stacks[i], t.leaf[i])
	}
	return out, nil
}

func (o *saved) stack(s *profile.Stack, leaf int32) {
	comm, ok := o.lookup[s.Comm]
	if !ok {
		comm = len(o.Comms)
		o.lookup[s.Comm] = comm
		o.Comms = append(o.Comms, s.Comm)
	}
	x := &o.Stacks
	x.Leaf, x.Count, x.Period = append(x.Leaf, leaf), append(x.Count, s.Count), append(x.Period, s.Period)
	x.PID, x.TID, x.Comm = append(x.PID, s.PID), append(x.TID, s.TID), append(x.Comm, comm)
	x.Event, x.Stop = append(x.Event, s.Event), append(x.Stop, uint16(s.Stop))
}

// scripts are the page's modules, those that others import first.
var scripts = []string{"names.js", "model.js", "offline.js", "graph.js", "tables.js", "timeline.js", "source.js", "app.js"}

var (
	imports = regexp.MustCompile(`(?m)^import \{([^}]*)\} from '\./([a-z]+)\.js';$`)
	exports = regexp.MustCompile(`(?m)^export ((?:async )?function|class|const) ([\w$]+)`)
	listed  = regexp.MustCompile(`(?m)^export \{([^}]*)\};$`)
)

// script returns the text of one of the page's modules.
func script(name string) (string, error) {
	if name == "names.js" {
		return report.Names + "\nexport { fit };\n", nil
	}
	b, err := web.ReadFile("web/" + name)
	return string(b), err
}

// bundle makes one script of modules: each is a function that returns what it exports. A page that is opened as a file may load no modules.
func bundle(names ...string) (string, error) {
	var out strings.Builder
	out.WriteString("'use strict';\n")
	for _, name := range names {
		text, err := script(name)
		if err != nil {
			return "", err
		}
		var given []string
		for _, m := range exports.FindAllStringSubmatch(text, -1) {
			given = append(given, m[2])
		}
		for _, m := range listed.FindAllStringSubmatch(text, -1) {
			given = append(given, strings.TrimSpace(m[1]))
		}
		text = imports.ReplaceAllString(text, "const {$1} = module_$2;")
		text = exports.ReplaceAllString(text, "$1 $2")
		text = listed.ReplaceAllString(text, "")
		fmt.Fprintf(&out, "const module_%s = (() => {\n%s\nreturn { %s };\n})();\n", strings.TrimSuffix(name, ".js"), text, strings.Join(given, ", "))
	}
	return out.String(), nil
}

// Export writes the page as one file, which needs no server and loads nothing: the flame graph, the table, callers and callees, filters and
// searches. It has no source, no time line and no pages of pprof, and says so. Load must have returned.
func (s *Server) Export(ctx context.Context, w io.Writer) error {
	data, err := s.saved(ctx)
	if err != nil {
		return err
	}
	text, err := json.Marshal(data) // "<" is escaped in it
	if err != nil {
		return err
	}
	code, err := bundle(scripts...)
	if err != nil {
		return err
	}
	if strings.Contains(code, "</script") || strings.Contains(code, "<!--") {
		panic("BUG: the page's scripts end a script")
	}
	page, err := web.ReadFile("web/index.html")
	if err != nil {
		return err
	}
	style, err := web.ReadFile("web/app.css")
	if err != nil {
		return err
	}
	icon, err := web.ReadFile("web/icon.svg")
	if err != nil {
		return err
	}
	image := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(icon)
	hash := func(b string) string {
		h := sha256.Sum256([]byte(b))
		return "'sha256-" + base64.StdEncoding.EncodeToString(h[:]) + "'"
	}
	csp := "default-src 'none'; script-src " + hash(code) + "; style-src " + hash(string(style)) + "; img-src data:; base-uri 'none'; form-action 'none'"
	for _, r := range [][2]string{
		{`<meta charset="utf-8">`, `<meta charset="utf-8">` + "\n" + `<meta http-equiv="Content-Security-Policy" content="` + csp + `">`},
		{`<link rel="icon" href="icon.svg">`, `<link rel="icon" href="` + image + `">`},
		{`<img src="icon.svg"`, `<img src="` + image + `"`},
		{`<link rel="stylesheet" href="app.css">`, "<style>" + string(style) + "</style>"},
		{"<script type=\"module\" src=\"app.js\"></script>\n", ""},
		{"</body>", "<script type=\"application/json\" id=\"saved\">" + string(text) + "</script>\n<script>" + code + "</script>\n</body>"},
	} {
		if bytes.Count(page, []byte(r[0])) != 1 {
			panic("BUG: the page has no " + r[0])
		}
		page = bytes.Replace(page, []byte(r[0]), []byte(r[1]), 1)
	}
	_, err = w.Write(page)
	return err
}
