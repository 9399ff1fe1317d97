// Package names decides how an address is named. A module and offsets in its file come in, or addresses of the kernel; functions, lines and
// inlined calls go out (profile.Namer). It tries these sources, in this order:
//
//   - symbols of the module's file, of its separate debug file (also from debuginfod), or of a Go program (package symbol);
//   - for code made by a process, the map or the dump that the process wrote (package symbol/jit);
//   - for code made by the kernel, the records of its coming and going, before all others;
//   - the names in the recording (Import);
//   - for a deleted file, the names kept when it was recorded (Collect, Save);
//   - for code without a name, the start of its function, from unwind information.
//
// Names found in a module's files are kept in the cache for the next report, as long as these files stay the same (answers.go).
//
// The package prints nothing: Notes, KernelNote and Hints return messages for readers of names.
package names

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/symbol/debuginfod"
	"github.com/unspool/unspool/unwind"
)

// Options say where names come from. The zero value is right for programs running on this machine, and keeps nothing.
type Options struct {
	// Mods loaded the named modules. Names come from its open files, and are kept in its cache. May be nil.
	Mods *modules.Set

	// KernelID, KernelRelease, Recorded and RecordedBy tell which kernel's addresses are named; see symbol.Options.
	KernelID      string
	KernelRelease string
	Recorded      bool
	RecordedBy    time.Time

	// Elsewhere says that processes ran on another machine: files of this one do not describe the code that they made.
	Elsewhere bool

	// Download returns the context of one download from the servers of DEBUGINFOD_URLS, and a function that releases it. After a context has
	// ended, nothing more is fetched. nil: nothing ends a download.
	Download func() (ctx context.Context, stop func())

	// Progress is called while a file is fetched, as debuginfod.Config says; may be nil. Calls may come at the same time.
	Progress func(what string, have, total int64, done bool)
}

// A Namer names locations. It is safe for concurrent use, once Lines and the images are set.
type Namer struct {
	// Lines asks for lines and inlined calls, too. Set it before the first use.
	Lines bool

	mods    *modules.Set
	symbols *symbol.Resolver
	cache   string             // directory; "": nothing is kept
	fetcher *debuginfod.Client // nil: nothing is fetched
	labels  labels
	made    *made
	code    kernelCode
	files   *module.Locator
	own     bool                             // files is this Namer's
	images  map[*unwind.Module]*module.Image // modules that are no file of this machine

	recorded bool // what is named comes from a recording

	mu     sync.Mutex
	frames map[*module.Image]*unwound
	opened map[*module.Image]bool // by Open

	kept     map[*unwind.Module]*keptModule // what was found, to be kept; nil: nothing is
	inside   map[string]*keptModule         // what the recording brought; set before the first use
	recalled map[*unwind.Module]*keptModule // what was kept of files that are gone; nil where there is none

	recent   recent
	answers  map[symbol.Identity]*answers
	answered int // bytes of the files of answers
	learned  int // places and sources of new answers

	learnedText int // bytes of their text
}

// New returns a Namer. It reads DEBUGINFOD_URLS and its companions (package symbol/debuginfod) from the environment.
func New(o Options) *Namer {
	n := &Namer{mods: o.Mods, labels: newLabels(), images: map[*unwind.Module]*module.Image{}, frames: map[*module.Image]*unwound{}, opened: map[*module.Image]bool{}, made: newMade(o.Elsewhere),
		recorded: o.Recorded, answers: map[symbol.Identity]*answers{}}
	opt := symbol.Options{Files: &module.Locator{}, KernelID: o.KernelID, KernelRelease: o.KernelRelease, Recorded: o.Recorded, RecordedBy: o.RecordedBy}
	if o.Mods != nil {
		n.cache = o.Mods.CacheDir()
		opt.CacheDir = n.cache
		opt.Files = o.Mods.Files
	}
	if c, ok := debuginfod.FromEnv(os.Getenv); ok {
		c.Progress = o.Progress
		n.fetcher = debuginfod.New(c)
		opt.Fetch = fetchUntilStopped(n.fetcher, o.Download)
	}
	n.symbols, n.files, n.own = symbol.New(opt), opt.Files, o.Mods == nil
	return n
}

// fetchUntilStopped returns what fetches files, until the context of one download ends.
func fetchUntilStopped(from *debuginfod.Client, download func() (context.Context, func())) func(buildID []byte, kind string) (string, error) {
	var stopped atomic.Bool
	return func(buildID []byte, kind string) (string, error) {
		if stopped.Load() {
			return "", context.Canceled
		}
		ctx, stop := context.Background(), func() {}
		if download != nil {
			ctx, stop = download()
		}
		defer stop()
		path, err := from.Fetch(ctx, buildID, kind)
		if ctx.Err() != nil {
			stopped.Store(true)
		}
		return path, err
	}
}

// Close unmaps the files with names, except those of Mods. Names given before stay valid. The Namer must not be used afterwards.
func (n *Namer) Close() error {
	n.mu.Lock()
	n.saveAnswers()
	clear(n.answers)
	n.mu.Unlock()
	err := n.symbols.Close()
	n.mu.Lock()
	for img, u := range n.frames {
		u.share.Remove()
		img.Release()
	}
	for img := range n.opened {
		img.Release()
	}
	clear(n.frames)
	clear(n.opened)
	n.mu.Unlock()
	if n.own {
		err = errors.Join(err, n.files.Close())
	}
	return err
}

// Notes says, sorted, what is wrong with the files and servers of names; nil if nothing is wrong.
func (n *Namer) Notes() (out []string) {
	if n.fetcher != nil {
		out = n.fetcher.Notes()
	}
	out = append(out, n.symbols.Notes()...)
	out = append(out, n.made.notes()...)
	out = append(out, n.code.notes()...)
	slices.Sort(out)
	return out
}

// KernelNote says why the kernel's functions have no names; "" if they have names, or if nobody asked for one.
func (n *Namer) KernelNote() string { return n.symbols.KernelNote() }

// OpenKernel opens the names of the running kernel's functions now: later, this process may no longer be allowed to.
func (n *Namer) OpenKernel() { n.symbols.OpenKernel() }

// Image returns the module of an image that is no file of this machine, such as a core file's vDSO. Options.Mods walk it and must be set. Its
// names come from the image, which must stay open.
func (n *Namer) Image(img *module.Image) *unwind.Module {
	m := n.mods.Image(img)
	n.images[m] = img
	return m
}

// table returns the symbols of a module.
func (n *Namer) table(m *unwind.Module) *symbol.Table {
	if img := n.images[m]; img != nil {
		return n.symbols.Image(img)
	}
	return n.symbols.Module(m.Path, m.BuildID)
}

// User implements profile.Namer.
func (n *Namer) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	if n.labels.name(m, offs, names) {
		return
	}
	if m.PID != 0 {
		n.made.name(m.PID, offs, names)
		n.collect(madeBy(m.PID), false, offs, names)
		n.inRecording(m, offs, names)
		return
	}
	t := n.table(m)
	// Kept answers, or those that are found now.
	if a := n.answersOf(m, t); a != nil {
		missing := a.fill(offs, names)
		want, got := pick(offs, missing), make([]profile.Name, len(missing))
		if len(missing) == 0 || n.find(m, t, want, got) {
			if len(missing) > 0 {
				n.remember(a, t, want, got)
			}
			for i, k := range missing {
				names[k] = got[i]
			}
			n.inRecording(m, offs, names)
			n.collect(m, t.Private(), offs, names)
			return
		}
		clear(names)
	}
	if !module.IsBuildID(m.BuildID) || n.keeps() {
		n.search(m, t, offs, names)
		return
	}
	missing := n.recent.fill(m, offs, names)
	want, got := pick(offs, missing), make([]profile.Name, len(missing))
	if len(missing) > 0 && n.search(m, t, want, got) {
		n.recent.learn(m, want, got)
	}
	for i, k := range missing {
		names[k] = got[i]
	}
}

// search names offsets by all that may have their names. It says no where the file that ran does not have all offsets.
func (n *Namer) search(m *unwind.Module, t *symbol.Table, offs []uint64, names []profile.Name) (has bool) {
	addrs, gone := n.look(m, t, offs, names)
	n.inRecording(m, offs, names)
	if gone {
		n.recall(m, offs, names)
	} else {
		n.collect(m, t.Private(), offs, names)
	}
	_ = n.starts(m, offs, addrs, names) // the rest is nameless whatever becomes of the file
	return !gone
}

// find names offsets by the module's files alone. It says no where these do not have all offsets, or are cut short.
func (n *Namer) find(m *unwind.Module, t *symbol.Table, offs []uint64, names []profile.Name) bool {
	addrs, gone := n.look(m, t, offs, names)
	return !gone && n.starts(m, offs, addrs, names) == nil
}

// pick returns the elements of s at these indices.
func pick(s []uint64, at []int) []uint64 {
	out := make([]uint64, len(at))
	for i, k := range at {
		out[i] = s[k]
	}
	return out
}

// look finds names in symbol tables and debug information. gone says that the file that ran does not have all offsets.
func (n *Namer) look(m *unwind.Module, t *symbol.Table, offs []uint64, names []profile.Name) (addrs []arch.Vaddr, gone bool) {
	addrs = make([]arch.Vaddr, len(offs))
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
	if t.Exported() {
		n.retract(m, offs, addrs, names)
	}
	if n.Lines {
		for i, places := range t.Places(addrs) {
			names[i].Source = sourceOf(places)
			if k := len(places); names[i].Func == "" && k > 0 {
				names[i].Func, names[i].Linkage = places[k-1].Name, places[k-1].Linkage
			}
		}
	}
	return addrs, gone
}

// retract takes names back of addresses that unwind information has in a function that begins behind the name's: what a DLL exports has no sizes, and
// between it are functions without names.
func (n *Namer) retract(m *unwind.Module, offs []uint64, addrs []arch.Vaddr, names []profile.Name) {
	_ = module.Guard(func() error {
		f, release := n.framesOf(m)
		defer release()
		for i := range names {
			if f == nil || names[i].Func == "" {
				continue
			}
			if lo, _, ok := f.Bounds(addrs[i]); ok && uint64(addrs[i]-lo) < offs[i]-names[i].Start {
				names[i] = profile.Name{}
			}
		}
		return nil
	})
}

// starts finds the starts of functions without names in unwind information.
func (n *Namer) starts(m *unwind.Module, offs []uint64, addrs []arch.Vaddr, names []profile.Name) error {
	return module.Guard(func() error {
		var f *format.Unwind
		looked := false
		for i := range names {
			if names[i].Func != "" {
				continue
			}
			if !looked {
				var release func()
				f, release = n.framesOf(m)
				defer release()
				looked = true
			}
			if f != nil {
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
func (n *Namer) Kernel(addrs []uint64, names []profile.Name) {
	n.code.name(addrs, names)
	for i, a := range addrs {
		if names[i].Func != "" {
			continue
		}
		if s, mod, ok := n.symbols.Kernel(a); ok {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: uint64(s.Start), Module: mod}
		}
	}
	n.collect(madeBy(-1), false, addrs, names)
	n.inRecording(madeBy(-1), addrs, names)
}
