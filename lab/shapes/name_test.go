package shapes

import (
	"cmp"
	"debug/elf"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// symbols are the functions of a file by file offset.
type symbols []symbol

type symbol struct {
	lo, hi uint64
	name   string
}

func readSymbols(t testing.TB, path string) symbols {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := f.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatal(err)
	}
	var out symbols
	for _, s := range table {
		if s.Section == elf.SHN_UNDEF || int(s.Section) >= len(f.Sections) || f.Sections[s.Section].Flags&elf.SHF_EXECINSTR == 0 ||
			elf.ST_TYPE(s.Info) > elf.STT_FUNC && elf.ST_TYPE(s.Info) != elf.STT_GNU_IFUNC {
			continue
		}
		sec := f.Sections[s.Section]
		lo := s.Value - sec.Addr + sec.Offset
		size := s.Size
		if size == 1 {
			size = 0 // musl's _init
		}
		out = append(out, symbol{lo, lo + size, s.Name})
	}
	for _, sec := range f.Sections {
		if strings.HasPrefix(sec.Name, ".plt") {
			out = append(out, symbol{sec.Offset, sec.Offset + sec.Size, "plt"})
		}
	}
	slices.SortFunc(out, func(a, b symbol) int { return cmp.Compare(a.lo, b.lo) })
	return out
}

// at returns what a chain calls the function at a file offset: its name if it is the shape's, else a point.
func (s symbols) at(off uint64) string {
	i := sort.Search(len(s), func(i int) bool { return s[i].lo > off })
	bare := "?"
	for i--; i >= 0 && s[i].lo+1<<16 > off; i-- {
		if off < s[i].hi {
			return ours(s[i].name)
		}
		// A symbol without a size, in assembler, is that of what follows it, unless another one has that.
		if s[i].lo == s[i].hi && bare == "?" {
			bare = ours(s[i].name)
		}
	}
	return bare
}

// ours keeps the names that chains have: of clones and cold parts, that of the function.
func ours(name string) string {
	name, _, _ = strings.Cut(strings.TrimPrefix(name, "main."), ".")
	switch {
	case strings.HasPrefix(name, "s_"), name == "main", name == "_start", name == "plt", name == "_init", name == "_fini":
		return name
	case strings.HasPrefix(name, "_Z"), strings.HasPrefix(name, "_R"):
		// The name of a C++ or a Rust function is in its mangled one, after its length.
		if m := mangled.FindString(name); m != "" {
			return m[1:]
		}
	}
	return "."
}

var mangled = regexp.MustCompile(`[0-9]s_[a-z_]+`)

// A place is a frame: a file, and an offset in it.
type place struct {
	module string
	off    uint64
}

// chain writes the names of frames, the innermost first, each followed by a space: a function of the shape, _start, plt, "." for one of
// any library, static or not, vdso, jit for code of no file, "?" for what has no name.
func (p *program) chain(frames []place) string {
	var b strings.Builder
	for _, f := range frames {
		switch {
		case f.module == p.path:
			b.WriteString(p.names.at(f.off))
		case strings.HasPrefix(f.module, "[vdso]"):
			b.WriteString("vdso")
		case f.module == "" || f.module[0] != '/' || strings.HasPrefix(f.module, "//anon"):
			b.WriteString("jit")
		case filepath.Dir(f.module) == filepath.Dir(p.path):
			b.WriteString(p.libs[f.module].at(f.off))
		default:
			b.WriteString(".")
		}
		b.WriteString(" ")
	}
	return b.String()
}

// macros are what the lines of shapes say shortly.
var macros = map[string]string{
	"START":     `(?:\. ){1,3}_start `, // what calls main
	"THREAD":    `(?:\. ){2,3}`,        // what calls a thread's function
	"SIGRETURN": `(?:\.|vdso) `,        // where a signal's handler returns to: on AArch64, code of the kernel's
	"LIB":       `(?:\. )`,             // any function of a library
}

var words = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*|\.`)

// pattern makes words frames, and blanks nothing.
func pattern(s string) string {
	const end = "\x00"
	s = words.ReplaceAllStringFunc(s, func(w string) string {
		if m, ok := macros[w]; ok {
			return strings.ReplaceAll("(?:"+m+")", " ", end)
		}
		return "(?:" + regexp.QuoteMeta(w) + end + ")"
	})
	return strings.ReplaceAll(strings.ReplaceAll(s, " ", ""), end, " ")
}
