package source

import "encoding/binary"

// Append appends r as a whole record to b, as the kernel would write it for the given event of d, trailer
// included: MMAP, MMAP2, COMM, FORK, EXIT, LOST and FINISHED_ROUND. It is for recorders that report what was
// there before they started. A name that does not fit a record is cut.
func (d *Decoder) Append(b []byte, event int, r *Record) []byte {
	start := len(b)
	b = appendHeader(b, r.Type, r.Misc)
	b = appendBody(b, r)
	if t := *d.table.Load(); r.Type < RecordUser && event >= 0 && event < len(t) {
		b = appendTrailer(b, &t[event].attr, r)
	}
	return finishRecord(b, start)
}

// maxName bounds a file's name so that a record with it stays below 64 KiB; the kernel's bound is PATH_MAX.
const maxName = 4095

func appendHeader(b []byte, typ uint32, misc uint16) []byte {
	b = binary.LittleEndian.AppendUint32(b, typ)
	b = binary.LittleEndian.AppendUint16(b, misc)
	return append(b, 0, 0) // the size: finishRecord
}

// finishRecord writes the size of the record that starts at b[start].
func finishRecord(b []byte, start int) []byte {
	binary.LittleEndian.PutUint16(b[start+6:], uint16(len(b)-start))
	return b
}

func appendPair(b []byte, lo, hi int32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(lo))
	return binary.LittleEndian.AppendUint32(b, uint32(hi))
}

// appendName appends a zero-terminated string, padded to 8 bytes.
func appendName(b, name []byte) []byte {
	name = name[:min(len(name), maxName)]
	b = append(b, name...)
	return append(b, make([]byte, 8-len(name)%8)...)
}

func appendBody(b []byte, r *Record) []byte {
	u64 := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	switch r.Type {
	case RecordMmap, RecordMmap2:
		b = appendPair(b, r.PID, r.TID)
		u64(r.Addr, r.Len, r.Pgoff)
		if r.Type == RecordMmap2 {
			if r.Misc&MiscMmapBuildID != 0 {
				var id [24]byte
				id[0] = byte(copy(id[4:], r.BuildID))
				b = append(b, id[:]...)
			} else {
				b = appendPair(b, int32(r.Maj), int32(r.Min))
				u64(r.Inode, r.InodeGen)
			}
			b = appendPair(b, int32(r.Prot), int32(r.MapFlags))
		}
		b = appendName(b, r.Filename)
	case RecordComm:
		b = appendPair(b, r.PID, r.TID)
		b = appendName(b, r.Comm)
	case RecordFork, RecordExit:
		b = appendPair(b, r.PID, r.PPID)
		b = appendPair(b, r.TID, r.PTID)
		u64(r.Time)
	case RecordLost:
		u64(r.ID, r.Lost)
	}
	return b
}

// appendTrailer appends what a says that records other than samples end with.
func appendTrailer(b []byte, a *Attr, r *Record) []byte {
	if !a.Has(FlagSampleIDAll) {
		return b
	}
	u64 := func(bit, v uint64) {
		if a.SampleType&bit != 0 {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	u64(SampleTID, uint64(uint32(r.PID))|uint64(uint32(r.TID))<<32)
	u64(SampleTime, r.Time)
	u64(SampleID, r.ID)
	u64(SampleStreamID, r.StreamID)
	u64(SampleCPU, uint64(r.CPU))
	u64(SampleIdentifier, r.ID)
	return b
}

// AppendTrailer appends to b a trailer for r as event a's records have it: what the Writer of a file with other
// events than the stream's puts in place of the last r.Trailer bytes of r.Raw.
func (a *Attr) AppendTrailer(b []byte, r *Record) []byte { return appendTrailer(b, a, r) }
