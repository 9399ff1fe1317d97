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

// Say replaces the line, ten times a second at most. It is safe for concurrent use.
func (p *Progress) Say(format string, args ...any) {
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
