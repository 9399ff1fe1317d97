package module

import (
	"bytes"
	"compress/bzip2"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz/lzma"

	"github.com/unspool/unspool/internal/unxz"
)

// A kernel that boots is compressed inside of a small program. x86's is a bzImage (The Linux/x86 Boot Protocol, sections "The Real-Mode
// Kernel Header" and "Details of Header Fields"): the payload is vmlinux, an ELF file with its sections. Other machines' are EFI programs
// (zboot), whose payload is the memory of the kernel, without sections. Modules may be compressed as whole files.

// Fields of a bzImage.
const (
	bzSetupSects    = 0x1f1 // sectors of the real-mode code, behind the first
	bzBootFlag      = 0x1fe
	bzMagic         = 0x202
	bzVersion       = 0x206
	bzPayloadOffset = 0x248 // from the protected-mode code
	bzPayloadSize   = 0x24c
	bzEnd           = 0x250

	bzPayloadVersion = 0x208 // of the protocol, which has a payload
	bzSector         = 512
)

// Fields of a zboot program's header.
const (
	zbootMagic = 4
	zbootType  = 24 // how it is compressed, a string
	zbootEnd   = 64
)

func isBzImage(b []byte) bool {
	return len(b) >= bzEnd && string(b[bzBootFlag:][:2]) == "\x55\xaa" && string(b[bzMagic:][:4]) == "HdrS"
}

// unpack makes an image of a file that boots that of the kernel in it, and an image of a compressed module that of the module.
func (img *Image) unpack() error {
	b := img.b
	switch {
	case isBzImage(b):
		return img.unpackBzImage()
	case len(b) >= zbootEnd && string(b[:2]) == "MZ" && string(b[zbootMagic:][:4]) == "zimg":
		return img.errorf(zbootMagic, ErrUnsupported, "an EFI program (zboot, %q): the kernel in it has no sections", cstring(b[zbootType:zbootEnd]))
	}
	for suffix, expand := range moduleFormats {
		if strings.HasSuffix(img.name, suffix) && len(b) > 0 && formatOf(b) == nil {
			return img.unpackModule(expand)
		}
	}
	return nil
}

// moduleFormats are the formats of compressed modules, by the ends of their names.
var moduleFormats = map[string]func(in []byte, limit int) ([]byte, error){
	".ko.xz": unxz.Decode,
	".ko.gz": func(in []byte, limit int) ([]byte, error) {
		z, err := gzip.NewReader(bytes.NewReader(in))
		if err != nil {
			return nil, err
		}
		return readMost(z, limit)
	},
	".ko.zst": func(in []byte, limit int) ([]byte, error) {
		z, err := zstd.NewReader(bytes.NewReader(in), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return readMost(z, limit)
	},
}

// unpackModule makes an image of a compressed module that of the module.
func (img *Image) unpackModule(expand func(in []byte, limit int) ([]byte, error)) error {
	in, ok := img.bytes(0, uint64(len(img.b)))
	if !ok {
		return img.errorf(0, ErrUnsupported, "compressed module with holes")
	}
	limit := min(img.room, maxGrowth+maxRatio*uint64(len(in)))
	out, err := expand(in, int(limit))
	if err != nil {
		return img.errorf(0, fmt.Errorf("%w: %w", ErrMalformed, err), "compressed module")
	}
	if inflating.Add(int64(len(out))) > maxInflated {
		inflating.Add(-int64(len(out)))
		return img.errorf(0, ErrUnsupported, "compressed module: %d bytes more would be too many", len(out))
	}
	img.become(out)
	return nil
}

// become makes the image that of b, which counts as inflating until nobody has the image.
func (img *Image) become(b []byte) {
	size := uint64(len(b))
	runtime.AddCleanup(img, func(n int64) { inflating.Add(-n) }, int64(size))
	img.b, img.reach, img.unread, img.room = b, size, size, img.room-min(img.room, size)
	img.inflated.Add(int64(size))
}

// readMost reads at most limit bytes; more are an error.
func readMost(r io.Reader, limit int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(b) > limit {
		err = fmt.Errorf("it expands to more than %d bytes", limit)
	}
	return b, err
}

func (img *Image) unpackBzImage() error {
	le := binary.LittleEndian
	if v := le.Uint16(img.b[bzVersion:]); v < bzPayloadVersion {
		return img.errorf(bzVersion, ErrUnsupported, "bzImage of protocol %d.%02d", v>>8, v&0xff)
	}
	sectors := uint64(img.b[bzSetupSects])
	if sectors == 0 {
		sectors = 4 // as the protocol has it
	}
	off := (sectors+1)*bzSector + uint64(le.Uint32(img.b[bzPayloadOffset:]))
	size := uint64(le.Uint32(img.b[bzPayloadSize:]))
	in, ok := img.bytes(off, size)
	if !ok || size < 4 {
		return img.errorf(off, ErrTruncated, "kernel of %#x bytes", size)
	}
	// The last four bytes are the length of what comes out.
	grown := uint64(le.Uint32(in[len(in)-4:]))
	if grown > img.room || grown > maxGrowth+maxRatio*size {
		return img.errorf(off, ErrUnsupported, "kernel: %d bytes would expand to %d", size, grown)
	}
	if inflating.Add(int64(grown)) > maxInflated {
		inflating.Add(-int64(grown))
		return img.errorf(off, ErrUnsupported, "kernel: %d bytes more would be too many", grown)
	}
	kept := false
	defer func() { // also where reading a file that became shorter panics
		if !kept {
			inflating.Add(-int64(grown))
		}
	}()
	name, out, err := inflateKernel(in, int(grown))
	if err == nil && uint64(len(out)) != grown {
		err = fmt.Errorf("%w: %d of %d bytes", ErrMalformed, len(out), grown)
	}
	if err != nil {
		if !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMalformed) {
			err = fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		return img.errorf(off, err, "kernel, %s", name)
	}
	kept = true
	img.become(out)
	return nil
}

// kernelFormats are the formats of compressed kernels, by how they begin. All but gzip's are followed by the length of what comes out.
var kernelFormats = []struct {
	magic, name string
	expand      func(in []byte, size int) ([]byte, error)
}{
	{"\x1f\x8b", "gzip", func(in []byte, size int) ([]byte, error) {
		z, err := gzip.NewReader(bytes.NewReader(in))
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return readAll(z, size)
	}},
	{"BZh", "bzip2", func(in []byte, size int) ([]byte, error) {
		return readAll(bzip2.NewReader(bytes.NewReader(in[:len(in)-4])), size)
	}},
	{"]\x00\x00", "lzma", expandLZMA},
	{unxz.Magic, "xz", unxz.Decode},
	{"\x02\x21\x4c\x18", "lz4", func(in []byte, size int) ([]byte, error) { return expandLZ4(in[4:len(in)-4], size) }},
	{"\x28\xb5\x2f\xfd", "zstd", func(in []byte, size int) ([]byte, error) {
		// What comes out is the window, too: it is not allocated beside it.
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(1<<31), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return z.DecodeAll(in[:len(in)-4], make([]byte, 0, size))
	}},
	{"\x89LZO", "lzo", nil},
}

// inflateKernel expands a payload to at most size bytes.
func inflateKernel(in []byte, size int) (name string, out []byte, err error) {
	for _, f := range kernelFormats {
		switch {
		case !strings.HasPrefix(string(in[:min(len(in), 8)]), f.magic) || len(in) < len(f.magic)+4:
		case f.expand == nil:
			return f.name, nil, ErrUnsupported
		default:
			out, err := f.expand(in, size)
			return f.name, out, err
		}
	}
	if Known(in) {
		return "not compressed", in[:len(in)-4], nil
	}
	return fmt.Sprintf("compressed as % x", in[:4]), nil, ErrUnsupported
}

// readAll reads size bytes, and that nothing follows.
func readAll(r io.Reader, size int) ([]byte, error) {
	out := make([]byte, size)
	if n, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("after %d of %d bytes: %w", n, size, err)
	}
	switch n, err := io.ReadFull(r, make([]byte, 1)); {
	case n != 0:
		return nil, fmt.Errorf("%w: more than %d bytes", ErrMalformed, size)
	case err != io.EOF: // the checksum is wrong
		return nil, fmt.Errorf("after %d bytes: %w", size, err)
	}
	return out, nil
}

// expandLZMA expands a file of the format before xz: properties, the window's size, the length of what comes out, which may be
// unknown, and the stream. No match reaches back behind the beginning, so a window as long as the output is always large enough.
func expandLZMA(in []byte, size int) ([]byte, error) {
	if len(in) < lzma.HeaderLen+4 {
		return nil, ErrTruncated
	}
	h := bytes.Clone(in[:lzma.HeaderLen])
	window := max(size, lzma.MinDictCap)
	binary.LittleEndian.PutUint32(h[1:], min(binary.LittleEndian.Uint32(h[1:]), uint32(window)))
	z, err := lzma.ReaderConfig{DictCap: window}.NewReader(io.MultiReader(bytes.NewReader(h), bytes.NewReader(in[lzma.HeaderLen:len(in)-4])))
	if err != nil {
		return nil, err
	}
	return readAll(z, size)
}

// expandLZ4 expands blocks, each behind its length (LZ4 Frame Format Description, "Legacy frame").
func expandLZ4(in []byte, size int) ([]byte, error) {
	const most = 8 << 20 // that a block expands to
	out := make([]byte, 0, size)
	for len(in) >= 4 {
		n := uint64(binary.LittleEndian.Uint32(in))
		if in = in[4:]; n > uint64(len(in)) {
			return nil, ErrTruncated
		}
		var err error
		if out, err = lz4Block(out, in[:n], min(len(out)+most, size)); err != nil {
			return nil, err
		}
		in = in[n:]
	}
	return out, nil
}

// lz4Block appends what a block expands to, until out has limit bytes (LZ4 Block Format Description): sequences of a token, literals, and
// a match, of which the last has none. Matches do not reach back behind the block.
func lz4Block(out, in []byte, limit int) ([]byte, error) {
	begin := len(out)
	// length adds to a length of 15 the bytes that follow, up to the first that is not 255.
	length := func(n int) (int, bool) {
		if n < 15 {
			return n, true
		}
		for len(in) > 0 {
			x := in[0]
			in = in[1:]
			if n += int(x); x != 255 {
				return n, true
			}
		}
		return 0, false
	}
	for len(in) > 0 {
		token := in[0]
		in = in[1:]
		n, ok := length(int(token >> 4))
		if !ok || n > len(in) {
			return nil, ErrTruncated
		}
		if n > limit-len(out) {
			return nil, fmt.Errorf("%w: more than %d bytes", ErrMalformed, limit)
		}
		out, in = append(out, in[:n]...), in[n:]
		if len(in) == 0 {
			return out, nil
		}
		if len(in) < 2 {
			return nil, ErrTruncated
		}
		back := int(binary.LittleEndian.Uint16(in))
		in = in[2:]
		if n, ok = length(int(token & 15)); !ok {
			return nil, ErrTruncated
		}
		n += 4 // the least
		if back == 0 || back > len(out)-begin || n > limit-len(out) {
			return nil, fmt.Errorf("%w: a match of %d bytes, %d before, after %d of %d", ErrMalformed, n, back, len(out), limit)
		}
		for n > 0 { // it may overlap what it makes
			from := out[len(out)-back:]
			k := min(n, len(from))
			out, n = append(out, from[:k]...), n-k
		}
	}
	return out, nil
}
