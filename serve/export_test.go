package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/internal/oracle"
)

// exported writes the page of recordings into a file, and returns its address.
func exported(t *testing.T, recs ...*Recording) string {
	t.Helper()
	var o Options
	for i, r := range recs {
		o.Inputs = append(o.Inputs, Input{fmt.Sprintf("rec%d.data", i), func(context.Context, func(Progress)) (*Recording, error) { return r, nil }})
	}
	s := New(o)
	var page bytes.Buffer
	if err := s.Export(t.Context(), &page); err == nil {
		t.Errorf("before Load, Export writes a page of %d bytes without a profile; want an error", page.Len())
	}
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := s.Export(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// TestExport opens a page that was saved, from a file: it answers as the server does, and asks nobody.
func TestExport(t *testing.T) {
	oracle.Long(t)
	rec, _ := record(3000, 13)
	base, _ := record(2000, 14)
	server, page := start(t, nil, rec, base), exported(t, rec, base)
	p := oracle.OpenPage(t, page, 1280, 800)
	p.Scheme("light")
	p.Wait(graphReady + ` && document.getElementById('badge').textContent.includes('% whole') && !document.getElementById('saved-note').hidden && document.getElementById('timeline').hidden`)
	for _, q := range []string{
		"graph?view=calls&width=1000", "graph?view=inverted&width=300&order=heavy", "graph?view=callers&fn=3&width=500", "graph?view=callees&fn=7&width=500",
		"graph?view=calls&width=1000&side=1&search=f3", "graph?view=calls&width=200&with=libx&without=sys_1", "graph?view=inverted&width=900&by=periods&pid=101",
		"graph?view=calls&width=400&comm=worker-1&search=nosuch", "top?limit=500", "top?limit=7&offset=5&sort=name&dir=up", "top?limit=40&sort=module", "top?limit=500&sort=tdelta",
		"top?limit=500&sort=delta&by=periods&match=F1", "top?limit=500&sort=total&tid=102&pid=100", "top?limit=3&event=0", "top?limit=3&event=5",
	} {
		var want, got any
		get(t, server, "/api/"+q, &want)
		u, _ := url.Parse(q)
		params := map[string]string{}
		for k, v := range u.Query() {
			params[k] = v[0]
		}
		text, _ := json.Marshal(params)
		s := p.Eval(fmt.Sprintf(`module_model.offline.ask(%q, %s).then(JSON.stringify)`, u.Path, text)).(string)
		if err := json.Unmarshal([]byte(s), &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-server +page):\n%.2000s", q, diff)
		}
	}
	// Zoom, search, table, callers, a question that is wrong, and what is not there.
	p.Click(point(p, "graph", 0.5, 1))
	p.Wait(`location.hash.includes('path=') && document.getElementById('chosen-name').textContent.startsWith('worker-')`)
	p.Key("/")
	p.Type("libx.*f3")
	p.Wait(`/^[\d.]+ % in 1$/.test(document.getElementById('found').textContent)`)
	p.Type("(")
	p.Wait(`!document.getElementById('notice').hidden`)
	p.Key("Escape")
	p.Wait(`document.getElementById('notice').hidden`)
	p.Eval(`document.activeElement.blur()`)
	picture(t, p, "saved")
	p.Key("2")
	p.Wait(`document.querySelector('.tbody .c-tdelta') !== null`)
	p.Eval(`document.querySelector('.tscroll').focus()`)
	p.Key("ArrowDown")
	p.Key("Enter")
	p.Wait(`document.body.dataset.ready === 'sandwich' && document.querySelector('#callees canvas').width > 300 && document.getElementById('picked').textContent.startsWith('total')`)
	p.Eval(`document.activeElement.blur()`)
	p.Key("4")
	p.Wait(`document.getElementById('source').textContent.includes('no source')`)
	if e := p.Errors(); len(e) > 0 {
		t.Errorf("the page complains: %q", e)
	}
	for _, u := range p.Fetched() {
		if !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "about:") && u != page {
			t.Errorf("the page asked for %s", u)
		}
	}

	// Names that want to be markup are text.
	p.Go(exported(t, hostile()))
	p.Wait(graphReady + ` && document.body.textContent.includes('onerror=')`)
	if images, title := p.Eval(`document.querySelectorAll('img').length`), p.Eval(`document.title`); images != 1.0 || strings.Contains(title.(string), "owned") {
		t.Errorf("a name became markup: %v images, want 1; the title is %q, want none with \"owned\"", images, title)
	}
}
