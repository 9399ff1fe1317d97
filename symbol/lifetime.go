package symbol

import (
	"errors"
	"sync"
	"time"

	"github.com/unspool/unspool/module"
)

// A Table is open while the budget of Options.Files has room for it. What was not used for longest is released; the next use opens it again.

// tableCost is about what an open Table takes beside what size counts, and symbolCost what it takes for each symbol, in bytes.
const (
	tableCost  = 8 << 10
	symbolCost = 24
)

// enter opens the files and their symbol tables, if they are not open, and keeps them open until leave.
func (t *Table) enter() {
	for {
		t.life.RLock()
		if t.closed || t.opened && !t.lost() {
			return
		}
		t.life.RUnlock()
		t.life.Lock()
		if t.opened && !t.closed && t.lost() {
			t.forget()
		}
		if !t.opened && !t.closed {
			if t.disturbed {
				t.setNote("")
				t.disturbed = false
			}
			if err := module.Guard(func() error { t.load(); return nil }); err != nil {
				t.sources = nil
				t.setNote("%v", err)
			}
			if t.opened = true; t.img != nil {
				t.written = time.Time{}
			} else if !t.written.IsZero() {
				t.written = time.Now()
			}
			t.share = t.r.opt.Files.Memory.Add(t.size(), t.evict)
		}
		t.life.Unlock()
	}
}

// leave ends what enter began.
func (t *Table) leave() {
	if t.share != nil {
		t.share.Use(t.size())
	}
	t.life.RUnlock()
}

// changed says whether somebody has written to a file since it was opened. t.life is held.
func (t *Table) changed() bool {
	t.owning.Lock()
	debug := t.debug
	t.owning.Unlock()
	return t.given == nil && t.img != nil && t.img.Changed() || debug != nil && debug.Changed()
}

// reopen has the next use open files anew that have changed.
func (t *Table) reopen() {
	t.life.Lock()
	defer t.life.Unlock()
	if t.opened && !t.closed && t.changed() {
		t.forget()
	}
}

// forget releases the files, and what was said of them, because somebody has written to them. t.life is locked.
func (t *Table) forget() {
	t.share.Remove()
	t.release()
	t.written = time.Now()
	t.owning.Lock()
	t.replaced, t.foreign, t.note = false, "", ""
	t.owning.Unlock()
}

// rewriting is how long somebody who writes to a file may take before it is looked at again.
const rewriting = time.Second

// lost says whether the file that was written to was not there, or not whole, when it was opened again, some time ago, and no debug file has its names.
// t.life is held.
func (t *Table) lost() bool {
	if t.img != nil || t.written.IsZero() || time.Since(t.written) < rewriting {
		return false
	}
	t.owning.Lock()
	defer t.owning.Unlock()
	return t.debug == nil
}

// size returns about how many bytes the table takes, its files apart. t.life is held.
func (t *Table) size() int64 {
	n := int64(tableCost)
	t.mu.Lock()
	for i := range t.sources {
		if t.index != nil || !t.r.scarce.Load() || t.sources[i].made {
			n += int64(t.sources[i].Len()) * symbolCost
		}
	}
	n += t.text
	t.mu.Unlock()
	if t.img != nil {
		n += t.img.Inflated()
	}
	t.owning.Lock()
	debug, info := t.debug, t.info
	t.owning.Unlock()
	if debug != nil {
		n += debug.Inflated()
	}
	if info != nil {
		n += info.Size()
	}
	return n
}

// evict releases the files, if nobody reads them now.
func (t *Table) evict() bool {
	if !t.life.TryLock() {
		return false
	}
	defer t.life.Unlock()
	if t.opened && !t.closed {
		t.r.remember(t.ownNotes())
		t.share.Remove() // a newer one than the caller's, if the files were opened again since
		t.release()
		t.r.scarce.Store(true)
	}
	return true
}

// close releases the files for good.
func (t *Table) close() error {
	t.life.Lock()
	defer t.life.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.share.Remove()
	return t.release()
}

// release closes the files and forgets what is in them, but not what forbids to keep answers: these may be given later. t.life is locked.
func (t *Table) release() error {
	var errs []error
	if t.info != nil {
		t.noted = t.noted || len(t.info.Notes()) > 0
		errs = append(errs, t.info.Close())
	}
	for _, img := range t.owned {
		errs = append(errs, img.Close())
	}
	for _, img := range t.held {
		errs = append(errs, img.Release())
	}
	t.opened, t.share, t.owned, t.held, t.made = false, nil, nil, nil, nil
	t.img, t.pid, t.sources, t.lacks = nil, 0, nil, false
	t.debug, t.debugged, t.lined, t.info, t.gosym = nil, sync.Once{}, sync.Once{}, nil, nil
	t.index, t.stubs, t.asked, t.shown, t.named, t.text = nil, false, false, nil, nil, 0
	return errors.Join(errs...)
}
