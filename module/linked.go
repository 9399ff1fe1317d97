package module

import (
	"strings"

	"github.com/unspool/unspool/internal/procfs"
)

// A FileKind says what a file is.
type FileKind uint8

const (
	UnknownFile  FileKind = iota
	LinkedFile            // an executable or a library
	ObjectFile            // for a linker or, as a module, for the kernel
	ExpandedFile          // a kernel or a module that Open expands
	ArchiveFile           // see OpenArchive
)

// KindOf says what a file is, by its headers; of a compressed module, by its name. A kernel with a header of a PE file is a LinkedFile, too.
func KindOf(path string) FileKind {
	f, err := procfs.Open(path)
	if err != nil {
		return UnknownFile
	}
	defer f.Close()
	var head [bzEnd]byte
	n, _ := f.ReadAt(head[:], 0)
	b := head[:n]
	if form := formatOf(b); form != nil {
		return form.kind(f)
	}
	switch {
	case isArchive(b):
		return ArchiveFile
	case isBzImage(b):
		return ExpandedFile
	}
	for suffix := range moduleFormats {
		if strings.HasSuffix(path, suffix) && n > 0 {
			return ExpandedFile
		}
	}
	return UnknownFile
}

// IsLinked says whether a file is an executable or a library, by its headers.
func IsLinked(path string) bool { return KindOf(path) == LinkedFile }
