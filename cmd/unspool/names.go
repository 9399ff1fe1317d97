package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/symbol/debuginfod"
	"github.com/unspool/unspool/symbol/jit"
	"github.com/unspool/unspool/unwind"
)

// A namer gives a profile the names of its locations: from symbol tables, and where a stripped file has
// none, the function's start from its unwind information. It is safe for concurrent use.
type namer struct {
	symbols *symbol.Resolver
	images  map[*unwind.Module]*module.Image // modules that are no file of this machine; set before the first use
	mods    *modules.Set                     // may be nil
	wakers  *wakers                          // who ended waits
	source  bool                             // lines and inlined calls are wanted

	mu     sync.Mutex
	frames map[*unwind.Module]func() *dwarf.Frames
	dumps  map[int32][]string // of code that processes made, by PID
	code   map[int32]*jit.Code

	kept     map[*unwind.Module]*keptModule // what was found, to be kept; nil: nothing is
	inside   map[string]*keptModule         // what the recording brought; set before the first use
	recalled map[*unwind.Module]*keptModule // what was kept of files that are gone; nil where there is none

	fetcher *debuginfod.Client // nil: nothing is fetched
	show    *progress
}

// maxProcesses is of how many processes dumps are remembered; maxDumps, how many of one.
const (
	maxProcesses = 1 << 12
	maxDumps     = 8
)

// newNamer returns a namer; opt says what is known of the kernel. mods are what is named, if they were loaded here; may be nil.
func newNamer(opt symbol.Options, mods *modules.Set) *namer {
	n := &namer{
		mods: mods, wakers: newWakers(), frames: map[*unwind.Module]func() *dwarf.Frames{}, dumps: map[int32][]string{}, code: map[int32]*jit.Code{},
	}
	if mods != nil {
		opt.CacheDir = mods.CacheDir()
		if opt.Search = mods.Search; opt.Search != nil {
			opt.DebugDirs = append([]string{"/usr/lib/debug"}, opt.Search.Dirs...)
		}
	}
	if c, ok := debuginfod.FromEnv(os.Getenv); ok {
		c.Progress = n.fetching
		n.fetcher = debuginfod.New(c)
		// The interrupt that ends a recording does not stop what is fetched for it; the next one does, and nothing more is fetched.
		var stopped atomic.Bool
		opt.Fetch = func(buildID []byte, kind string) (string, error) {
			if stopped.Load() {
				return "", context.Canceled
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
			defer stop()
			path, err := n.fetcher.Fetch(ctx, buildID, kind)
			if ctx.Err() != nil {
				stopped.Store(true)
			}
			return path, err
		}
	}
	n.symbols = symbol.New(opt)
	return n
}

// fetching shows what is being fetched.
func (n *namer) fetching(what string, have, total int64, done bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.show == nil {
		n.show = newProgress()
	}
	switch {
	case done:
		n.show.done()
		n.show = nil
	case total > 0:
		n.show.say("fetching %s: %d of %d MiB", what, have>>20, total>>20)
	default:
		n.show.say("fetching %s: %d MiB", what, have>>20)
	}
}

// notes says what is wrong with what names come from.
func (n *namer) notes() (out []string) {
	if n.fetcher != nil {
		out = n.fetcher.Notes()
	}
	out = append(out, n.symbols.Notes()...)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.code {
		if note := c.Note(); note != "" {
			out = append(out, note)
		}
	}
	slices.Sort(out)
	return out
}

// sourceFlag adds the flag that leaves out what namer.source asks for.
func sourceFlag(c *cobra.Command, plain *bool) {
	c.Flags().BoolVar(plain, "no-inline", false, "leave out lines and inlined calls (faster)")
}

// framesOf returns the unwind information of a module; nil if it has none.
func (n *namer) framesOf(m *unwind.Module) *dwarf.Frames {
	n.mu.Lock()
	f := n.frames[m]
	if f == nil {
		f = sync.OnceValue(func() (f *dwarf.Frames) {
			img := n.image(m)
			if img == nil {
				img, _ = modules.Find(n.search(), m.Path, m.BuildID)
			}
			if img != nil {
				f, _ = dwarf.Open(img)
			}
			return f
		})
		n.frames[m] = f
	}
	n.mu.Unlock()
	return f()
}

// search returns where files are looked for; may be nil.
func (n *namer) search() *module.Search {
	if n.mods == nil {
		return nil
	}
	return n.mods.Search
}

// image returns the image of a module that is no file of this machine; nil for others.
func (n *namer) image(m *unwind.Module) *module.Image {
	if img := n.images[m]; img != nil || n.mods == nil {
		return img
	}
	return n.mods.Hidden(m)
}

// table returns the symbols of a module.
func (n *namer) table(m *unwind.Module) *symbol.Table {
	if img := n.image(m); img != nil {
		return n.symbols.Image(img)
	}
	return n.symbols.Module(m.Path, m.BuildID)
}

// saw looks whether a record tells where a process writes down the code that it makes.
func (n *namer) saw(r *source.Record) {
	if r.Type != source.RecordMmap && r.Type != source.RecordMmap2 || r.PID <= 0 || !jit.IsDump(string(r.Filename)) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if d := n.dumps[r.PID]; !slices.Contains(d, string(r.Filename)) && len(n.dumps) < maxProcesses && len(d) < maxDumps {
		n.dumps[r.PID] = append(d, string(r.Filename))
		delete(n.code, r.PID) // which knows no more dumps than there were
	}
}

// made names code that a process made.
func (n *namer) made(pid int32, addrs []uint64, names []profile.Name) {
	n.mu.Lock()
	c := n.code[pid]
	if c == nil {
		c = jit.Open(int(pid), n.dumps[pid])
		n.code[pid] = c
	}
	n.mu.Unlock()
	as := make([]arch.Addr, len(addrs))
	for i, a := range addrs {
		as[i] = arch.Addr(a)
	}
	for i, f := range c.Lookup(as, jit.Always) {
		if f.Name == "" {
			continue
		}
		names[i] = profile.Name{Func: f.Name, Linkage: f.Name, Start: uint64(f.Start)}
		if f.File != "" {
			names[i].Source = []profile.Source{{File: f.File, Line: f.Line}}
		}
	}
}

// User implements profile.Namer.
func (n *namer) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	if n.wakers.name(m, offs, names) {
		return
	}
	if m.PID != 0 {
		n.made(m.PID, offs, names)
		n.collect(madeBy(m.PID), false, offs, names)
		n.inRecording(m, offs, names)
		return
	}
	t := n.table(m)
	addrs := make([]arch.Vaddr, len(offs))
	gone := false
	for i, off := range offs {
		var ok bool
		if addrs[i], ok = t.OffToVaddr(off); !ok {
			addrs[i] = ^arch.Vaddr(0)
			gone = true
		}
	}
	for i, s := range t.Resolve(addrs) {
		if s.Name != "" {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: offs[i] - uint64(addrs[i]-s.Start)}
		}
	}
	if n.source {
		for i, places := range t.Places(addrs) {
			names[i].Source = sourceOf(places)
			if k := len(places); names[i].Func == "" && k > 0 {
				names[i].Func, names[i].Linkage = places[k-1].Name, places[k-1].Linkage
			}
		}
	}
	n.inRecording(m, offs, names)
	if gone {
		n.recall(m, offs, names)
	} else {
		n.collect(m, t.Private(), offs, names)
	}
	// The rest is nameless whatever becomes of the file.
	_ = module.Guard(func() error {
		for i := range names {
			if names[i].Func != "" {
				continue
			}
			if f := n.framesOf(m); f != nil {
				if start, _, ok := f.Bounds(addrs[i]); ok {
					names[i].Start = offs[i] - uint64(addrs[i]-start)
				}
			}
		}
		return nil
	})
}

func sourceOf(places []symbol.Place) []profile.Source {
	if len(places) == 0 {
		return nil
	}
	out := make([]profile.Source, len(places))
	for i := range places {
		p := &places[i]
		out[i] = profile.Source{Func: p.Name, Linkage: p.Linkage, File: p.File, Line: p.Line, Column: p.Column}
	}
	return out
}

// Kernel implements profile.Namer.
func (n *namer) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		if s, mod, ok := n.symbols.Kernel(a); ok {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: uint64(s.Start), Module: mod}
		}
	}
	n.collect(madeBy(-1), false, addrs, names)
	n.inRecording(madeBy(-1), addrs, names)
}
