package symbol

import (
	"github.com/unspool/unspool/internal/unxz"
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
		b, err = unxz.Decode(b, min(1<<20+100*len(b), 512<<20)) // symbol tables shrink to a fifth, not to a hundredth
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
