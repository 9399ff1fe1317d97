package debuginfo

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/module"
)

// To expand the sections of one large library takes longer than all else that a small report does. So the expanded section is kept, under the same
// conditions as the index of units, and mapped the next time.
//
// Such a file of the cache, expanded-BUILDID.debug_info, is a magic number, the CRC-32C of what follows, 0, the key, and the contents.
const (
	expandedPrefix = "expanded-"
	expandedMagic  = "unspexp1"
	expandedKeyLen = identityLen + 2*8
	expandedHead   = 8 + 4 + 4 + expandedKeyLen

	// minExpanded is how many compressed bytes are worth a file: fewer are expanded about as fast as one is opened.
	minExpanded = 8 << 10

	// maxExpanded bounds what is kept of a section, maxExpandedAll that of all files: those go first that were not used for longest.
	maxExpanded    = 256 << 20
	maxExpandedAll = 512 << 20
)

// expandedKey is the file, as it was, and the section's place in it.
func expandedKey(img *module.Image, s *module.Section) []byte {
	key := binary.LittleEndian.AppendUint64(identity(img), s.Off)
	return binary.LittleEndian.AppendUint64(key, s.Size)
}

// expand returns a section's contents: those of a compressed one from the cache, if they are there, and else they go there.
func (f *file) expand(s *module.Section) []byte {
	path := ""
	if (s.Compressed || strings.HasPrefix(s.Name, ".z")) && s.Size >= minExpanded {
		path = f.in.cachePath(f.img, expandedPrefix)
	}
	if path == "" {
		return f.stored(s)
	}
	path += s.Name
	key := expandedKey(f.img, s)
	if b := f.in.loadExpanded(path, key); b != nil {
		return b
	}
	b := f.stored(s)
	if len(b) > 0 && len(b) <= maxExpanded {
		head := sealExpanded(key, b)
		kept.Write(path, head, b)
		kept.Prune(f.in.opt.CacheDir, expandedPrefix, maxExpandedAll)
	}
	return b
}

// sealExpanded returns what comes before the contents.
func sealExpanded(key, b []byte) []byte {
	head := append(append(make([]byte, 0, expandedHead), expandedMagic...), make([]byte, 8)...)
	head = append(head, key...)
	binary.LittleEndian.PutUint32(head[8:], crc32.Update(crc32.Checksum(head[12:], castagnoli), castagnoli, b))
	return head
}

// loadExpanded maps a file of the cache until Close; nil where it is not there, damaged, or of another file.
func (in *Info) loadExpanded(path string, key []byte) []byte {
	all, unmap, err := kept.Map(path, expandedHead+maxExpanded)
	if err != nil {
		return nil
	}
	in.mu.Lock()
	in.mappedSize += len(all)
	in.mapped = append(in.mapped, unmap) // also where a fault ends what follows
	in.mu.Unlock()
	b, _ := checkExpanded(all, key)
	return b
}

// checkExpanded returns the contents that are kept in a file.
func checkExpanded(b, key []byte) ([]byte, bool) {
	if len(b) <= expandedHead || string(b[:8]) != expandedMagic || string(b[16:expandedHead]) != string(key) ||
		binary.LittleEndian.Uint32(b[8:]) != crc32.Checksum(b[12:], castagnoli) {
		return nil, false
	}
	return b[expandedHead:len(b):len(b)], true
}
