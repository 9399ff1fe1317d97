package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/format/pclntab"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Frames are the unwind information of an image, in all formats.
type Frames struct {
	*dwarf.Frames
	golang *pclntab.Table // of a Go program without .debug_frame, which says the same
}

// OpenFrames returns the unwind information of an image, which must stay open as long as it is used. With an error comes what
// could be read.
func OpenFrames(img *module.Image) (*Frames, error) {
	d, err := dwarf.Open(img)
	f := &Frames{Frames: d}
	if d.Sizes().DebugFrame == 0 {
		f.golang = pclntab.Open(img)
	}
	return f, err
}

// Build makes the table of all functions. With dwarf.Both that is .eh_frame's, in its gaps .debug_frame's, and in a Go program that has none
// pclntab's.
func (f *Frames) Build(which dwarf.Which) (*rows.Table, []dwarf.Damage) {
	t, damage := f.Frames.Build(which)
	if which == dwarf.Both && f.golang != nil {
		t = t.Overlay(f.golang.Rows())
	}
	return t, damage
}

// empty says that there is nothing to make a table of.
func (f *Frames) empty() bool {
	z := f.Sizes()
	return f.golang == nil && z.EHFrame+z.DebugFrame == 0
}

// key is a hash of all that a table is made of.
func (f *Frames) key() string {
	h := sha256.New()
	f.Sum(h)
	if f.golang != nil {
		f.golang.Sum(h)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// read returns all rows; an error says what is damaged.
func (f *Frames) read() (*rows.Table, error) {
	ref, damage := f.Build(dwarf.Both)
	if len(damage) > 0 {
		return ref, fmt.Errorf("%d damaged entries; the first: %w", len(damage), damage[0])
	}
	return ref, nil
}
