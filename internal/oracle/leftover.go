package oracle

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Leftover says whether a perf.data file, little-endian, has KSYMBOL or BPF_EVENT records with more behind them than their sample_id. Beside another
// recorder Linux leaves there what the ring held before (perf_event_ksymbol_output in kernel/events/core.c), and perf takes that for the record's
// time and processor: it is no judge of such a file.
func Leftover(b []byte) bool {
	const attrs, data, sampleType = 24, 40, 24 // sections of struct perf_file_header, and a field of perf_event_attr
	le := binary.LittleEndian
	if len(b) < data+16 {
		return false
	}
	at := le.Uint64(b[attrs:])
	if at > uint64(len(b)) || uint64(len(b))-at < sampleType+8 {
		return false
	}
	const inID = 1<<1 | 1<<2 | 1<<6 | 1<<7 | 1<<9 | 1<<16 // TID, TIME, ID, CPU, STREAM_ID, IDENTIFIER: 8 bytes each
	id := 8 * bits.OnesCount64(le.Uint64(b[at+sampleType:])&inID)
	from, size := le.Uint64(b[data:]), le.Uint64(b[data+8:])
	if from > uint64(len(b)) {
		return false
	}
	for b = b[from:][:min(size, uint64(len(b))-from)]; len(b) >= 8; {
		n := int(le.Uint16(b[6:]))
		if n < 8 || n > len(b) {
			return false
		}
		r := b[:n]
		b = b[n:]
		const fixed = 8 + 16
		switch le.Uint32(r) {
		case 17: // PERF_RECORD_KSYMBOL
			if n > fixed {
				if name := bytes.IndexByte(r[fixed:], 0); name >= 0 && n > fixed+name&^7+8+id {
					return true
				}
			}
		case 18: // PERF_RECORD_BPF_EVENT
			if n > fixed+id {
				return true
			}
		}
	}
	return false
}
