package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Common returns a section's name as ELF spells it, whatever the format: ".eh_frame" for "__TEXT,__eh_frame". Mach-O cuts names to 16 characters.
func (s *Section) Common() string {
	if i := strings.IndexByte(s.Name, ','); i >= 0 && strings.HasPrefix(s.Name[i+1:], "__") {
		return "." + s.Name[i+3:]
	}
	return s.Name
}

// Section returns the first section with this name, or nil; of a Mach-O file, also by its name in ELF. For a ".debug_" section, it also finds the
// old compressed form, ".zdebug_".
func (img *Image) Section(name string) *Section {
	var old *Section
	for i := range img.secs {
		s := &img.secs[i]
		if s.Name == name {
			return s
		}
		own := s.Name
		if img.format == &machoFormat {
			if own = s.Common(); own == name[:min(len(name), maxMachoName)] {
				return s
			}
		}
		if old == nil && strings.HasPrefix(own, ".zdebug_") && strings.HasPrefix(name, ".debug_") && own[2:] == name[1:] {
			old = s
		}
	}
	return old
}

// maxMachoName is how long a Mach-O section's name is in ELF's spelling: "__" counts as ".".
const maxMachoName = 15

// A compressed section may expand to maxRatio times its size and maxGrowth bytes more, and those of an image, all together, to as many times
// what the file has outside of holes. All images of this process together get maxInflated bytes. Debug information shrinks to a fifth.
const (
	maxRatio    = 100
	maxGrowth   = 4 << 20
	maxInflated = 4 << 30
)

// inflating is how many bytes the expanded sections of all images have.
var inflating atomic.Int64

// mostInflated is how many they may have.
var mostInflated atomic.Int64

func init() { mostInflated.Store(maxInflated) }

// LimitInflated bounds the expanded sections of all images that are open, in bytes. What would be more is ErrUnsupported: names may lack lines and inlined calls.
func LimitInflated(bytes int64) { mostInflated.Store(min(bytes, maxInflated)) }

// Data returns the contents of s, decompressed; nil for a section without bytes in the file. In a file that is not linked, it is Relocate's; if
// a relocation could not be applied, that is the error. The caller must not change the result.
func (img *Image) Data(s *Section) ([]byte, error) {
	b, bad, err := img.Relocate(s)
	if err == nil && len(bad) > 0 {
		err = fmt.Errorf("%s: %w", img.name, &bad[0])
	}
	return b, err
}

// contents is Data without relocations.
func (img *Image) contents(s *Section) ([]byte, error) {
	if s.Empty {
		return nil, nil
	}
	b, ok := img.bytes(s.Off, s.Size)
	if !ok {
		return nil, img.errorf(s.Off, ErrTruncated, "section %d %s of %#x bytes", s.index, s.Name, s.Size)
	}
	old := strings.HasPrefix(s.Common(), ".zdebug_") && len(b) >= 12 && string(b[:4]) == "ZLIB"
	if !s.Compressed && !old {
		return b, nil
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	if got, ok := img.inflate[s.index]; ok {
		return got.b, got.err
	}
	out, err := img.decompress(s, b, old) // it has the lock: room
	img.inflate[s.index] = inflated{b: out, err: err}
	return out, err
}

// decompress expands a compressed section (System V ABI, chapter 4, "Section Compression").
func (img *Image) decompress(s *Section, b []byte, old bool) ([]byte, error) {
	bad := func(cause error, format string, args ...any) ([]byte, error) {
		return nil, img.errorf(s.Off, cause, "section %d %s: %s", s.index, s.Name, fmt.Sprintf(format, args...))
	}
	kind, size := elf.COMPRESS_ZLIB, uint64(0)
	if old {
		size, b = binary.BigEndian.Uint64(b[4:]), b[12:]
	} else {
		n := 12
		if img.is64 {
			n = 24
		}
		if len(b) < n {
			return bad(ErrTruncated, "compression header")
		}
		f := img.fields(b)
		kind = elf.CompressionType(f.u32())
		if img.is64 {
			f.u32()
		}
		size, b = f.word(), b[n:]
	}
	if size > img.room || size > maxGrowth+maxRatio*uint64(len(b)) {
		return bad(ErrUnsupported, "%d bytes would expand to %d", len(b), size)
	}
	img.room -= size
	var r io.Reader
	switch kind {
	case elf.COMPRESS_ZLIB:
		z, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return bad(ErrMalformed, "%v", err)
		}
		r = z
	case elf.COMPRESS_ZSTD:
		// The window is memory too: 8 MB is what every decoder should allow (RFC 8878, section 3.1.1.1.2).
		z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(max(8<<20, size)))
		if err != nil {
			return bad(ErrMalformed, "%v", err)
		}
		defer z.Close()
		r = z
	default:
		return bad(ErrUnsupported, "compression %d", kind)
	}
	if inflating.Add(int64(size)) > mostInflated.Load() {
		inflating.Add(-int64(size))
		return bad(ErrUnsupported, "%d bytes more would be too many", size)
	}
	kept := false
	defer func() {
		if !kept {
			inflating.Add(-int64(size))
		}
	}()
	out := make([]byte, size)
	if n, err := io.ReadFull(r, out); err != nil {
		return bad(ErrMalformed, "decompressed %d of %d bytes: %v", n, size, err)
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n != 0 || err != io.EOF { // and the checksum is right
		return bad(ErrMalformed, "after %d bytes: %v", size, err)
	}
	kept = img.file != nil // until Close
	img.inflated.Add(int64(size))
	return out, nil
}
