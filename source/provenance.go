package source

import (
	"encoding/binary"

	"github.com/unspool/unspool/unwind"
)

// Files that this project writes hold walked stacks as plain callchains. How each frame was found and why the
// stack ended follow in the PERF_SAMPLE_RAW field of the same sample, behind whatever the field held before. Other
// tools ignore it, because they look at that field for tracepoints only, and there by offset from its start. Its
// tail, read backwards:
//
//	u32 magic, u16 size of the runs in bytes, u8 StackSource, u8 Stop, runs
//
// A run is a byte, unwind.How with 0x80 where the frame's address is exact, and how many frames in a row are so,
// as an unsigned varint; runs go from the innermost frame out.

const (
	provenanceMagic = 0x70736e75 // "unsp"
	provenanceTail  = 8
	exactBit        = 0x80
)

// appendProvenance appends how s's user frames were found.
func appendProvenance(b []byte, user []unwind.Frame, stop unwind.Stop, from StackSource) []byte {
	start := len(b)
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
	n := uint16(len(b) - start)
	b = append(b, byte(stop), byte(from))
	b = binary.LittleEndian.AppendUint16(b, n)
	return binary.LittleEndian.AppendUint32(b, provenanceMagic)
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
	return provenance{raw[n-runs : n], stop, from}, raw[: n-runs : n-runs], true
}

// restore sets How, Exact and with them PC of frames whose PC is the address as written. Frames without a run
// are left alone.
func (p *provenance) restore(user []unwind.Frame) {
	for runs := p.runs; len(runs) > 0 && len(user) > 0; {
		how := runs[0]
		n, k := binary.Uvarint(runs[1:])
		if k <= 0 {
			return
		}
		runs = runs[1+k:]
		for ; n > 0 && len(user) > 0; n-- {
			f := &user[0]
			f.How, f.Exact = unwind.How(how&^exactBit), how&exactBit != 0
			user = user[1:]
		}
	}
}
