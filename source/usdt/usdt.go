// Package usdt reads the probes that an ELF file says it has (user-space statically defined tracing): notes of SystemTap's version 3, in sections
// .note.stapsdt (https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation). A probe is an instruction that does nothing. Its note says where
// it is, and where its arguments are then.
//
// In goes an image; out come places in the file and arguments, which package ebpf gives to the kernel. Nothing is traced here.
package usdt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A Probe is a place of the code. A probe that was inlined has several places, each with arguments of its own.
type Probe struct {
	Provider, Name string
	Vaddr          arch.Vaddr // of the instruction, when the file is linked
	Off            uint64     // of the instruction, in the file
	Semaphore      uint64     // in the file: a number of 16 bits, of those who listen; 0: there is none
	Args           string     // for Arguments
}

const (
	section     = ".note.stapsdt"
	baseSection = ".stapsdt.base"
	owner       = "stapsdt\x00"
	version     = 3       // the notes' type
	maxProbes   = 1 << 16 // of a provider, in a file
	maxSearched = 1 << 28 // segments of the file that may be looked at for all probes together
)

// Read returns a provider's probes, or those of all for "", in the order of their notes. With an error come those that could be read: it says the section and the offset. A file
// without notes has no probes. At most 65,536 are read.
func Read(img *module.Image, provider string) (list []Probe, err error) {
	if !img.Is64() {
		return nil, nil
	}
	var shift arch.Vaddr // what was added to the file's addresses since it was linked
	base, moved := arch.Vaddr(0), img.Section(baseSection)
	if moved != nil {
		base = moved.Addr
	}
	var own []*module.Section
	sections := img.Sections()
	for i := range sections {
		if s := &sections[i]; s.Name == section && !s.Empty {
			own = append(own, s)
		}
	}
	// Sections that overlap would have the same probes, as often as the file likes.
	slices.SortStableFunc(own, func(a, b *module.Section) int { return cmp.Compare(a.Off, b.Off) })
	end, searched := uint64(0), 0
	for _, s := range own {
		if s.Off < end {
			err = first(err, fmt.Errorf("%s: two sections %s overlap at %#x", img.Name(), section, s.Off))
			continue
		}
		b, serr := img.Data(s)
		if serr != nil {
			err = first(err, serr)
			continue
		}
		end = s.Off + s.Size // in the file: it has been read
		bad := func(at int, format string, args ...any) {
			if err == nil {
				err = fmt.Errorf("%s: %s+%#x: %s", img.Name(), section, at, fmt.Sprintf(format, args...))
			}
		}
		notes(b, img.Order(), bad, func(at int, desc []byte) bool {
			n := img.Order().Uint64
			if len(desc) < 24 {
				bad(at, "%d bytes of a probe", len(desc))
				return true
			}
			text := bytes.SplitN(desc[24:], []byte{0}, 4)
			if len(text) < 4 {
				bad(at, "a probe's texts do not end")
				return true
			}
			if provider != "" && string(text[0]) != provider {
				return true
			}
			if len(list) == maxProbes {
				bad(at, "more than %d probes", maxProbes)
				return false
			}
			if searched += 2 * len(img.Segments()); searched > maxSearched {
				bad(at, "too many segments for so many probes")
				return false
			}
			if shift = 0; moved != nil && n(desc[8:]) != 0 {
				shift = base - arch.Vaddr(n(desc[8:]))
			}
			p := Probe{Provider: string(text[0]), Name: string(text[1]), Args: string(text[2]), Vaddr: arch.Vaddr(n(desc)) + shift}
			var ok bool
			if p.Off, ok = offset(img, p.Vaddr, 1); !ok || p.Off == 0 {
				bad(at, "probe %q of %q at %#x, which is in no segment of the file, or its header", clip(p.Name), clip(p.Provider), p.Vaddr)
				return true
			}
			if sem := arch.Vaddr(n(desc[16:])); sem != 0 {
				if p.Semaphore, ok = offset(img, sem+shift, 2); !ok || p.Semaphore == 0 {
					bad(at, "probe %q of %q: its semaphore at %#x is in no segment of the file", clip(p.Name), clip(p.Provider), sem+shift)
					return true
				}
			}
			list = append(list, p)
			return true
		})
	}
	return list, err
}

// notes calls each with the offset and the description of every note of a section that is a probe's, until it returns false.
func notes(b []byte, order binary.ByteOrder, bad func(at int, format string, args ...any), each func(at int, desc []byte) bool) {
	pad := func(n uint64) uint64 { return (n + 3) &^ 3 }
	for at := 0; len(b)-at >= 12; {
		name, desc := uint64(order.Uint32(b[at:])), uint64(order.Uint32(b[at+4:]))
		size := 12 + pad(name) + pad(desc)
		left := uint64(len(b) - at)
		if 12+pad(name)+desc > left {
			bad(at, "a note of %d bytes, of which %d are there", size, left)
			return
		}
		text := b[at+12:]
		if order.Uint32(b[at+8:]) == version && string(text[:name]) == owner && !each(at, text[pad(name):pad(name)+desc]) {
			return
		}
		at += int(min(size, left))
	}
}

// offset returns where n bytes are in the file; ok is false unless all are there.
func offset(img *module.Image, v arch.Vaddr, n uint64) (off uint64, ok bool) {
	off, ok = img.VaddrToOff(v)
	size := uint64(img.Size())
	return off, ok && off < size && n <= size-off
}

func first(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
