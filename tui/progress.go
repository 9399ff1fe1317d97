package tui

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/unspool/unspool/internal/printable"
)

// A Progress is one line on a terminal's standard error, with the progress of long work. If standard error is no terminal, it prints nothing.
type Progress struct {
	mu   sync.Mutex
	w    io.Writer // nil: silent
	next time.Time
	used bool
}

// NewProgress returns a Progress whose first line comes after half a second.
func NewProgress() *Progress {
	p := &Progress{next: time.Now().Add(500 * time.Millisecond)}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		p.w = os.Stderr
	}
	return p
}

// Printf replaces the line, ten times a second at most. It is safe for concurrent use.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.w != nil && now.After(p.next) {
		p.next = now.Add(100 * time.Millisecond)
		p.used = true
		fmt.Fprint(p.w, "\r\x1b[K", printable.String(fmt.Sprintf(format, args...)))
	}
}

// Done takes the line away.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.w = nil
}

// Fetching returns what shows the progress of a download in MiB: names.Options.Progress. It is safe for concurrent use.
func Fetching() func(what string, have, total int64, done bool) {
	var mu sync.Mutex
	var line *Progress
	return func(what string, have, total int64, done bool) {
		mu.Lock()
		defer mu.Unlock()
		if line == nil {
			line = NewProgress()
		}
		switch {
		case done:
			line.Done()
			line = nil
		case total > 0:
			line.Printf("fetching %s: %d of %d MiB", what, have>>20, total>>20)
		default:
			line.Printf("fetching %s: %d MiB", what, have>>20)
		}
	}
}

// Interactive says whether a person can be shown pages and asked for keys.
func Interactive() bool {
	return !Dumb() && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}

// Dumb says whether the terminal cannot move its cursor; of one without a name that is not known.
func Dumb() bool {
	t := os.Getenv("TERM")
	return t == "" || t == "dumb"
}
