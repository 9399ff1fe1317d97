package debuginfo

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"path/filepath"
	"time"

	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/module"
)

// A file of the cache, units-BUILDID, is a magic number, the CRC-32C of what follows, 0, the key, and the index: first
// address, end and unit of each range, 24 bytes; all little-endian.
const (
	cacheMagic = "unspunt2"
	cacheHead  = 8 + 4 + 4 + cacheKeyLen
	cacheRange = 24

	// minUnits is from how many units on an index is kept: fewer are read as fast.
	minUnits = 64

	// maxCache bounds what is read, in bytes, maxCacheAll what all files take: those go first that were not used for longest.
	maxCache    = 1 << 30
	cachePrefix = "units-"
)

var maxCacheAll int64 = 256 << 20 // but for tests

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	identityLen = 8 * 7
	cacheKeyLen = identityLen + 8 + 16*4
)

// identity is a file as it was when it was opened.
func identity(img *module.Image) []byte {
	var st module.File
	if f := img.File(); f != nil {
		st = *f
	}
	key, _ := binary.Append(nil, binary.LittleEndian, []uint64{uint64(st.Dev), st.Ino, uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec), uint64(img.Size())})
	return key
}

// cacheKey is the file that the index was made of, as it was, and where the sections lie: dwz changes them and leaves the build ID.
func (in *Info) cacheKey() []byte {
	key := binary.LittleEndian.AppendUint64(identity(in.main.img), 0)
	for _, s := range []section{secInfo, secAranges, secRanges, secRnglists} {
		var off, size uint64
		if sec := in.main.img.Section(sectionNames[s]); sec != nil {
			off, size = sec.Off, sec.Size
		}
		key = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(key, off), size)
	}
	return key
}

// settled is how old a file's last change must be: a change within the same tick of the clock is not seen.
var settled = 2 * time.Second // but for tests

// Kept says whether what is made of a file may be kept, and returns the file's identity, as it was when it was opened: only of files with a
// build ID that nobody but root and this user can change. To hash what others can change takes longer than to read it again.
func Kept(img *module.Image) (id []byte, ok bool) {
	build, f := img.BuildID(), img.File()
	if len(build) == 0 || len(build) > 64 || f == nil || !f.Private || time.Since(time.Unix(f.Ctim.Unix())) < settled {
		return nil, false
	}
	return identity(img), true
}

// cachePath returns the path of what is kept of a file, "" where nothing is.
func (in *Info) cachePath(img *module.Image, prefix string) string {
	if _, ok := Kept(img); in.opt.CacheDir == "" || !ok {
		return ""
	}
	return filepath.Join(in.opt.CacheDir, prefix+hex.EncodeToString(img.BuildID()))
}

// loadIndex reads the index from the cache. Whatever is wrong with it, it can be built.
func (in *Info) loadIndex() ([]span, bool) {
	path := in.cachePath(in.main.img, cachePrefix)
	if path == "" {
		return nil, false
	}
	b, err := kept.Read(path, maxCache)
	if err != nil {
		return nil, false
	}
	return decodeIndex(b, in.cacheKey())
}

func encodeIndex(spans []span, key []byte) []byte {
	b := append(make([]byte, 16, cacheHead+cacheRange*len(spans)), key...)
	for _, s := range spans {
		b = binary.LittleEndian.AppendUint64(b, s.lo)
		b = binary.LittleEndian.AppendUint64(b, s.hi)
		b = binary.LittleEndian.AppendUint64(b, s.id)
	}
	copy(b, cacheMagic)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
	return b
}

func decodeIndex(b, key []byte) ([]span, bool) {
	le := binary.LittleEndian
	if len(b) < cacheHead || string(b[:8]) != cacheMagic || le.Uint32(b[8:]) != crc32.Checksum(b[12:], castagnoli) ||
		string(b[16:cacheHead]) != string(key) || (len(b)-cacheHead)%cacheRange != 0 {
		return nil, false
	}
	spans := make([]span, (len(b)-cacheHead)/cacheRange)
	end := uint64(0)
	for i := range spans {
		r := b[cacheHead+i*cacheRange:]
		s := span{le.Uint64(r), le.Uint64(r[8:]), le.Uint64(r[16:])}
		if s.lo < end || s.lo >= s.hi {
			return nil, false
		}
		spans[i], end = s, s.hi
	}
	return spans, true
}

// saveIndex writes the index, if it can.
func (in *Info) saveIndex(spans []span) {
	if path := in.cachePath(in.main.img, cachePrefix); path != "" {
		kept.Write(path, encodeIndex(spans, in.cacheKey()))
		kept.Prune(in.opt.CacheDir, cachePrefix, maxCacheAll)
	}
}
