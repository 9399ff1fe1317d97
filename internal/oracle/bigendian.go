package oracle

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// BigEndian turns a perf.data file or stream of one event into what perf writes on a big-endian machine. Of the features, it keeps those that are strings
// and the build IDs. perf reads the result as it reads the original, which is how it is judged.
func BigEndian(in []byte) (out []byte, err error) {
	defer func() { // the input is trusted, but not to be whole
		if e := recover(); e != nil {
			err = fmt.Errorf("the file is cut short: %v", e)
		}
	}()
	le, be := binary.LittleEndian, binary.BigEndian
	out = append([]byte("2ELIFREP"), in[8:]...)
	words := func(lo, hi int) {
		for ; lo+8 <= hi; lo += 8 {
			be.PutUint64(out[lo:], le.Uint64(in[lo:]))
		}
	}
	var s swapped
	if le.Uint64(in[8:]) == 16 {
		words(8, 16)
		return out, s.records(in, out, 16, len(in))
	}
	words(8, 104)
	attrSize, attrs, attrsEnd := int(le.Uint64(in[16:])), int(le.Uint64(in[24:])), int(le.Uint64(in[24:])+le.Uint64(in[32:]))
	for at := attrs; at < attrsEnd; at += attrSize {
		s.attr(in[at:at+attrSize-16], out[at:])
		words(at+attrSize-16, at+attrSize)
		ids := int(le.Uint64(in[at+attrSize-16:]))
		words(ids, ids+int(le.Uint64(in[at+attrSize-8:])))
	}
	data, end := int(le.Uint64(in[40:])), int(le.Uint64(in[40:])+le.Uint64(in[48:]))
	if err := s.records(in, out, data, end); err != nil {
		return nil, err
	}
	// The features follow the records: a table, and what it says.
	table, keep := end, uint64(0)
	var kept [][]byte
	for f := range 64 {
		if le.Uint64(in[72:])>>f&1 == 0 {
			continue
		}
		at, size := le.Uint64(in[table:]), le.Uint64(in[table+8:])
		table += 16
		b := append([]byte(nil), in[at:at+size]...)
		switch f {
		case 3, 4, 5, 6: // host name, release, version, machine
			be.PutUint32(b, le.Uint32(b))
		case 2: // build IDs
			for at := 0; at < len(b); {
				n := int(le.Uint16(b[at+6:]))
				s.header(in[int(le.Uint64(in[table-16:]))+at:], b[at:])
				be.PutUint32(b[at+8:], le.Uint32(b[at+8:]))
				at += n
			}
		case 1: // tracepoints: it says itself which order it has
		default:
			continue
		}
		keep |= 1 << f
		kept = append(kept, b)
	}
	out = out[:end]
	be.PutUint64(out[72:], keep)
	clear(out[80:104])
	at := uint64(end + 16*len(kept))
	for _, b := range kept {
		out = be.AppendUint64(be.AppendUint64(out, at), uint64(len(b)))
		at += uint64(len(b))
	}
	for _, b := range kept {
		out = append(out, b...)
	}
	return out, nil
}

// swapped knows what of an event matters for the layout of records.
type swapped struct{ sampleType, readFormat, regsUser, regsIntr uint64 }

func (s *swapped) header(in, out []byte) {
	binary.BigEndian.PutUint32(out, binary.LittleEndian.Uint32(in))
	binary.BigEndian.PutUint16(out[4:], binary.LittleEndian.Uint16(in[4:]))
	binary.BigEndian.PutUint16(out[6:], binary.LittleEndian.Uint16(in[6:]))
}

// attr swaps a perf_event_attr (include/uapi/linux/perf_event.h).
func (s *swapped) attr(in, out []byte) {
	le, be := binary.LittleEndian, binary.BigEndian
	s.sampleType, s.readFormat, s.regsUser = le.Uint64(in[24:]), le.Uint64(in[32:]), le.Uint64(in[80:])
	if len(in) >= 104 {
		s.regsIntr = le.Uint64(in[96:])
	}
	for off := 0; off < len(in); {
		switch {
		case off == 40: // bits, from the highest of each byte on
			for i := range 8 {
				out[off+i] = bits.Reverse8(in[off+i])
			}
			off += 8
		case off == 0, off == 4, off == 48, off == 52, off == 88, off == 92, off == 104, off == 112, off == 116:
			be.PutUint32(out[off:], le.Uint32(in[off:]))
			off += 4
		case off == 108:
			be.PutUint16(out[off:], le.Uint16(in[off:]))
			off += 4
		default:
			be.PutUint64(out[off:], le.Uint64(in[off:]))
			off += 8
		}
	}
}

// records swaps the records between two offsets.
func (s *swapped) records(in, out []byte, at, end int) error {
	le, be := binary.LittleEndian, binary.BigEndian
	for at < end {
		n := int(le.Uint16(in[at+6:]))
		s.header(in[at:], out[at:])
		c := pairOf{in[at+8 : at+n], out[at+8 : at+n]}
		switch typ := le.Uint32(in[at:]); typ {
		case recSample:
			s.sample(&c)
		case recMmap, recMmap2:
			c.u32(2)
			c.u64(3)
			if typ == recMmap2 {
				if le.Uint16(in[at+4:])>>14&1 == 0 {
					c.u32(2)
					c.u64(2)
				} else {
					c.skip(24)
				}
				c.u32(2)
			}
			s.trailer(&c)
		case recComm:
			c.u32(2)
			s.trailer(&c)
		case recFork, 4: // EXIT
			c.u32(4)
			c.u64(1)
			s.trailer(&c)
		case 17: // KSYMBOL
			c.u64(1)
			c.u32(1)
			c.u16(2)
			s.trailer(&c)
		case 64: // an event of a stream
			size := int(le.Uint32(c.in[4:]))
			s.attr(c.in[:size], c.out)
			c.skip(size)
			c.u64(len(c.in) / 8)
		case 80: // a feature of a stream
			if f := le.Uint64(c.in); f >= 3 && f <= 6 {
				c.u64(1)
				c.u32(1)
				break
			}
			be.PutUint32(out[at:], 82)
			clear(c.out)
		case 2, 5, 6, 13, 69, 79: // LOST, THROTTLE, UNTHROTTLE, LOST_SAMPLES, ID_INDEX, TIME_CONV: numbers alone, with the trailer's pairs in those of the kernel
			if typ < 64 {
				c.u64(map[uint32]int{2: 2, 5: 3, 6: 3, 13: 1}[typ])
				s.trailer(&c)
			}
			c.u64(len(c.in) / 8)
		case 67: // BUILD_ID
			c.u32(1)
		case 68: // FINISHED_ROUND
		default: // what the stacks do not need becomes FINISHED_INIT, which all skip
			be.PutUint32(out[at:], 82)
			clear(c.out)
		}
		at += n
	}
	return nil
}

// trailer swaps what sample_id_all puts behind the records that are no samples, and leaves the bytes in front of it.
func (s *swapped) trailer(c *pairOf) {
	n := 0
	for _, bit := range []uint64{bitTID, bitTime, bitID, bitStreamID, bitCPU, bitIdentifier} {
		if s.sampleType&bit != 0 {
			n += 8
		}
	}
	c.skip(len(c.in) - n)
	for _, bit := range []uint64{bitTID, bitTime, bitID, bitStreamID, bitCPU, bitIdentifier} {
		switch {
		case s.sampleType&bit == 0:
		case bit == bitTID || bit == bitCPU:
			c.u32(2)
		default:
			c.u64(1)
		}
	}
}

// sample swaps a sample's fields, in their order (perf_event_open(2)).
func (s *swapped) sample(c *pairOf) {
	le := binary.LittleEndian
	for _, bit := range []uint64{bitIdentifier, bitIP, bitTID, bitTime, bitAddr, bitID, bitStreamID, bitCPU, bitPeriod, bitRead, bitCallchain, bitRaw, bitBranch, bitRegs, bitStack} {
		if s.sampleType&bit == 0 {
			continue
		}
		switch bit {
		case bitTID, bitCPU:
			c.u32(2)
		case bitRead:
			n, per := 1+bits.OnesCount64(s.readFormat&3), bits.OnesCount64(s.readFormat&(4|16))
			if s.readFormat&8 != 0 { // a group: so many values
				per = int(le.Uint64(c.in)) * (1 + per)
			}
			c.u64(n + per)
		case bitCallchain:
			c.u64(1 + int(le.Uint64(c.in)))
		case bitRaw:
			n := int(le.Uint32(c.in))
			c.u32(1)
			c.skip(n)
		case bitBranch:
			c.u64(1 + 3*int(le.Uint64(c.in)))
		case bitRegs:
			abi := le.Uint64(c.in)
			if c.u64(1); abi != 0 {
				c.u64(bits.OnesCount64(s.regsUser))
			}
		case bitStack:
			n := int(le.Uint64(c.in))
			if c.u64(1); n != 0 {
				c.skip(n)
				c.u64(1)
			}
		default:
			c.u64(1)
		}
	}
	c.u64(len(c.in) / 8)
}

// A pairOf is bytes, and where their copy is to be swapped.
type pairOf struct{ in, out []byte }

func (c *pairOf) skip(n int) { c.in, c.out = c.in[n:], c.out[n:] }

func (c *pairOf) u64(n int) {
	for range n {
		binary.BigEndian.PutUint64(c.out, binary.LittleEndian.Uint64(c.in))
		c.skip(8)
	}
}

func (c *pairOf) u32(n int) {
	for range n {
		binary.BigEndian.PutUint32(c.out, binary.LittleEndian.Uint32(c.in))
		c.skip(4)
	}
}

func (c *pairOf) u16(n int) {
	for range n {
		binary.BigEndian.PutUint16(c.out, binary.LittleEndian.Uint16(c.in))
		c.skip(2)
	}
}
