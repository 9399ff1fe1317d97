package debuginfo

import (
	"bytes"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// askSynth asks for addresses of the synthetic unit, of the others that the file says it has, and of some that nobody has.
func askSynth(t testing.TB, img *module.Image, o Options) (*Info, [][]Place) {
	in, err := Open(img, o)
	if err != nil || in == nil {
		return nil, nil
	}
	defer in.Close()
	addrs := []arch.Vaddr{0, 0x1000, 0x1001, 0x1800, 0x1fff, 0x2000, 1<<64 - 1}
	for i, s := range in.units() {
		if i == 50 {
			break
		}
		addrs = append(addrs, arch.Vaddr(s.lo), arch.Vaddr(s.lo+(s.hi-s.lo)/2), arch.Vaddr(s.hi-1))
	}
	out := in.Places(addrs)
	if len(out) != len(addrs) {
		t.Fatalf("%d answers for %d addresses", len(out), len(addrs))
	}
	rows := in.Lines(0x1000, 0x2000)
	if !slices.IsSortedFunc(rows, func(a, b Row) int { return int(int64(a.Addr - b.Addr)) }) {
		t.Fatalf("Lines are not sorted: %v", rows)
	}
	return in, out
}

// TestHostile reads units that are made to loop, to grow or to go astray. A test that takes long has failed.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	f := func(origin uint64) []byte { return cat(uleb(2), u64(0x1000), u64(0x1000), u32(origin)) }
	const dies = 11 // offset of the first DIE
	first := uint64(dies + len(synthRoot))
	deep := func(n int, b []byte) []byte { return bytes.Repeat(b, n) }
	for _, c := range []struct {
		name     string
		info     []byte
		sections map[string][]byte
		want     string // the name of the function at 0x1000
		note     string
	}{
		{"a function that stands for itself", unit4(synthRoot, f(first), []byte{0, 0}), nil, "", ""},
		{"two that stand for each other", unit4(synthRoot, f(first+21), []byte{0}, f(first)), nil, "", ""},
		{"an origin in the header", unit4(synthRoot, f(3), []byte{0, 0}), nil, "", ""},
		{"an origin behind the end", unit4(synthRoot, f(1<<31), []byte{0, 0}), nil, "", ""},
		{"an origin with a name", unit4(synthRoot, f(first+22), []byte{0}, uleb(3), []byte("f\x00"), u32(first)), nil, "f", ""},
		{"a sibling before", unit4(synthRoot, uleb(4), u32(dies), f(0), []byte{0, 0, 0}), nil, "", ""},
		{"a sibling of another place", unit4(synthRoot, uleb(5), u32(0xffffff), u32(0), []byte("f\x00"), []byte{0, 0}), nil, "", ""},
		{"DIEs without end", unit4(synthRoot, f(0), deep(1<<20, uleb(7))), nil, "", "malformed unit"},
		{"inlined calls without end", unit4(synthRoot, f(0), deep(1<<16, cat(uleb(6), u32(0)))), map[string][]byte{
			".debug_ranges": cat(u64(0), u64(0x100), u64(0), u64(0)),
		}, "", "malformed unit"},
		{"calls that are deep in each other", unit4(synthRoot, f(0), deep(1000, cat(uleb(6), u32(0))), make([]byte, 1002)), map[string][]byte{
			".debug_ranges": cat(u64(0), u64(0x100), u64(0), u64(0)),
		}, "", "more than 256 calls"},
		{"many functions with one long list", unit4(synthRoot, deep(1<<11, cat(uleb(5), u32(0), u32(0), []byte("f\x00\x00")))), map[string][]byte{
			".debug_ranges": deep(1<<10, cat(u64(0), u64(0x100))),
		}, "f", "more ranges"},
		{"a form of a form", unit4(synthRoot, uleb(8), deep(1000, uleb(DW_FORM_indirect))), nil, "", "malformed unit"},
		{"an unknown abbreviation", unit4(synthRoot, uleb(99)), nil, "", "malformed unit"},
		{"a cut unit", unit4(synthRoot, f(first), []byte{0, 0})[:40], nil, "", "truncated unit"},
		{"a unit without a DIE", unit4(), nil, "", "malformed"},
		{"many rows", unit4(synthRoot), map[string][]byte{
			".debug_line": lines4(deep(1<<20, []byte{0x20})),
		}, "", ""},
		{"rows that go back", unit4(synthRoot), map[string][]byte{
			".debug_line": lines4(cat([]byte{0, 9, DW_LNE_set_address}, u64(0x1800), []byte{1}, []byte{0, 9, DW_LNE_set_address}, u64(0x1000), []byte{1},
				[]byte{0, 9, DW_LNE_set_address}, u64(0x1fff), []byte{0, 1, DW_LNE_end_sequence})),
		}, "", ""},
		{"an opcode longer than the program", unit4(synthRoot), map[string][]byte{
			".debug_line": lines4([]byte{0, 0xff, 0xff, 0x7f, DW_LNE_set_address}),
		}, "", "malformed program"},
		{"a header that promises much", unit4(synthRoot), map[string][]byte{
			".debug_line": cat(u32(32), u16(5), []byte{8, 0}, u32(24), []byte{1, 1, 1, 0xfb, 14, 1}, []byte{0}, uleb(1<<60), []byte{1, 1, DW_FORM_flag_present}, uleb(1<<60), make([]byte, 40)),
		}, "", "malformed header"},
		{"aranges of a unit that is none", unit4(synthRoot, f(first), []byte{0, 0}), map[string][]byte{
			".debug_aranges": cat(u32(44), u16(2), u32(5), []byte{8, 0}, u32(0), u64(0x3000), u64(0x1000), u64(0), u64(0)),
		}, "", "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := map[string][]byte{".debug_info": c.info, ".debug_abbrev": synthAbbrevs}
			for name, b := range c.sections {
				all[name] = b
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			in, out := askSynth(t, synthImage(t, "synthetic", all), Options{})
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 512<<20 {
				t.Errorf("%d bytes allocated", n)
			}
			if in == nil {
				t.Fatalf("the image with %d sections opens without information", len(all))
			}
			got := ""
			if p := out[1]; len(p) > 0 {
				got = p[0].Name
			}
			if got != c.want {
				t.Errorf("Places(0x1000) = %v, want the name %q", out[1], c.want)
			}
			notes := strings.Join(in.Notes(), "\n")
			if !strings.Contains(notes, c.note) || c.note == "" && notes != "" && !strings.Contains(notes, ".debug_line+0x0: truncated") {
				t.Errorf("notes %q, want %q", notes, c.note)
			}
		})
	}
}

// TestShared reads units that share a line table or ranges, and functions that share calls: the work has a bound, and a note says so.
func TestShared(t *testing.T) {
	oracle.Long(t)
	const n = 400
	list := cat(bytes.Repeat(cat(u64(0), u64(1)), 1<<14), u64(0), u64(0))
	program := cat([]byte{0, 9, DW_LNE_set_address}, u64(0x1000), bytes.Repeat([]byte{DW_LNS_copy}, 1<<20))
	nested := cat(bytes.Repeat(cat(uleb(6), u32(0), []byte{0}), 1<<14), make([]byte, n+1))
	for name, c := range map[string]struct {
		dies     []byte // of each unit
		sections map[string][]byte
	}{
		"lines":     {[]byte{0}, map[string][]byte{".debug_line": lines4(program)}},
		"ranges":    {cat(uleb(5), u32(0), u32(0), []byte("f\x00\x00\x00")), map[string][]byte{".debug_ranges": list}},
		"functions": {nil, map[string][]byte{".debug_ranges": cat(u64(0), u64(n<<12), u64(0), u64(0))}},
	} {
		var units, functions []byte
		var addrs []arch.Vaddr
		for i := uint64(1); i <= n; i++ {
			units = append(units, unit4(uleb(1), u64(i<<12), u64(1<<12), u32(0), c.dies)...)
			functions = append(functions, cat(uleb(2), u64(i<<12), u64(1<<12), u32(0))...)
			addrs = append(addrs, arch.Vaddr(i<<12))
		}
		if c.dies == nil {
			units = unit4(cat(uleb(1), u64(0x1000), u64(n<<12), u32(0)), functions, nested)
		}
		c.sections[".debug_info"], c.sections[".debug_abbrev"] = units, synthAbbrevs
		in, err := Open(synthImage(t, name, c.sections), Options{})
		if err != nil {
			t.Fatal(err)
		}
		in.Places(addrs)
		if notes := strings.Join(in.Notes(), "\n"); !strings.Contains(notes, "too much in common") {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

// lines4 writes a line number table of DWARF 4 with one file.
func lines4(program []byte) []byte {
	header := cat([]byte{1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1}, []byte{0}, []byte("f.c\x00\x00\x00\x00\x00"))
	body := cat(u16(4), u32(uint64(len(header))), header, program)
	return cat(u32(uint64(len(body))), body)
}

// debugSections returns the contents of the sections that are read.
func debugSections(t testing.TB, img *module.Image) map[string][]byte {
	out := map[string][]byte{}
	for _, s := range img.Sections() {
		if strings.HasPrefix(s.Name, ".debug") || s.Name == ".gnu_debugaltlink" {
			b, err := img.Data(&s)
			if err != nil {
				t.Fatal(err)
			}
			out[s.Name] = b
		}
	}
	return out
}

// TestMutated damages real files, one byte to many, and cuts sections: there is no crash, and what is returned is well
// formed.
func TestMutated(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "g++", "dwz", "llvm-dwp-19", "llvm-symbolizer-19")
	for _, name := range []string{"gcc, nested functions", "g++ package", "dwz, alternate file", "g++ DWARF 4, types in sections of their own"} {
		s := named(t, name)
		t.Run(s.name, func(t *testing.T) {
			path, _ := s.make(t)
			img, err := module.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer img.Close()
			good := debugSections(t, img)
			names := []string{}
			for name := range good {
				names = append(names, name)
			}
			slices.Sort(names)
			addrs := textAddrs(t, img, 100)
			other := map[string][]byte{}
			for _, p := range []string{path + ".dwp", strings.TrimSuffix(path, "out") + "alt"} {
				if b, err := os.ReadFile(p); err == nil {
					other[p] = b
				}
			}
			r := rand.New(rand.NewPCG(1, 2))
			damage := func(b []byte) []byte {
				b = bytes.Clone(b)
				for range 1 << r.IntN(5) {
					if len(b) > 0 {
						b[r.IntN(len(b))] = byte(r.Uint32())
					}
				}
				if r.IntN(4) == 0 {
					b = b[:r.IntN(len(b)+1)]
				}
				return b
			}
			for range 300 {
				bad := map[string][]byte{}
				for _, name := range names {
					bad[name] = good[name]
					if r.IntN(3) == 0 {
						bad[name] = damage(good[name])
					}
				}
				in, err := Open(synthImage(t, path, bad), Options{Open: func(p string, id []byte) (*module.Image, error) {
					b, ok := other[p]
					if !ok {
						return nil, os.ErrNotExist
					}
					if r.IntN(2) == 0 {
						b = damage(b)
					}
					return module.New(p, b)
				}})
				if err != nil || in == nil {
					continue
				}
				if out := in.Places(addrs); len(out) != len(addrs) {
					t.Fatalf("%d answers for %d addresses", len(out), len(addrs))
				}
				in.Lines(addrs[0], addrs[len(addrs)-1])
				in.Close()
			}
		})
	}
}

// FuzzInfo reads any sections, and a package beside them.
func FuzzInfo(f *testing.F) {
	f.Add(unit4(synthRoot, []byte{0}), synthAbbrevs, lines4([]byte{0x20, 0, 1, 1}), []byte("name\x00"), []byte{}, []byte{}, []byte{})
	f.Add(cat(u32(44), u16(5), []byte{4, 8}, u32(0), u64(7), uleb(1), u64(0x1000), u64(0x1000), u32(0)), synthAbbrevs, []byte{}, []byte{}, []byte{5, 0, 0}, []byte{},
		cat(u32(2), u32(1), u32(1), u32(2), u64(7), u64(0), u32(1), u32(0), u32(1), u32(0), u32(100)))
	f.Fuzz(func(t *testing.T, info, abbrev, line, str, lists, aranges, index []byte) {
		main, dwp := map[string][]byte{}, map[string][]byte{}
		for name, b := range map[string][]byte{".debug_info": info, ".debug_abbrev": abbrev, ".debug_line": line, ".debug_str": str, ".debug_line_str": str,
			".debug_str_offsets": lists, ".debug_addr": lists, ".debug_ranges": lists, ".debug_rnglists": lists} {
			main[name], dwp[name+".dwo"] = b, b
		}
		main[".debug_aranges"], main[".gnu_debugaltlink"], dwp[".debug_cu_index"] = aranges, []byte("alt\x00id"), index
		askSynth(t, synthImage(t, "main", main), Options{Open: func(path string, _ []byte) (*module.Image, error) {
			if strings.HasSuffix(path, "alt") {
				return module.New(path, elfFile(main))
			}
			return module.New(path, elfFile(dwp))
		}})
	})
}
