// Package tuitest makes profiles from a few lines of text, for tests of views and reports.
package tuitest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// A Scene makes samples of lines such as "3x 10/11 cc1 outermost: inner outer main": a count, a process and a thread, a command,
// a stop, and functions of a.out, innermost first; those that begin with k_ are the kernel's.
type Scene struct {
	names []string // a function is 0x100 bytes
	ids   map[string]int
	at    unwind.Mapping
}

const kernelBase = 0xffffffff81000000

// NewScene returns a scene without samples.
func NewScene() *Scene {
	return &Scene{ids: map[string]int{}, at: unwind.Mapping{Lo: 0x10000, Hi: 0x90000000, Module: unwind.NewModule("/bin/a.out", "", nil)}}
}

func (c *Scene) id(name string) uint64 {
	id, ok := c.ids[name]
	if !ok {
		id = len(c.names)
		c.ids[name] = id
		c.names = append(c.names, name)
	}
	return uint64(id) * 0x100
}

// User implements profile.Namer.
func (c *Scene) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	for i, off := range offs {
		names[i] = profile.Name{Func: c.names[off/0x100], Start: off &^ 0xff}
	}
}

// Kernel implements profile.Namer.
func (c *Scene) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		names[i] = profile.Name{Func: c.names[(a-kernelBase)/0x100], Start: a &^ 0xff}
	}
}

// Samples calls each with the samples of the lines.
func (c *Scene) Samples(t *testing.T, lines []string, each func(*profile.Sample) error) {
	t.Helper()
	for _, l := range lines {
		head, frames, _ := strings.Cut(l, ":")
		var n int
		var s profile.Sample
		var stop string
		if _, err := fmt.Sscanf(head, "%dx %d/%d %s %s", &n, &s.PID, &s.TID, &s.Comm, &stop); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		for s.Stop.String() != stop {
			s.Stop++
		}
		s.HasUser, s.Period = s.Stop != unwind.NoUserStack, 2e6
		for _, f := range strings.Fields(frames) {
			if strings.HasPrefix(f, "k_") {
				s.Kernel = append(s.Kernel, kernelBase+c.id(f)+4)
				continue
			}
			s.User = append(s.User, unwind.Frame{PC: c.at.Lo + arch.Addr(c.id(f)) + 4, How: unwind.HowCFI, Mapping: &c.at})
		}
		for range n {
			if err := each(&s); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Profile aggregates the samples of the lines.
func (c *Scene) Profile(t *testing.T, lines ...string) *profile.Profile {
	b := profile.NewBuilder()
	c.Samples(t, lines, func(s *profile.Sample) error { b.Add(s); return nil })
	return b.Profile(c, profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}})
}
