package serve

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// picture checks that a screenshot shows something, and keeps it where UNSPOOL_SCREENSHOTS says.
func picture(t *testing.T, p *oracle.Page, name string) {
	t.Helper()
	b := p.Screenshot()
	if dir := os.Getenv("UNSPOOL_SCREENSHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	im, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if n := colours(im); n < 20 {
		t.Errorf("%s: a picture of %d colours", name, n)
	}
}

func colours(im image.Image) int {
	seen := map[any]bool{}
	for y := im.Bounds().Min.Y; y < im.Bounds().Max.Y; y += 3 {
		for x := im.Bounds().Min.X; x < im.Bounds().Max.X; x += 3 {
			seen[im.At(x, y)] = true
		}
	}
	return len(seen)
}

// quiet checks that nothing went wrong on the page, and that it asked nobody but its server.
func quiet(t *testing.T, p *oracle.Page, urls ...string) {
	t.Helper()
	for _, e := range p.Errors() {
		if strings.Contains(e, "status of 400") && strings.Contains(e, wrongSearch) {
			continue // Chromium reports each answer that is no success
		}
		t.Errorf("the page complains: %.500s", e)
	}
	for _, u := range p.Fetched() {
		ok := strings.HasPrefix(u, "about:") || strings.HasPrefix(u, "data:")
		for _, x := range urls {
			ok = ok || strings.HasPrefix(u, x+"/")
		}
		if !ok {
			t.Errorf("the page asked for %s", u)
		}
	}
}

const (
	wrongSearch = "search=libx.*f3%28&" // what TestPage types on the way
	graphReady  = `document.body.dataset.ready === 'flame'`
	// middle is a point of the graph, as a fraction of the width and a depth.
	middle = `(() => { const r = document.querySelector('#%s canvas').getBoundingClientRect(); return [r.left + r.width * %g, r.top + 20 * %d + 10]; })()`
)

func point(p *oracle.Page, box string, at float64, depth int) (x, y float64) {
	v := p.Eval(fmt.Sprintf(middle, box, at, depth)).([]any)
	return v[0].(float64), v[1].(float64)
}

// TestPage goes through the page as a person does, with the pointer and with keys.
func TestPage(t *testing.T) {
	oracle.Long(t)
	rec, _ := record(4000, 13)
	base, _ := record(4000, 14)
	token := NewToken()
	one, two, bad := startWith(t, Options{Annotator: &annotator{}, Token: token}, rec), start(t, nil, rec, base), start(t, nil, hostile(), hostile())
	p := oracle.OpenPage(t, one.URL+"/?token="+token, 1280, 800)
	p.Scheme("light")
	p.Wait(`location.search === '' && document.cookie === ''`) // no script reads the token

	// The flame graph: what is under the pointer, zoom by click, and back.
	p.Wait(graphReady)
	p.Wait(`document.getElementById('badge').textContent.includes('% whole') && document.getElementById('about').textContent.includes('4,000 samples')`)
	p.Hover(point(p, "graph", 0.5, 1))
	p.Wait(`!document.getElementById('tip').hidden && document.querySelector('#tip b').textContent.startsWith('worker-')`)
	picture(t, p, "flame-light")
	p.Click(point(p, "graph", 0.5, 1))
	p.Wait(`location.hash.includes('path=') && document.getElementById('chosen-name').textContent.startsWith('worker-')`)
	before := p.Eval(`document.getElementById('chosen-name').textContent`).(string)
	p.Hover(point(p, "graph", 0.02, 1))
	p.Wait(fmt.Sprintf(`document.querySelector('#tip b').textContent === %q`, before)) // it fills the width
	p.Eval(`document.querySelector('#graph canvas').focus()`)
	p.Key("ArrowDown")
	p.Wait(fmt.Sprintf(`document.getElementById('chosen-name').textContent !== %q && document.getElementById('live').textContent.includes('Total')`, before))
	p.Key("Enter")
	p.Wait(`new URLSearchParams(location.hash.slice(1)).get('path').split('.').length === 2`)
	p.Key("Escape")
	p.Wait(`new URLSearchParams(location.hash.slice(1)).get('path').split('.').length === 1`)
	p.Eval(`history.back()`)
	p.Wait(`new URLSearchParams(location.hash.slice(1)).get('path').split('.').length === 2`)
	p.Eval(`document.querySelector('#graph canvas').focus()`)
	p.Key("Backspace")
	p.Wait(`new URLSearchParams(location.hash.slice(1)).get('path').split('.').length === 1`)
	p.Key("Backspace")
	p.Wait(`!location.hash.includes('path=')`)

	// Search, by key, and its end.
	p.Key("/")
	p.Wait(`document.activeElement.id === 'search'`)
	p.Type("libx.*f3")
	p.Wait(`/^[\d.]+ % in 1$/.test(document.getElementById('found').textContent)`)
	picture(t, p, "search")
	p.Type("(")
	p.Wait(`document.getElementById('notice').textContent.includes('missing closing )') && !document.getElementById('notice').hidden && document.getElementById('loading').hidden`)
	p.Key("Escape")
	p.Wait(`document.getElementById('notice').hidden && document.getElementById('found').textContent === '' && document.getElementById('search').value === ''`)
	// A click is faster than the search that was just typed, and Escape too.
	if got := p.Eval(`new Promise(done => {
		const s = document.getElementById('search');
		s.value = 'f3';
		s.dispatchEvent(new Event('input', { bubbles: true }));
		document.getElementById('tab-top').click();
		setTimeout(() => done(s.value + location.hash), 200);
	})`); got != "f3#tab=top&search=f3" {
		t.Errorf("a search before a click is lost: %q", got)
	}
	p.Wait(`document.body.dataset.ready === 'top' && document.getElementById('found').textContent.endsWith(' functions')`)
	p.Eval(`document.querySelector('.tscroll').focus()`)
	for range 2 {
		p.Key("ArrowDown")
	}
	p.Wait(`document.querySelector('.tr.at').getAttribute('aria-rowindex') === '3'`)
	p.Eval(`document.getElementById('search').focus(); document.getElementById('search').select()`)
	p.Type("sys_1$")
	p.Wait(`document.getElementById('found').textContent === '1 function' && document.querySelector('.tr.at').getAttribute('aria-rowindex') === '1'`)
	p.Eval(`document.querySelector('.tscroll').focus()`)
	p.Key("Enter")
	p.Wait(`document.body.dataset.ready === 'sandwich' && document.getElementById('pick').value === 'sys_1'`)
	p.Eval(`document.getElementById('search').focus()`)
	p.Key("Escape")
	p.Eval(`document.getElementById('tab-flame').click()`)
	p.Wait(`document.body.dataset.ready === 'flame' && document.getElementById('found').textContent === ''`)
	if got := p.Eval(`new Promise(done => {
		const s = document.getElementById('search');
		s.value = 'at once';
		s.dispatchEvent(new Event('input', { bubbles: true }));
		s.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
		setTimeout(() => done(s.value + location.hash), 200);
	})`).(string); strings.Contains(got, "at") {
		t.Errorf("a search that was left is back: %q", got)
	}

	// Upside down, inside out, dark.
	p.Eval(`document.getElementById('flip').click()`)
	p.Wait(`document.getElementById('flip').getAttribute('aria-pressed') === 'true'`)
	p.Scheme("dark")
	p.Eval(`document.getElementById('inverted').click()`)
	p.Wait(`location.hash.includes('view=inverted')`)
	picture(t, p, "flame-dark")
	p.Eval(`document.getElementById('calls').click(); document.getElementById('flip').click()`)

	// The timeline: threads, a range of time, one thread. What was chosen has the numbers of the range.
	p.Wait(`!location.hash.includes('view=')`)
	for range 100 { // the graph may still be turning
		p.Click(point(p, "graph", 0.5, 0))
		if p.Eval(`document.getElementById('chosen-name').textContent`) == "all" {
			break
		}
	}
	p.Wait(`/^total 100.0 % · 4,000 samples/.test(document.getElementById('chosen-text').textContent)`)
	whole := p.Eval(`document.getElementById('chosen-text').textContent`).(string)
	p.Eval(`document.activeElement.blur()`)
	p.Key("t")
	p.Wait(`document.querySelectorAll('#lanelist button').length === 6`)
	lanes := p.Eval(`(() => { const r = document.getElementById('lanecanvas').getBoundingClientRect(); return [r.left + r.width * 0.25, r.left + r.width * 0.5, r.top + 30]; })()`).([]any)
	p.Drag(lanes[0].(float64), lanes[2].(float64), lanes[1].(float64), lanes[2].(float64))
	p.Wait(`document.querySelectorAll('#chips .chip').length === 1 && /hi=\d+/.test(location.hash)`)
	p.Wait(fmt.Sprintf(`(text => text !== %q && /^total [\d.]+ %% · [\d,]+ samples/.test(text))(document.getElementById('chosen-text').textContent)`, whole))
	p.Eval(`document.querySelector('#lanelist button').click()`)
	p.Wait(`document.querySelectorAll('#chips .chip').length === 2 && /tid=\d+/.test(location.hash)`)
	p.Scheme("light")
	picture(t, p, "timeline")
	p.Eval(`document.querySelector('#chips .chip').click()`)
	p.Wait(`document.querySelectorAll('#chips .chip').length === 1`)
	p.Eval(`document.getElementById('lanecanvas').focus()`)
	p.Key("Escape")
	p.Wait(`document.querySelectorAll('#chips .chip').length === 0`)

	// The filter's form.
	if got := p.Eval(`new Promise(done => {
		const f = document.getElementById('filters'), w = document.getElementById('f-with');
		f.addEventListener('toggle', () => setTimeout(() => { done(w.value); f.hidePopover(); }), { once: true });
		f.showPopover();
		w.value = 'typed at once';
	})`); got != "typed at once" {
		t.Errorf("what was typed as the form opened became %q", got)
	}
	p.Eval(`document.activeElement.blur()`)
	p.Key("f")
	p.Wait(`document.getElementById('filters').matches(':popover-open') && document.getElementById('f-with').value === ''`)
	p.Eval(`document.getElementById('f-with').focus()`)
	p.Type("sys_1")
	p.Key("Enter")
	p.Wait(`document.querySelector('#chips .chip').textContent.startsWith('with sys_1')`)
	p.Eval(`location.hash = 'with=nosuchthing&pid=abc'`)
	p.Wait(`document.getElementById('badge').textContent === 'no samples' && document.getElementById('badge').dataset.grade === 'none'`)
	p.Eval(`history.back()`)
	p.Wait(`document.querySelector('#chips .chip').textContent.startsWith('with sys_1')`)
	p.Eval(`document.querySelector('#chips .chip').click()`)

	// The table: sorted, walked by keys, to the callers and callees, to the source.
	p.Eval(`document.activeElement.blur()`)
	p.Key("2")
	p.Wait(`document.body.dataset.ready === 'top' && document.querySelectorAll('.tbody .tr .c-name').length > 20`)
	if got := p.Eval(`document.querySelectorAll('.tbody .tr')[0].querySelector('.c-self .n').textContent`); got == "" {
		t.Errorf("the first row has no number: %q", p.Eval(`document.querySelectorAll('.tbody .tr')[0].textContent`))
	}
	picture(t, p, "top")
	p.Eval(`document.querySelector('.th .c-name button').click()`)
	p.Wait(`document.querySelector('.th .c-name').getAttribute('aria-sort') === 'ascending' && document.querySelector('.tbody .c-name').textContent.startsWith('/bin/app::f0')`)
	p.Eval(`document.querySelector('.tscroll').focus()`)
	p.Key("ArrowDown")
	p.Key("ArrowDown")
	p.Wait(`document.getElementById('chosen-name').textContent === document.querySelector('.tbody .tr.at .c-name').textContent && document.querySelector('.tr.at').getAttribute('aria-rowindex') === '3'`)
	name := p.Eval(`document.getElementById('chosen-name').textContent`).(string)
	p.Key("Enter")
	p.Wait(fmt.Sprintf(`document.body.dataset.ready === 'sandwich' && document.getElementById('pick').value === %q`, name))
	p.Wait(`document.querySelector('#callees canvas').width > 300`)
	picture(t, p, "sandwich")
	// A function by its whole name, though others have it in theirs; and only its stacks.
	fn := p.Eval(`location.hash`).(string)
	p.Eval(`document.getElementById('pick').focus(); document.getElementById('pick').select()`)
	p.Type("sys_1")
	p.Key("Enter")
	p.Wait(fmt.Sprintf(`location.hash !== %q`, fn) + ` && document.getElementById('pick').value === 'sys_1' && document.getElementById('picked').textContent.startsWith('total')`)
	p.Eval(`document.getElementById('pick').focus(); document.getElementById('pick').select()`)
	p.Type("no such")
	p.Key("Enter")
	p.Wait(`document.getElementById('picked').textContent === 'No function matches.'`)
	p.Eval(`history.back()`)
	p.Wait(fmt.Sprintf(`document.getElementById('pick').value === %q`, name))
	if got := p.Eval(`new Promise(done => {
		const k = document.getElementById('pick');
		history.forward();
		addEventListener('popstate', () => {
			k.value = 'typed';
			k.dispatchEvent(new Event('input', { bubbles: true }));
			setTimeout(() => { done(k.value); history.back(); }, 500);
		}, { once: true });
	})`); got != "typed" {
		t.Errorf("what was typed while an answer came became %q", got)
	}
	p.Wait(fmt.Sprintf(`document.getElementById('pick').value === %q`, name))
	p.Eval(`document.getElementById('go-with').click()`)
	p.Wait(fmt.Sprintf(`document.getElementById('picked').textContent.startsWith('total 100.0 %%') && document.getElementById('pick').value === %q`, name))
	p.Eval(`document.querySelector('#chips .chip').click()`)
	p.Wait(`document.querySelector('#chips .chip') === null`)
	p.Eval(`document.activeElement.blur()`)
	p.Key("s")
	p.Wait(`document.querySelector('.code .ln.more') !== null && document.querySelector('.code .tx').textContent !== null`)
	p.Eval(`document.querySelector('.code .ln.more').click()`)
	p.Wait(`document.querySelector('.code .inst .tx').textContent.startsWith('nop')`)
	picture(t, p, "source")
	if got := p.Eval(`document.querySelector('.code .ln.more .tx').textContent`); got != "\tx = <b>1</b>;" {
		t.Errorf("source is %q", got)
	}

	// What the badge says.
	p.Eval(`document.getElementById('badge').click()`)
	p.Wait(`document.querySelector('#completeness td b') !== null && document.getElementById('completeness').textContent.includes('no-info')`)
	picture(t, p, "badge")
	quiet(t, p, one.URL)

	// Two profiles.
	p.Go(two.URL)
	p.Wait(graphReady + ` && document.getElementById('name').textContent === 'rec0.data compared with rec1.data'`)
	p.Hover(point(p, "graph", 0.5, 1))
	p.Wait(`document.getElementById('tip').textContent.includes('Baseline') && document.getElementById('tip').textContent.includes('percentage points')`)
	picture(t, p, "compare")
	p.Key("2")
	p.Wait(`document.querySelector('.tbody .c-delta') !== null && document.querySelector('.tbody .c-tdelta') !== null`)
	p.Eval(`document.querySelector('.th .c-tdelta button').click()`)
	p.Wait(`document.querySelector('.th .c-tdelta').getAttribute('aria-sort') === 'descending' && document.querySelector('.tbody .c-tdelta').textContent.startsWith('+')`)
	picture(t, p, "compare-table")
	quiet(t, p, one.URL, two.URL)

	// Names that want to be markup are text.
	p.Go(bad.URL + "/#by=periods")
	p.Wait(graphReady)
	p.Hover(point(p, "graph", 0.9, 1))
	for _, key := range []string{"2", "t"} {
		p.Key(key)
	}
	p.Wait(`document.querySelector('.tbody .c-name') !== null && document.querySelector('#lanelist button') !== null`)
	p.Eval(`document.getElementById('badge').click()`)
	p.Wait(`document.body.textContent.includes('onerror=')`)
	if images, title := p.Eval(`document.querySelectorAll('img').length`), p.Eval(`document.title`); images != 1.0 || strings.Contains(title.(string), "owned") {
		t.Errorf("a name became markup: %v images, want 1; the title is %q, want none with \"owned\"", images, title)
	}
	// So late that a number of JavaScript does not tell one nanosecond from the next.
	p.Eval(`location.hash = 'lo=6148914691236516000&hi=6148914691236520000'`)
	p.Wait(`!document.getElementById('into').hidden`)
	p.Eval(`document.getElementById('into').click()`)
	p.Wait(`!document.getElementById('out').hidden`)
	quiet(t, p, one.URL, two.URL, bad.URL)

	// A profile without times, ends and source, in which periods are what matters.
	foreign, _ := record(100, 15)
	foreign.Times, foreign.Local, foreign.Periods, foreign.Profile.Totals.NoStops = nil, false, true, true
	plain := start(t, &annotator{}, foreign)
	p.Go(plain.URL)
	p.Wait(graphReady + ` && document.getElementById('badge').textContent === 'completeness not recorded'`)
	p.Hover(point(p, "graph", 0.5, 0))
	p.Wait(`/Total100.0 %[\d.]+ s/.test(document.getElementById('tip').textContent)`)
	p.Key("4")
	p.Wait(`document.getElementById('source').textContent.includes('pprof') && document.getElementById('timeline').hidden`)
	quiet(t, p, one.URL, two.URL, bad.URL, plain.URL)

	// pprof's own pages.
	p.Go(one.URL + "/pprof/")
	p.Wait(`/^\/pprof\/[0-9a-f]{32}\/flamegraph$/.test(location.pathname) && document.querySelectorAll('#stack-chart *').length > 5`)
	picture(t, p, "pprof")
	p.Eval(`document.querySelector('a[href^="./top"]').click()`)
	p.Wait(`/^\/pprof\/[0-9a-f]{32}\/top$/.test(location.pathname) && document.querySelectorAll('#toptable tr').length > 20`)
	quiet(t, p, one.URL, two.URL, bad.URL, plain.URL)
}
