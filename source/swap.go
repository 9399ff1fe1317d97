package source

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// Swap turns a record of the kernel from a big-endian machine into the same record of a little-endian one, in place. Bytes that are no numbers stay:
// names, raw data, copies of stacks. So do the fields of bits of a branch and of DataSrc, which have another order there. A Decoder refuses what is
// damaged, before and after.
func (d *Decoder) Swap(raw []byte) {
	SwapHeader(raw)
	b := raw[headerSize:]
	SwapWords(b) // what is no number of 8 bytes is put right below
	l, _ := d.layout(raw)
	if l == nil {
		return
	}
	s := swapper{b}
	if binary.LittleEndian.Uint32(raw) == RecordSample {
		s.sample(&l.attr)
		return
	}
	t := len(b) - l.trailer
	if t < 0 {
		return
	}
	for _, pair := range []int{l.tTID, l.tCPU} {
		if pair >= 0 {
			(&swapper{b[t+pair:]}).pair()
		}
	}
	s.b = b[:t]
	switch typ := binary.LittleEndian.Uint32(raw); typ {
	case RecordMmap, RecordMmap2:
		s.pair()
		s.skip(24)
		if typ == RecordMmap2 {
			if binary.LittleEndian.Uint16(raw[4:])&MiscMmapBuildID != 0 {
				s.bytes(24)
			} else {
				s.pair()
				s.skip(16)
			}
			s.pair()
		}
		s.bytes(uint64(len(s.b)))
	case RecordComm:
		s.pair()
		s.bytes(uint64(len(s.b)))
	case RecordFork, RecordExit:
		s.pair()
		s.pair()
	case RecordItraceStart, RecordRead, RecordNamespaces, RecordSwitchCPUWide:
		s.pair()
	case RecordKsymbol:
		s.skip(8)
		if len(s.b) >= 8 { // a number of 4 bytes, two of 2 bytes
			v := bits.ReverseBytes64(binary.LittleEndian.Uint64(s.b))
			binary.LittleEndian.PutUint32(s.b, bits.ReverseBytes32(uint32(v)))
			binary.LittleEndian.PutUint16(s.b[4:], bits.ReverseBytes16(uint16(v>>32)))
			binary.LittleEndian.PutUint16(s.b[6:], bits.ReverseBytes16(uint16(v>>48)))
		}
		s.skip(8)
		s.bytes(uint64(len(s.b)))
	}
}

// SwapHeader swaps a record's type, misc and size.
func SwapHeader(raw []byte) {
	slices.Reverse(raw[:4])
	slices.Reverse(raw[4:6])
	slices.Reverse(raw[6:8])
}

// SwapWords swaps all whole words of 8 bytes.
func SwapWords(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, bits.ReverseBytes64(binary.LittleEndian.Uint64(b)))
	}
}

// SwapAttr turns a perf_event_attr of a big-endian machine into one of a little-endian machine, in place. It returns how many bytes the attr has,
// or says it has: no more than there are.
func SwapAttr(b []byte) int {
	if len(b) < AttrSizeVer0 {
		return len(b)
	}
	n := int(binary.BigEndian.Uint32(b[4:]))
	if n == 0 {
		n = AttrSizeVer0
	}
	n = min(n, len(b))
	if n < AttrSizeVer0 { // which ParseAttr refuses
		slices.Reverse(b[4:8])
		return n
	}
	u32 := func(offs ...int) {
		for _, off := range offs {
			if off+4 <= n {
				slices.Reverse(b[off : off+4])
			}
		}
	}
	SwapWords(b[8:40])
	for i := 40; i < 48; i++ { // bits, which begin with the highest of each byte
		b[i] = bits.Reverse8(b[i])
	}
	SwapWords(b[56:min(88, n)])
	SwapWords(b[min(96, n):min(104, n)])
	SwapWords(b[min(120, n):n])
	u32(0, 4, 48, 52, 88, 92, 104, 112, 116)
	if n >= 110 {
		slices.Reverse(b[108:110])
	}
	return n
}

// A swapper goes over a body whose words have been swapped.
type swapper struct{ b []byte }

func (s *swapper) skip(n uint64) { s.b = s.b[min(n, uint64(len(s.b))):] }

// u64 takes a number.
func (s *swapper) u64() (v uint64) {
	if len(s.b) >= 8 {
		v = binary.LittleEndian.Uint64(s.b)
	}
	s.skip(8)
	return v
}

// pair takes two numbers of 4 bytes, which have changed places.
func (s *swapper) pair() {
	if len(s.b) >= 8 {
		binary.LittleEndian.PutUint64(s.b, bits.RotateLeft64(binary.LittleEndian.Uint64(s.b), 32))
	}
	s.skip(8)
}

// bytes takes n bytes that are no numbers, and whose words end with the body's.
func (s *swapper) bytes(n uint64) {
	n = min(n, uint64(len(s.b)))
	SwapWords(s.b[:n])
	s.b = s.b[n:]
}

// sample puts right what decodeSample does not read as words.
func (s *swapper) sample(a *Attr) {
	t := a.SampleType
	words := func(bit uint64) {
		if t&bit != 0 {
			s.skip(8)
		}
	}
	pair := func(bit uint64) {
		if t&bit != 0 {
			s.pair()
		}
	}
	words(SampleIdentifier)
	words(SampleIP)
	pair(SampleTID)
	words(SampleTime)
	words(SampleAddr)
	words(SampleID)
	words(SampleStreamID)
	pair(SampleCPU)
	words(SamplePeriod)
	if t&SampleRead != 0 {
		f := fields{b: s.b}
		f.read(a.ReadFormat)
		s.b = f.b
	}
	if t&SampleCallchain != 0 {
		s.skip(8 * min(s.u64(), 1<<16))
	}
	if t&SampleRaw != 0 && len(s.b) >= 8 {
		SwapWords(s.b[:8]) // as it was: the length, and bytes
		slices.Reverse(s.b[:4])
		n := min(4+uint64(binary.LittleEndian.Uint32(s.b)), uint64(len(s.b)))
		SwapWords(s.b[8:max(8, n)])
		s.skip(n)
	}
	if t&SampleBranchStack != 0 {
		n := min(s.u64(), 1<<16)
		if a.BranchSampleType&BranchHWIndex != 0 {
			s.skip(8)
		}
		s.skip(24 * n)
		if a.BranchSampleType&BranchCounters != 0 {
			s.skip(8 * n)
		}
	}
	if t&SampleRegsUser != 0 && s.u64() != ABINone {
		s.skip(8 * uint64(bits.OnesCount64(a.SampleRegsUser)))
	}
	if t&SampleStackUser != 0 {
		if n := s.u64(); n != 0 {
			s.bytes(n)
			s.skip(8)
		}
	}
	for _, bit := range []uint64{SampleWeight | SampleWeightStruct, SampleDataSrc, SampleTransaction} {
		words(bit)
	}
	if t&SampleRegsIntr != 0 && s.u64() != ABINone {
		s.skip(8 * uint64(bits.OnesCount64(a.SampleRegsIntr)))
	}
	for _, bit := range []uint64{SamplePhysAddr, SampleCgroup, SampleDataPageSize, SampleCodePageSize} {
		words(bit)
	}
	if t&SampleAux != 0 {
		s.bytes(s.u64())
	}
}
