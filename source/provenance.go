package source

import (
	"encoding/binary"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// Files that this project writes hold walked stacks as plain callchains. How each frame was found and why the
// stack ended follow in the PERF_SAMPLE_RAW field of the same sample, behind whatever the field held before. Other
// tools ignore it, because they look at that field for tracepoints only, and there by offset from its start. Its
// end is
//
//	runs, u8 Stop, u8 StackSource, u16 size of the runs in bytes, u32 magic
//
// A run is a byte, unwind.How with 0x80 where the frame's address is exact, and how many frames in a row are so,
// as an unsigned varint; runs go from the innermost frame out. The field's size is 4 more than a multiple of 8, as
// the kernel keeps it; zero bytes between what it held before and the runs see to that.

const (
	provenanceMagic = 0x70736e75 // "unsp"
	provenanceTail  = 8
	exactBit        = 0x80
)

// appendProvenance appends how the first n of s's user frames were found to the field whose size is at b[field:].
func appendProvenance(b []byte, field int, s *Sample, n int) []byte {
	start := len(b)
	user, stop := s.User[:n], s.Stop
	if n < len(s.User) {
		stop = unwind.DepthLimit
	}
	for i := 0; i < len(user); {
		n := 1
		for i+n < len(user) && user[i+n].How == user[i].How && user[i+n].Exact == user[i].Exact {
			n++
		}
		how := byte(user[i].How)
		if user[i].Exact {
			how |= exactBit
		}
		b = binary.AppendUvarint(append(b, how), uint64(n))
		i += n
	}
	runs := len(b) - start
	b = append(b, byte(stop), byte(s.From))
	b = binary.LittleEndian.AppendUint16(b, uint16(runs))
	b = binary.LittleEndian.AppendUint32(b, provenanceMagic)
	var zeros [8]byte
	return slices.Insert(b, start, zeros[:-(len(b)-field)&7]...)
}

// A provenance is what appendProvenance wrote.
type provenance struct {
	runs []byte
	stop unwind.Stop
	from StackSource
}

// parseProvenance splits a PERF_SAMPLE_RAW field.
func parseProvenance(raw []byte) (p provenance, rest []byte, ok bool) {
	n := len(raw) - provenanceTail
	if n < 0 || binary.LittleEndian.Uint32(raw[n+4:]) != provenanceMagic {
		return p, raw, false
	}
	runs := int(binary.LittleEndian.Uint16(raw[n+2:]))
	stop, from := unwind.Stop(raw[n]), StackSource(raw[n+1])
	if runs > n || stop >= unwind.NumStops || from >= numSources {
		return p, raw, false
	}
	// What the field held before had 4 bytes more than a multiple of 8, and more than 8, which tracepoints have in
	// common; the rest is padding.
	size := max((n-runs-4)&^7+4, 0)
	if rest = raw[:size:size]; size <= 8 {
		rest = nil
	}
	return provenance{raw[n-runs : n], stop, from}, rest, true
}

// appendFrames appends the frames whose Frame.Addr user holds. Frames that p says nothing of are return addresses.
func (p *provenance) appendFrames(frames []unwind.Frame, user []uint64, space *unwind.Space) []unwind.Frame {
	runs, left := p.runs, uint64(0)
	how := byte(unwind.HowFramePointer)
	var m *unwind.Mapping // of the frame before: most callers are in the same
	for _, v := range user {
		for left == 0 && len(runs) > 0 {
			n, k := binary.Uvarint(runs[1:])
			if k <= 0 {
				runs = nil
				break
			}
			how, left, runs = runs[0], n, runs[1+k:]
		}
		if left == 0 {
			how, left = byte(unwind.HowFramePointer), 1
		}
		left--
		if a := arch.Addr(v); m == nil || a < m.Lo || a >= m.Hi {
			m = space.Find(a)
		}
		f := unwind.Frame{PC: arch.Addr(v), Exact: how&exactBit != 0, How: unwind.How(how &^ exactBit), Mapping: m}
		if !f.Exact {
			f.PC++
		}
		frames = append(frames, f)
	}
	return frames
}
