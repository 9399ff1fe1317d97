package symbol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/ulikunitz/xz/lzma"

	"github.com/unspool/unspool/module"
)

// miniDebug returns the symbols in .gnu_debugdata: an ELF file, compressed with xz, that has the functions
// that .dynsym lacks ("MiniDebugInfo" in the GDB manual).
func (t *Table) miniDebug(img *module.Image) (source, bool) {
	sec := img.Section(".gnu_debugdata")
	if sec == nil {
		return source{}, false
	}
	b, err := img.Data(sec)
	if err == nil {
		b, err = unxz(b)
	}
	var in *module.Image
	if err == nil {
		in, err = module.New(t.path+" .gnu_debugdata", b)
	}
	if err != nil {
		t.setNote("%s: .gnu_debugdata: %v", t.path, err)
		return source{}, false
	}
	return table(in, false)
}

var errXZ = errors.New("malformed xz")

// unxz decompresses an xz file of LZMA2 blocks (The .xz File Format, 1.2.0). Output and window are bounded by
// the size of the input, whatever its headers promise: symbol tables shrink to a fifth, not to a
// hundredth. Checksums are not verified.
func unxz(b []byte) ([]byte, error) {
	limit := min(1<<20+100*len(b), 512<<20)
	if len(b) < 12 || string(b[:6]) != "\xfd7zXZ\x00" {
		return nil, fmt.Errorf("%w: header", errXZ)
	}
	checks := [16]int{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}
	check := checks[b[7]&15]
	b = b[12:]
	var out bytes.Buffer
	windows := int64(1 << 30)     // what those of all blocks together may take
	for len(b) > 0 && b[0] != 0 { // 0 starts the index
		head := 4 * (int(b[0]) + 1)
		if len(b) < head {
			return nil, fmt.Errorf("%w: block header", errXZ)
		}
		dict, err := blockDict(b[:head])
		if err != nil {
			return nil, err
		}
		dict = min(dict, int64(limit))
		if windows -= dict; windows < 0 {
			return nil, fmt.Errorf("%w: its blocks ask for too much memory", errXZ)
		}
		in := bytes.NewReader(b[head:])
		r, err := lzma.Reader2Config{DictCap: int(dict)}.NewReader2(in)
		if err != nil {
			return nil, err
		}
		if _, err := io.Copy(&out, io.LimitReader(r, int64(limit-out.Len()+1))); err != nil {
			return nil, err
		}
		if out.Len() > limit {
			return nil, fmt.Errorf("%w: it expands to more than %d bytes", errXZ, limit)
		}
		used := head + (len(b) - head - in.Len())
		used = (used+3)&^3 + check
		b = b[min(used, len(b)):]
	}
	return out.Bytes(), nil
}

// blockDict returns the window, in bytes, that a block header asks for. LZMA2 must be the only filter.
func blockDict(h []byte) (int64, error) {
	flags, b := h[1], h[2:len(h)-4]
	for _, present := range []byte{0x40, 0x80} { // compressed size, uncompressed size
		if flags&present != 0 {
			_, n := binary.Uvarint(b)
			if n <= 0 {
				return 0, fmt.Errorf("%w: block header", errXZ)
			}
			b = b[n:]
		}
	}
	if flags&3 != 0 || len(b) < 3 || b[0] != 0x21 || b[1] != 1 {
		return 0, fmt.Errorf("%w: a filter other than LZMA2", errXZ)
	}
	dict, err := lzma.DecodeDictCap(b[2])
	if err != nil {
		return 0, err
	}
	return max(dict, lzma.MinDictCap), nil
}
