// Package browse shows a profile on a terminal, to browse: a tree of calls, a table of functions, and trees of their callers. A branch of a tree
// is computed when somebody opens it.
package browse

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/tui"
)

// A reader is a browser on a terminal.
type reader struct {
	*browser
	what          string // is read
	width, height int
	paint         func(tui.Style, string) string
	help          bool
	prompt        byte // what is typed: '/' or 'f'; 0: nothing
	typed, note   string
}

// Show shows p, read from the file what, on the terminal until the user quits or ctx is done.
func Show(ctx context.Context, p *profile.Profile, what string, by profile.Weight) error {
	r := newReader(p, what, by)
	r.paint = tui.Paint(os.Getenv("NO_COLOR") == "")
	t := tea.NewProgram(r, tea.WithoutSignalHandler(), tea.WithFPS(30))
	defer context.AfterFunc(ctx, t.Quit)()
	_, err := t.Run()
	return err
}

func newReader(p *profile.Profile, what string, by profile.Weight) *reader {
	return &reader{browser: newBrowser(p, by), what: what, width: 80, height: 24, paint: tui.Unpainted}
}

func (r *reader) Init() tea.Cmd { return nil }

func (r *reader) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		r.width, r.height = max(msg.Width, 1), max(msg.Height, 1)
	case tea.KeyPressMsg:
		if r.prompt != 0 {
			r.typing(msg)
			return r, nil
		}
		return r, r.pressed(msg.String())
	}
	return r, nil
}

// pressed does what a key is for.
func (r *reader) pressed(key string) tea.Cmd {
	r.note = ""
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "t", "tab":
		r.show((r.view + 1) % numViews)
	case "shift+tab":
		r.show((r.view + numViews - 1) % numViews)
	case "1", "2", "3":
		r.show(int(key[0] - '1'))
	case "enter", "space":
		if at := r.selected(); at != nil {
			if r.view == topView {
				r.show(callersView)
			} else {
				r.toggle(!at.open)
			}
		}
	case "right", "l":
		if at := r.selected(); at != nil && at.open {
			r.move(1)
		} else {
			r.toggle(true)
		}
	case "left", "h":
		r.out()
	case "s":
		r.order()
	case "n":
		r.seek(1)
	case "N":
		r.seek(-1)
	case "/", "f":
		r.prompt, r.typed, r.help = key[0], "", false
	case "?":
		r.help = !r.help
	case "esc":
		if r.help = false; r.filter != nil {
			r.setFilter(nil)
		}
	default:
		if n := tui.Steps(key, max(1, r.height-6)); n != 0 {
			r.move(n)
		}
	}
	return nil
}

func (r *reader) seek(step int) {
	switch {
	case r.search == nil:
		r.note = "nothing has been searched for: /"
	case !r.again(step):
		r.note = "nothing matches " + printable.Marked(r.search.String())
	}
}

// typing edits what is searched for, or the filter.
func (r *reader) typing(key tea.KeyPressMsg) {
	r.note = ""
	switch key.String() {
	case "esc", "ctrl+c":
		r.prompt = 0
	case "enter":
		re, err := regexp.Compile(r.typed)
		if err != nil {
			r.note = err.Error()
			return
		}
		if r.typed == "" {
			re = nil
		}
		what := r.prompt
		r.prompt = 0
		if what == 'f' {
			r.setFilter(re)
			return
		}
		if r.search = re; re != nil {
			r.seek(1)
		}
	default:
		r.typed = tui.Edit(r.typed, key)
	}
}

func (r *reader) View() tea.View {
	out := tea.NewView(r.text())
	out.AltScreen = true
	return out
}

// text returns what is to be seen.
func (r *reader) text() string {
	rows := max(0, r.height-5)
	w := r.width
	out := []string{r.paint(tui.Strong, printable.Clip(r.title(), w)), r.tabs(), r.paint(tui.Strong, printable.Clip(r.head(), w))}
	if r.help {
		out = append(out, tui.Fill(tui.ClipAll(browseHelp, w), rows)...)
	} else {
		out = append(out, tui.Fill(r.body(rows), rows)...)
	}
	out = append(out, r.paint(tui.Faint, printable.Clip(r.p.Summary(), w)), r.foot())
	return strings.Join(out[:min(len(out), r.height)], "\n")
}

func (r *reader) title() string {
	s := "unspool report · " + printable.Marked(r.what)
	if r.filter != nil {
		s += fmt.Sprintf(" · /%s/ %s", printable.Marked(r.filter.String()), profile.Percent(r.weight, r.all))
	}
	return s
}

func (r *reader) tabs() string { return tui.Tabs(viewNames[:], r.view, r.width, r.paint) }

func (r *reader) head() string {
	switch r.view {
	case topView:
		return fmt.Sprintf("%7s %7s  %-20s  %s", "self", "total", "module", "function")
	case callersView:
		return fmt.Sprintf("%7s %7s    %s", "self", "total", "function, and who called it")
	}
	return fmt.Sprintf("%7s %7s    %s", "total", "self", "function, and what it called")
}

// body returns the rows that are to be seen.
func (r *reader) body(height int) []string {
	v := r.view
	if len(r.rows[v]) == 0 {
		return []string{r.paint(tui.Faint, printable.Clip("  nothing matches", r.width))}
	}
	r.off[v] = max(0, min(r.off[v], r.sel[v], len(r.rows[v])-height))
	r.off[v] = max(r.off[v], r.sel[v]-height+1)
	// Deep in a tree, indentation is cut on the left.
	shift := max(0, 2*r.rows[v][r.sel[v]].level-r.width/3)
	var out []string
	for i := r.off[v]; i < len(r.rows[v]) && len(out) < height; i++ {
		at := r.rows[v][i]
		line := printable.Clip(r.row(at, max(0, 2*at.level-shift)), r.width)
		switch {
		case i == r.sel[v]:
			line = r.paint(tui.Chosen, printable.Pad(line, r.width))
		case r.search != nil && r.search.MatchString(r.name(at)):
			line = r.paint(tui.Strong, line)
		}
		out = append(out, line)
	}
	return out
}

func (r *reader) row(at *branch, indent int) string {
	total, self := profile.Percent(at.total, r.all), profile.Percent(at.self, r.all)
	name := printable.Marked(r.name(at))
	if r.view == topView {
		return fmt.Sprintf("%7s %7s  %s  %s", self, total, printable.Pad(printable.Clip(printable.Marked(r.p.Modules[r.p.Funcs[at.fn].Module].Base()), 20), 20), name)
	}
	if at.inlined {
		name += " (inlined)"
	}
	sign := "▸ "
	switch {
	case at.leaf():
		sign = "  "
	case at.open:
		sign = "▾ "
	}
	if r.view == treeView {
		return fmt.Sprintf("%7s %7s  %s%s%s", total, self, strings.Repeat(" ", indent), sign, name)
	}
	if at.parent != nil {
		self = ""
	}
	return fmt.Sprintf("%7s %7s  %s%s%s", self, total, strings.Repeat(" ", indent), sign, name)
}

func (r *reader) foot() string {
	switch {
	case r.prompt != 0 && r.note != "":
		return printable.Clip(string(r.prompt)+" "+printable.Marked(r.typed)+"  "+printable.Marked(r.note), r.width)
	case r.prompt != 0:
		what := "search: "
		if r.prompt == 'f' {
			what = "filter: "
		}
		return printable.Clip(what+printable.Marked(r.typed)+"▏", r.width)
	case r.note != "":
		return printable.Clip(r.note, r.width)
	}
	return r.paint(tui.Faint, printable.Clip("t view · ↑↓ select · enter open · / search · f filter · s order · ? help · q quit", r.width))
}

var browseHelp = strings.Split(`  t, tab, 1, 2, 3  tree of what called what, table of functions, trees of their callers
  j k, arrows      select a row; page up, page down, home and end (g, G), too
  enter, space     open or close it; in the table, show the function's callers
  right, left      open it or go into it, close it or go to what it is in (l, h)
  /                search by a regular expression; n, N: the next, the one before
  f                only stacks with a function, or of a thread, that matches; escape: all
  s                order tables by what is a function's own, or by what it is in
  q, ctrl-c        quit

  self: samples in the function itself. total: samples of stacks that it is in. Percentages are of all
  samples of the recording. (inlined): the compiler put the function's code into its caller's.`, "\n")
