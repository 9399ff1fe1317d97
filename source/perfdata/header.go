package perfdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/unspool/unspool/source"
)

const (
	magic          = "PERFILE2"
	fileHeaderSize = 104
	pipeHeaderSize = 16
	idsSize        = 16 // where an event's IDs are, behind its attr
	numFeatures    = 256
)

// A section is where something is in a file.
type section struct{ off, size uint64 }

// A header is the head of a file that is not a stream (struct perf_file_header).
type header struct {
	attrSize    uint64 // of an attr and idsSize
	attrs, data section
	features    [numFeatures / 64]uint64 // which of them follow the data
}

// Files that a compressor wrote, by their first bytes.
var compressed = []struct{ magic, by, undo string }{
	{"\x1f\x8b", "gzip", "gunzip"},
	{"\x28\xb5\x2f\xfd", "zstd", "unzstd"},
	{"\xfd7zXZ\x00", "xz", "unxz"},
	{"BZh", "bzip2", "bunzip2"},
	{"\x04\x22\x4d\x18", "lz4", "unlz4"},
}

// checkMagic returns the size of the header that starts with b, and whether a big-endian machine has written it.
func checkMagic(b []byte) (n uint64, big bool, err error) {
	switch string(b[:8]) {
	case magic:
		n = binary.LittleEndian.Uint64(b[8:])
	case "2ELIFREP": // the same number
		n, big = binary.BigEndian.Uint64(b[8:]), true
	}
	switch {
	case n == pipeHeaderSize, n == fileHeaderSize:
		return n, big, nil
	case string(b[:8]) == magic || string(b[:8]) == "2ELIFREP":
		return 0, false, fmt.Errorf("%w: a header of %d bytes", source.ErrMalformed, n)
	}
	return 0, false, refused(b)
}

// refused is the error of a file that starts with b, which is no header.
func refused(b []byte) error {
	switch string(b[:8]) {
	case "PERFFILE", "ELIFFREP":
		return fmt.Errorf("%w: written by perf of Linux 2.6, before version 2 of its format", source.ErrUnsupported)
	}
	for _, c := range compressed {
		if bytes.HasPrefix(b, []byte(c.magic)) {
			return fmt.Errorf("%w: compressed by %s: %s it first", source.ErrUnsupported, c.by, c.undo)
		}
	}
	return &ForeignError{bytes.Clone(b[:8])}
}

// A ForeignError says that a file is not a recording. It wraps source.ErrMalformed, or for an empty file source.ErrTruncated.
type ForeignError struct {
	Start []byte // the first bytes of the file, 8 at most
}

func (e *ForeignError) Error() string {
	if len(e.Start) == 0 {
		return "not a recording: it is empty"
	}
	return fmt.Sprintf("not a recording: it starts with %q", e.Start)
}

// Unwrap implements errors.Unwrap.
func (e *ForeignError) Unwrap() error {
	if len(e.Start) == 0 {
		return source.ErrTruncated
	}
	return source.ErrMalformed
}

// tooShort is the error of a file that has only these bytes of a header.
func tooShort(b []byte) error {
	if b = b[:min(len(b), len(magic))]; len(b) == 0 || !strings.HasPrefix(magic, string(b)) {
		return &ForeignError{bytes.Clone(b)}
	}
	return fmt.Errorf("%w: the file ends in its header", source.ErrTruncated)
}

func parseHeader(b []byte) (h header) {
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	h.attrSize = u64(16)
	h.attrs, h.data = section{u64(24), u64(32)}, section{u64(40), u64(48)}
	for i := range h.features {
		h.features[i] = u64(72 + 8*i)
	}
	return h
}

// readSection reads a section. Its size is checked before memory is taken for it.
func readSection(r *io.SectionReader, s section, what string) ([]byte, error) {
	if s.off > uint64(r.Size()) || s.size > uint64(r.Size())-s.off {
		return nil, fmt.Errorf("%s at %#x, %d bytes: %w: the file ends at %#x", what, s.off, s.size, source.ErrTruncated, r.Size())
	}
	b := make([]byte, s.size)
	if _, err := r.ReadAt(b, int64(s.off)); err != nil {
		if errors.Is(err, io.EOF) {
			err = source.ErrTruncated // since it was opened
		}
		return nil, fmt.Errorf("%s at %#x: %w", what, s.off, err)
	}
	return b, nil
}

// openFile reads the header, the events and the features of a file, and makes its records the input.
func (f *File) openFile(r *io.SectionReader, in *os.File) error {
	if f.size == 0 {
		return tooShort(nil)
	}
	b, err := readSection(r, section{0, uint64(min(f.size, pipeHeaderSize))}, "the header")
	if err != nil {
		return err
	}
	if len(b) < pipeHeaderSize {
		return tooShort(b)
	}
	n, big, err := checkMagic(b)
	if err != nil {
		return err
	}
	f.setBig(big)
	if n == pipeHeaderSize {
		f.readFrom(in, pipeHeaderSize, f.size)
		return f.openPipe()
	}
	if b, err = readSection(r, section{0, fileHeaderSize}, "the header"); err != nil {
		return err
	}
	if big {
		source.SwapWords(b[8:])
	}
	h := parseHeader(b)
	if err := f.readAttrs(r, &h); err != nil {
		return err
	}
	lo, size := h.data.off, h.data.size
	if lo > uint64(f.size) {
		return fmt.Errorf("%w: its records start at %#x, and it ends at %#x", source.ErrTruncated, lo, f.size)
	}
	rest := uint64(f.size) - lo
	switch {
	case size == 0 && rest > 0:
		// perf fills in the size, and writes the features, when it is done.
		f.info.Unfinished = true
		size = rest
	case size > rest:
		f.short = int64(min(size-rest, 1<<62))
		size = rest
	default:
		f.readFeatures(r, &h)
	}
	f.readFrom(in, int64(lo), int64(lo+size))
	return nil
}

// readAttrs reads the events of a file.
func (f *File) readAttrs(r *io.SectionReader, h *header) error {
	if h.attrSize < source.AttrSizeVer0+idsSize || h.attrSize > 1<<12+idsSize {
		return fmt.Errorf("%w: attributes of %d bytes", source.ErrMalformed, h.attrSize)
	}
	if h.attrs.size == 0 {
		return fmt.Errorf("%w: no events", source.ErrMalformed)
	}
	b, err := readSection(r, h.attrs, "the attributes")
	if err != nil {
		return err
	}
	ids := uint64(f.size) // bytes: a bound on what all events together can say
	for n := int(h.attrSize); len(b) >= n; b = b[n:] {
		if f.big {
			source.SwapAttr(b[:n-idsSize])
			source.SwapWords(b[n-idsSize : n])
		}
		a, err := source.ParseAttr(b[: n-idsSize : n-idsSize])
		if err != nil {
			return err
		}
		s := section{binary.LittleEndian.Uint64(b[n-16:]), binary.LittleEndian.Uint64(b[n-8:])}
		if s.size > ids {
			return fmt.Errorf("%w: %d bytes of IDs", source.ErrMalformed, s.size)
		}
		ids -= s.size
		list, err := readSection(r, s, "the IDs of an event")
		if err != nil {
			return err
		}
		if f.big {
			source.SwapWords(list)
		}
		f.dec.AddAttr(&a, words(list), "")
	}
	return nil
}

func words(b []byte) []uint64 {
	w := source.Words(b)
	out := make([]uint64, w.Len())
	for i := range out {
		out[i] = w.At(i)
	}
	return out
}

// openPipe reads a stream up to its first record of the kernel, which events and features come in front of.
func (f *File) openPipe() error {
	f.info.Piped = true
	for {
		n, err := f.in.recordSize()
		if err == nil {
			err = f.in.need(n)
		}
		if err != nil {
			if errors.Is(err, io.EOF) && len(f.dec.Events()) == 0 {
				return fmt.Errorf("%w: no events", source.ErrTruncated)
			}
			return nil // Next returns it again
		}
		typ := f.in.order.Uint32(f.in.b)
		if typ < source.RecordUser || typ == source.RecordFinishedRound || typ == recordCompressed || typ == recordCompressed2 {
			return nil
		}
		if typ > recordBPFMetadata {
			return nil
		}
		if err := f.use(typ, f.taken(&f.in, n)); err != nil {
			return err
		}
	}
}

// addPipeAttr takes in an event of a stream: an attr as long as it says, and IDs.
func (f *File) addPipeAttr(b []byte) error {
	a, err := source.ParseAttr(b)
	if err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	if n == 0 {
		n = source.AttrSizeVer0
	}
	if n > len(b) {
		return fmt.Errorf("perf_event_attr: %w: %d bytes of %d", source.ErrTruncated, len(b), n)
	}
	if f.dec.AddAttr(&a, words(b[n:]), "") < 0 {
		return fmt.Errorf("%w: too many events", source.ErrMalformed)
	}
	return nil
}

// update takes in a record that says more of an event, of which its name matters.
func (f *File) update(b []byte) {
	const name = 2
	if len(b) < 16 || binary.LittleEndian.Uint64(b) != name {
		return
	}
	if i, ok := f.dec.EventByID(binary.LittleEndian.Uint64(b[8:])); ok {
		f.dec.SetName(i, cString(b[16:]))
	}
}
