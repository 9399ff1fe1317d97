package top

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/term"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/tui"
)

// A watcher is a view on a terminal.
type watcher struct {
	v             *view
	f             *feed
	every         time.Duration
	left          int // rounds; 0: no end
	width, height int
	latest        ranked
	over          bool // nothing more comes
}

// A ranked is what a round has brought.
type ranked struct {
	r     *ranking
	walks string
}

type (
	dueMsg  struct{}
	overMsg struct{ note string }
)

// watch shows the recording on the terminal until the user has seen enough, or ctx is done; ended tells when the recording ends. It says whether
// the recording ended by itself.
func (t *display) watch(ctx context.Context, ended <-chan error) (over bool, err error) {
	v := t.v
	v.paint = tui.Paint(os.Getenv("NO_COLOR") == "")
	v.open[stacks] = true
	w := &watcher{v: v, f: t.f, every: t.o.Every, left: t.o.Rounds}
	p := tea.NewProgram(w, tea.WithoutSignalHandler(), tea.WithFPS(20))
	defer context.AfterFunc(ctx, p.Quit)()
	shown, told := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(told)
		select {
		case err := <-ended:
			note := "ended"
			if err != nil {
				note = "ended: " + printable.Marked(err.Error())
			}
			told <- err
			p.Send(overMsg{note})
		case <-shown:
		}
	}()
	_, err = p.Run()
	close(shown)
	end, over := <-told
	if err == nil {
		err = end
	}
	return over, err
}

func (w *watcher) Init() tea.Cmd { return w.wait() }

// wait lets an interval go by.
func (w *watcher) wait() tea.Cmd {
	return tea.Tick(w.every, func(time.Time) tea.Msg { return dueMsg{} })
}

// next works out a ranking besides the screen: names of a new file can take a while.
func (w *watcher) next() tea.Msg { return ranked{w.f.next(), w.f.rec.Summary()} }

func (w *watcher) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		w.width, w.height = msg.Width, msg.Height
	case dueMsg:
		if !w.over {
			return w, w.next
		}
	case overMsg:
		w.over, w.v.note = true, fmt.Sprintf("%s · q to quit", msg.note)
		return w, w.next
	case ranked:
		w.latest = msg
		if !w.v.paused {
			w.show()
		}
		if w.left > 0 {
			if w.left--; w.left == 0 {
				return w, tea.Quit
			}
		}
		if !w.over {
			return w, w.wait()
		}
	case tea.KeyPressMsg:
		if w.v.typing {
			w.typed(msg)
			return w, nil
		}
		return w, w.pressed(msg.String())
	}
	return w, nil
}

func (w *watcher) show() {
	if w.latest.r != nil {
		w.v.walks = w.latest.walks
		w.v.show(w.latest.r)
	}
}

// pressed does what a key is for.
func (w *watcher) pressed(key string) tea.Cmd {
	v := w.v
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "tab", "right", "l":
		v.table = (v.table + 1) % numTables
	case "shift+tab", "left", "h":
		v.table = (v.table + numTables - 1) % numTables
	case "1", "2", "3":
		v.table = int(key[0] - '1')
	case "enter", "space":
		v.open[v.table] = !v.open[v.table]
	case "p":
		if v.paused = !v.paused; !v.paused {
			w.show()
		}
	case "r":
		w.latest = ranked{&ranking{}, w.latest.walks}
		w.show()
		return func() tea.Msg { w.f.reset(); return nil }
	case "?":
		v.help = !v.help
	case "/":
		v.typing, v.typed, v.wrong, v.help = true, "", nil, false
	case "esc":
		v.help = false
		v.setFilter(nil)
	default:
		if n := tui.Steps(key, max(1, w.height-7)); n != 0 {
			v.move(n)
		}
	}
	return nil
}

// typed edits the regular expression.
func (w *watcher) typed(key tea.KeyPressMsg) {
	v := w.v
	switch key.String() {
	case "esc", "ctrl+c":
		v.typing = false
		return
	case "enter":
		re, err := regexp.Compile(v.typed)
		if v.wrong = err; err != nil {
			return
		}
		v.typing = false
		if v.typed == "" {
			re = nil
		}
		v.setFilter(re)
		return
	default:
		v.typed = tui.Edit(v.typed, key)
	}
	v.wrong = nil
}

func (w *watcher) View() tea.View {
	out := tea.NewView(w.v.text(max(w.width, 1), max(w.height, 1)))
	out.AltScreen = true
	return out
}

// commandFiles returns the standard files of a command that top starts: its output goes where the table does not, or nowhere. close closes them.
func commandFiles(tty bool) (files *[3]*os.File, close func() error, err error) {
	if !tty {
		return &[3]*os.File{os.Stdin, os.Stderr, os.Stderr}, func() error { return nil }, nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	files = &[3]*os.File{null, null, os.Stderr}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		files[2] = null
	}
	return files, null.Close, err
}
