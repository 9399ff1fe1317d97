package names

import (
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// maxLabels bounds what names of threads can make of labels.
const maxLabels = 1 << 16

// labels are frames that stand for no code: their names are places in a module that is no file's.
type labels struct {
	in unwind.Mapping

	mu    sync.Mutex
	texts []string
	place map[string]int
}

func newLabels() labels {
	return labels{in: unwind.Mapping{Hi: maxLabels + 2, Module: &unwind.Module{Path: "[waker]"}}, place: map[string]int{}}
}

// Label returns a frame without code, which this Namer names text. There are at most 65,536 different labels; others stands for all further
// ones.
func (n *Namer) Label(text, others string) unwind.Frame {
	l := &n.labels
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.place[text]
	if !ok && len(l.texts) >= maxLabels {
		text = others
		at, ok = l.place[text]
	}
	if !ok {
		if at = min(len(l.texts), maxLabels); at == len(l.texts) {
			l.texts, l.place[text] = append(l.texts, text), at
		}
	}
	return unwind.Frame{PC: arch.Addr(at), Exact: true, Mapping: &l.in}
}

// name names labels, if m is their module.
func (l *labels) name(m *unwind.Module, offs []uint64, names []profile.Name) bool {
	if m != l.in.Module {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, off := range offs {
		if off < uint64(len(l.texts)) {
			names[i].Func = l.texts[off]
		}
	}
	return true
}
