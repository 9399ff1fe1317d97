package jit

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
)

// A template is code that a maker writes again and again, always with the same unwind information. CPython makes all of its functions so: 15 bytes
// that call the interpreter.
type template struct {
	code   string
	unwind int32 // in unwinds and 1
}

// Bounds of templates: bytes, and how many different pieces of code of a dump are looked at.
const (
	minTemplate = 8
	maxTemplate = 256
	maxCodes    = 64
)

// A code is code that may be a template.
type code struct {
	unwind int32 // -1: it does not always have the same
	n      int
}

// observe counts code that may be a template.
func (d *dump) observe(text []byte, unwind int32) {
	if len(text) < minTemplate || d.m.charge == nil {
		return
	}
	c, known := d.codes[string(text)]
	switch {
	case known && c.unwind != unwind:
		c.unwind = -1
	case known:
		c.n++
	case len(d.codes) == maxCodes:
		return
	default:
		c = code{unwind, 1}
	}
	d.codes[string(text)] = c
}

// templates returns the code that was written twice, or more often.
func (d *dump) templates() (out []template) {
	for text, c := range d.codes {
		if c.n > 1 && c.unwind > 0 {
			out = append(out, template{text, c.unwind})
		}
	}
	slices.SortFunc(out, func(a, b template) int { return cmp.Compare(a.code, b.code) })
	return out
}

// An alike finds code that has no record yet and is the same as code that has: makers write dumps in blocks, and the functions made last, which may be
// those that run, wait for the next. Equal code has equal rules. The process must be alive, and have the dump mapped.
type alike struct {
	mu    sync.Mutex
	look  int64                   // of the files, at which the rest was learned
	alive bool                    // the process has a dump with templates mapped
	known map[arch.Addr]Unwinding // without EHFrame: it is not alike
	ended bool                    // the process has ended, and its files are whole
	next  time.Duration           // not before then, since began, is it asked whether the process has ended
}

// maxAlike bounds how many addresses are remembered, and maxMaps the bytes of a list of mappings. Pages have pageSize bytes, or a multiple.
const (
	pageSize = 1 << 12
	maxAlike = 1 << 12
	maxMaps  = 32 << 20
)

// like returns the unwind information of code in the process's memory that is the same as code with records. again says that the process has ended,
// and that its files, which are whole now, are worth another look.
func (c *Code) like(addr arch.Addr) (u Unwinding, ok, again bool) {
	a := &c.alike
	a.mu.Lock()
	defer a.mu.Unlock()
	if look := c.looks.Load(); look != a.look || a.known == nil {
		a.look, a.alive, a.known = look, c.mapped(), map[arch.Addr]Unwinding{}
	}
	u, seen := a.known[addr]
	now, was := time.Since(began), a.alive
	if !seen && a.alive {
		if len(a.known) >= maxAlike {
			clear(a.known)
		}
		u, a.alive = c.match(uint64(addr))
		a.known[addr] = u
	}
	if !a.ended && (was != a.alive || now >= a.next) {
		if a.next = now + soon; !c.running() {
			a.ended = true
			c.Again()
			return u, false, true
		}
	}
	return u, u.EHFrame != "", false
}

// running says whether the process has memory.
func (c *Code) running() bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.process.pid))
	return err == nil && name != ""
}

// mapped says whether the process has a dump with templates mapped: it is the process that wrote the dump, not a later one with its number.
func (c *Code) mapped() bool {
	dumps := map[string]bool{}
	c.mu.RLock()
	for i := range c.files {
		if m := c.files[i].m; m != nil && len(m.templates) > 0 {
			dumps[c.files[i].path] = true
		}
	}
	c.mu.RUnlock()
	if len(dumps) == 0 {
		return false
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", c.process.pid))
	if err != nil {
		return false
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxMaps))
	return slices.ContainsFunc(procfs.ParseMappings(text), func(m procfs.Mapping) bool { return dumps[m.Name] })
}

// match compares the code around addr in the process with the templates. addr is in memory that is no file's. alive says that the memory could be read.
func (c *Code) match(addr uint64) (u Unwinding, alive bool) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.process.pid))
	if err != nil {
		return u, false
	}
	defer mem.Close()
	var buf [2 * maxTemplate]byte
	lo := addr - min(addr, maxTemplate)
	n, _ := mem.ReadAt(buf[:], int64(lo))
	if n == 0 { // its page is the first
		lo = addr &^ (pageSize - 1)
		n, _ = mem.ReadAt(buf[:], int64(lo))
	}
	text := buf[:n]
	if addr-lo >= uint64(n) {
		return u, false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i := range c.files {
		m := c.files[i].m
		if m == nil {
			continue
		}
		for _, t := range m.templates {
			at := int(addr - lo)
			from, to := max(at-len(t.code)+1, 0), min(at+len(t.code), n)
			if at := bytes.Index(text[from:to], []byte(t.code)); at >= 0 {
				x := &m.unwinds[t.unwind-1]
				return Unwinding{Start: arch.Addr(lo + uint64(from+at)), Size: x.size, EHFrame: x.eh, Big: m.big}, true
			}
		}
	}
	return u, true
}
