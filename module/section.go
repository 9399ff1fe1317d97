package module

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// Section returns the first section of that name, or nil. A ".debug_" section that is there only in the
// old compressed form, ".zdebug_", is found too.
func (img *Image) Section(name string) *Section {
	var old *Section
	for i := range img.secs {
		s := &img.secs[i]
		if s.Name == name {
			return s
		}
		if old == nil && strings.HasPrefix(s.Name, ".zdebug_") && s.Name[2:] == name[min(1, len(name)):] {
			old = s
		}
	}
	return old
}

// maxInflated bounds what a compressed section may grow to, in bytes, and maxRatio by what factor:
// deflate cannot do more than 1,032.
const (
	maxInflated = 4 << 30
	maxRatio    = 1100
)

// Data returns the contents of s, decompressed where they are compressed, and nil for one that occupies
// no bytes in the file. The result must not be changed.
func (img *Image) Data(s *Section) ([]byte, error) {
	if s.Type == elf.SHT_NOBITS {
		return nil, nil
	}
	b, ok := img.bytes(s.Off, s.Size)
	if !ok {
		return nil, img.errorf(s.Off, ErrTruncated, "section %d %s of %#x bytes", s.index, s.Name, s.Size)
	}
	old := strings.HasPrefix(s.Name, ".zdebug_") && len(b) >= 12 && string(b[:4]) == "ZLIB"
	if s.Flags&elf.SHF_COMPRESSED == 0 && !old {
		return b, nil
	}
	img.mu.Lock()
	defer img.mu.Unlock()
	if got, ok := img.inflate[s.index]; ok {
		return got.b, got.err
	}
	out, err := img.decompress(s, b, old)
	img.inflate[s.index] = inflated{out, err}
	return out, err
}

// decompress expands a compressed section (System V ABI, chapter 4, "Section Compression"). The size
// that its header promises is believed only as bytes come.
func (img *Image) decompress(s *Section, b []byte, old bool) ([]byte, error) {
	kind, size := elf.COMPRESS_ZLIB, uint64(0)
	if old {
		size, b = binary.BigEndian.Uint64(b[4:]), b[12:]
	} else {
		n := 12
		if img.is64 {
			n = 24
		}
		if len(b) < n {
			return nil, img.errorf(s.Off, ErrTruncated, "section %d %s: compression header", s.index, s.Name)
		}
		f := img.fields(b)
		kind = elf.CompressionType(f.u32())
		if img.is64 {
			f.u32()
		}
		size, b = f.word(), b[n:]
	}
	if size > maxInflated || kind == elf.COMPRESS_ZLIB && size/maxRatio > uint64(len(b)) {
		return nil, img.errorf(s.Off, ErrMalformed, "section %d %s: %d bytes cannot expand to %d", s.index, s.Name, len(b), size)
	}
	var r io.Reader
	switch kind {
	case elf.COMPRESS_ZLIB:
		z, err := zlib.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, img.errorf(s.Off, ErrMalformed, "section %d %s: %v", s.index, s.Name, err)
		}
		r = z
	case elf.COMPRESS_ZSTD:
		z, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxInflated))
		if err != nil {
			return nil, img.errorf(s.Off, ErrMalformed, "section %d %s: %v", s.index, s.Name, err)
		}
		defer z.Close()
		r = z
	default:
		return nil, img.errorf(s.Off, ErrUnsupported, "section %d %s: compression %d", s.index, s.Name, kind)
	}
	var out bytes.Buffer
	out.Grow(int(min(size, uint64(16*len(b))+4096)))
	n, err := io.Copy(&out, io.LimitReader(r, int64(size)))
	if err != nil || uint64(n) != size {
		return nil, img.errorf(s.Off, ErrMalformed, "section %d %s: decompressed %d of %d bytes: %v", s.index, s.Name, n, size, err)
	}
	return out.Bytes(), nil
}
