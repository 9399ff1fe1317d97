package dwarf

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// sized is augmentation data with its length in front.
func sized(b ...byte) []byte { return append(uleb(uint64(len(b))), b...) }

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// TestAddresses writes one FDE of [0x12340, 0x12380) with every encoding of its addresses, for both sizes and
// byte orders, in .eh_frame and .debug_frame, in both formats.
func TestAddresses(t *testing.T) {
	const lo, size = 0x12340, 0x40
	bases := map[byte]uint64{DW_EH_PE_absptr: 0, DW_EH_PE_textrel: 0x12000, DW_EH_PE_datarel: 0x13000, DW_EH_PE_pcrel: 0, DW_EH_PE_aligned: 0}
	for variant := range 16 {
		for _, pf := range pointerFormats {
			for rel, base := range bases {
				l := &listing{eh: variant&1 != 0, big: variant&2 != 0, wide: variant&4 != 0, word: 4 + variant>>3*4, addr: 0x12000}
				if rel == DW_EH_PE_aligned && pf.format != 0 {
					continue
				}
				cie := l.cie(cieHead{aug: "zR", data: sized(pf.format | rel)})
				// The start's field lies behind the length and the CIE pointer.
				field := len(l.b) + 8
				if l.wide {
					field += 8
					if !l.eh {
						field += 4
					}
				}
				pad := 0
				switch rel {
				case DW_EH_PE_pcrel:
					base = l.addr + uint64(field)
				case DW_EH_PE_aligned:
					pad = -field & (l.size() - 1)
				}
				v := int64(lo - base)
				if pf.size != nil && pf.size(l.size()) == 2 && int64(int16(v)) != v || !pf.signed && v < 0 {
					continue // does not fit
				}
				if l.word == 4 && pf.format == DW_EH_PE_udata8 && v < 0 {
					continue
				}
				l.entry(cie, join(make([]byte, pad), l.encode(pf.format, v), l.encode(pf.format, size), sized(), []byte{DW_CFA_advance_loc + 4, DW_CFA_def_cfa_offset, 16})...)
				in := l.sections()
				in.Text, in.GOT = 0x12000, 0x13000
				if got, want := built(t, New(in)), "12340  cfa=rsp+8  ra=c-8 | 12344  cfa=rsp+16  ra=c-8 | 12380  gap"; got != want {
					t.Errorf("encoding %#02x in %+v\n got %s\nwant %s", pf.format|rel, l, got, want)
				}
			}
		}
	}
}

// TestSetLoc: its address has the FDE's encoding.
func TestSetLoc(t *testing.T) {
	l := &listing{eh: true, addr: 0x10000}
	cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_pcrel | DW_EH_PE_sdata4)})
	at := len(l.b)
	// The start's field is at 8, set_loc's at 18.
	l.entry(cie, join(l.num(4, uint64(0x12000-(0x10000+at+8))), l.num(4, 0x100), sized(),
		[]byte{DW_CFA_set_loc}, l.num(4, uint64(0x12010-(0x10000+at+18))), []byte{DW_CFA_def_cfa_offset, 16})...)
	if got, want := built(t, l.frames()), "12000  cfa=rsp+8  ra=c-8 | 12010  cfa=rsp+16  ra=c-8 | 12100  gap"; got != want {
		t.Errorf("pc-relative\n got %s\nwant %s", got, want)
	}

	// Relative to the function, which for its own start is nothing.
	l = &listing{eh: true}
	cie = l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_funcrel | DW_EH_PE_udata4)})
	l.entry(cie, join(l.num(4, 0x12000), l.num(4, 0x100), sized(), []byte{DW_CFA_set_loc}, l.num(4, 0x10), []byte{DW_CFA_def_cfa_offset, 16})...)
	if got, want := built(t, l.frames()), "12000  cfa=rsp+8  ra=c-8 | 12010  cfa=rsp+16  ra=c-8 | 12100  gap"; got != want {
		t.Errorf("function-relative\n got %s\nwant %s", got, want)
	}
}

// TestAugmentations writes CIEs of every augmentation, and FDEs with the data that it asks for.
func TestAugmentations(t *testing.T) {
	l := &listing{}
	word := func(v uint64) []byte { return l.num(8, v) }
	abs := join(word(0x1000), word(0x100))
	for _, c := range []struct {
		name string
		head cieHead
		fde  []byte // behind the CIE pointer
		want string
		cie  CIE // what Entries says, apart from the usual
		lsda arch.Vaddr
	}{
		{"none", cieHead{}, abs, "", CIE{}, 0},
		{"z", cieHead{aug: "z", data: sized()}, join(abs, sized()), "", CIE{}, 0},
		{"z, with data nobody asked for", cieHead{aug: "z", data: sized(1, 2, 3)}, join(abs, sized(4, 5)), "", CIE{}, 0},
		{"zR", cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)}, join(l.num(4, 0x1000), l.num(4, 0x100), sized()), "", CIE{FDEEncoding: DW_EH_PE_udata4}, 0},
		{"zL", cieHead{aug: "zL", data: sized(DW_EH_PE_udata4)}, join(abs, sized(l.num(4, 0x5678)...)), "", CIE{LSDAEncoding: DW_EH_PE_udata4}, 0x5678},
		{"zL, null", cieHead{aug: "zL", data: sized(DW_EH_PE_udata4)}, join(abs, sized(0, 0, 0, 0)), "", CIE{LSDAEncoding: DW_EH_PE_udata4}, 0},
		{"zL, of the function", cieHead{aug: "zL", data: sized(DW_EH_PE_udata4 | DW_EH_PE_funcrel)}, join(abs, sized(l.num(4, 8)...)), "", CIE{LSDAEncoding: DW_EH_PE_udata4 | DW_EH_PE_funcrel}, 0x1008},
		{"zL, omitted", cieHead{aug: "zL", data: sized(DW_EH_PE_omit)}, join(abs, sized()), "", CIE{LSDAEncoding: DW_EH_PE_omit}, 0},
		{"zP", cieHead{aug: "zP", data: sized(append([]byte{DW_EH_PE_udata4}, l.num(4, 0x9abc)...)...)}, join(abs, sized()), "",
			CIE{PersonalityEncoding: DW_EH_PE_udata4, Personality: 0x9abc}, 0},
		{"zP, indirect: where it is kept", cieHead{aug: "zP", data: sized(append([]byte{DW_EH_PE_indirect | DW_EH_PE_udata4}, l.num(4, 0x9abc)...)...)}, join(abs, sized()), "",
			CIE{PersonalityEncoding: DW_EH_PE_indirect | DW_EH_PE_udata4, Personality: 0x9abc}, 0},
		{"zP, omitted", cieHead{aug: "zP", data: sized(DW_EH_PE_omit)}, join(abs, sized()), "", CIE{PersonalityEncoding: DW_EH_PE_omit}, 0},
		{"zS", cieHead{aug: "zS", data: sized()}, join(abs, sized()), "  signal", CIE{}, 0},
		{"zB", cieHead{aug: "zB", data: sized()}, join(abs, sized()), "  b-key", CIE{}, 0},
		{"zG", cieHead{aug: "zG", data: sized()}, join(abs, sized()), "  tagged", CIE{}, 0},
		{"all", cieHead{aug: "zPLRSBG", data: sized(append(append([]byte{DW_EH_PE_udata4}, l.num(4, 0x9abc)...), DW_EH_PE_udata2, DW_EH_PE_udata4)...)},
			join(l.num(4, 0x1000), l.num(4, 0x100), sized(l.num(2, 0x5678)...)), "  signal  b-key  tagged",
			CIE{FDEEncoding: DW_EH_PE_udata4, LSDAEncoding: DW_EH_PE_udata2, PersonalityEncoding: DW_EH_PE_udata4, Personality: 0x9abc}, 0x5678},
		{"in another order", cieHead{aug: "zSRL", data: sized(DW_EH_PE_udata4, DW_EH_PE_udata2)}, join(l.num(4, 0x1000), l.num(4, 0x100), sized(l.num(2, 0x5678)...)), "  signal",
			CIE{FDEEncoding: DW_EH_PE_udata4, LSDAEncoding: DW_EH_PE_udata2}, 0x5678},
		{"an unknown letter: what is behind it is not known", cieHead{aug: "zS#R", data: sized(7, 7)}, join(abs, sized(1)), "  signal", CIE{}, 0},
		{"eh", cieHead{aug: "eh", first: word(0xabcd)}, abs, "", CIE{}, 0},
	} {
		for _, eh := range []bool{false, true} {
			l := &listing{eh: eh}
			cie := l.cie(c.head)
			l.entry(cie, append(c.fde, DW_CFA_advance_loc+4, DW_CFA_def_cfa_offset, 16)...)
			f := l.frames()
			want := fmt.Sprintf("1000  cfa=rsp+8  ra=c-8%s | 1004  cfa=rsp+16  ra=c-8%[1]s | 1100  gap", c.want)
			if got := built(t, f); got != want {
				t.Errorf("%s\n got %s\nwant %s", c.name, got, want)
			}
			w := c.cie
			w.Version, w.Augmentation, w.AddrSize, w.CodeAlign, w.DataAlign, w.RA = 1, c.head.aug, 8, 1, -8, 16
			if !strings.Contains(c.head.aug, "L") {
				w.LSDAEncoding = DW_EH_PE_omit
			}
			if !strings.Contains(c.head.aug, "P") {
				w.PersonalityEncoding = DW_EH_PE_omit
			}
			sound(t, f.Entries(Both, func(e Entry) bool {
				if e.CIE != w {
					t.Errorf("%s: CIE\n got %+v\nwant %+v", c.name, e.CIE, w)
				}
				if e.IsFDE && (e.FDE.Lo != 0x1000 || e.FDE.Hi != 0x1100 || e.FDE.LSDA != c.lsda || e.FDE.HasLSDA != (c.lsda != 0)) {
					t.Errorf("%s: FDE %+v", c.name, e.FDE)
				}
				return true
			}))
		}
	}
}

// TestVersions writes CIEs of all versions, in both formats, of both kinds of section, and in both byte orders.
func TestVersions(t *testing.T) {
	for variant := range 8 {
		for _, c := range []struct {
			name string
			head cieHead
			word int
			fde  func(l *listing) []byte
			want string
		}{
			{"1", cieHead{version: 1, ra: []byte{0x90}, daf: []byte{0x7c}}, 8, func(l *listing) []byte { return join(l.num(8, 0x1000), l.num(8, 0x100)) }, // one byte, not LEB128
				"1000  cfa=rsp+8  ra-column=r144  rip=c-4 | 1100  gap"},
			{"3", cieHead{version: 3, ra: []byte{0x90, 0x00}}, 8, func(l *listing) []byte { return join(l.num(8, 0x1000), l.num(8, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"4", cieHead{version: 4, first: []byte{8, 0}}, 8, func(l *listing) []byte { return join(l.num(8, 0x1000), l.num(8, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"4, its own address size", cieHead{version: 4, first: []byte{4, 0}}, 8, func(l *listing) []byte { return join(l.num(4, 0x1000), l.num(4, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"4, addresses of two bytes", cieHead{version: 4, first: []byte{2, 0}}, 4, func(l *listing) []byte { return join(l.num(2, 0x1000), l.num(2, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"4, a segment selector", cieHead{version: 4, first: []byte{8, 2}}, 8, func(l *listing) []byte { return join(l.num(2, 0xffff), l.num(8, 0x1000), l.num(8, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"4, with z", cieHead{version: 4, aug: "zR", first: []byte{8, 0}, data: sized(DW_EH_PE_udata2)}, 8, func(l *listing) []byte { return join(l.num(2, 0x1000), l.num(2, 0x100), sized()) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
			{"5, a draft's", cieHead{version: 5, first: []byte{8, 0}}, 8, func(l *listing) []byte { return join(l.num(8, 0x1000), l.num(8, 0x100)) },
				"1000  cfa=rsp+8  ra=c-8 | 1100  gap"},
		} {
			l := &listing{eh: variant&1 != 0, big: variant&2 != 0, wide: variant&4 != 0, word: c.word}
			cie := l.cie(c.head)
			l.entry(cie, c.fde(l)...)
			f := l.frames()
			if got := built(t, f); got != c.want {
				t.Errorf("version %s in %+v\n got %s\nwant %s", c.name, l, got, c.want)
			}
			sound(t, f.Entries(Both, func(e Entry) bool {
				if e.DWARF64 != l.wide || e.CIE.Version != c.head.version {
					t.Errorf("version %s: %+v", c.name, e)
				}
				return true
			}))
		}
	}
}

// TestBadEntries damages heads of entries: each costs that entry, or the rest of the section where the way to
// the next one is lost.
func TestBadEntries(t *testing.T) {
	for _, c := range []struct {
		name  string
		eh    bool
		entry func(l *listing) // appended to a section with a sound CIE at 0
		at    int              // of the damage, in what was appended
		cause error
		text  string
		rest  bool // the rest of the section is lost
	}{
		{"version 2", false, func(l *listing) { l.cie(cieHead{version: 2}) }, 8, ErrUnsupported, "CIE: version: unsupported: version 2", false},
		{"version 0", true, func(l *listing) { l.entry(-1, 0, 0, 1, 0x78, 16) }, 8, ErrUnsupported, "version 0", false},
		{"no version", true, func(l *listing) { l.entry(-1) }, 8, ErrTruncated, "version", false},
		{"endless augmentation", true, func(l *listing) { l.entry(-1, 1, 'z', 'R') }, 9, ErrTruncated, "augmentation", false},
		{"augmentation of a novel", true, func(l *listing) { l.cie(cieHead{aug: "z" + strings.Repeat("R", 1000)}) }, 9, ErrUnsupported, "augmentation", false},
		{"unknown augmentation", true, func(l *listing) { l.cie(cieHead{aug: "armcc+"}) }, 9, ErrUnsupported, `augmentation "armcc+"`, false},
		{"no address size", false, func(l *listing) { l.entry(-1, 4, 0, 8) }, 10, ErrTruncated, "address size", false},
		{"address size 3", false, func(l *listing) { l.cie(cieHead{version: 4, first: []byte{3, 0}}) }, 10, ErrUnsupported, "3 bytes", false},
		{"segment selector of 9 bytes", false, func(l *listing) { l.cie(cieHead{version: 4, first: []byte{8, 9}}) }, 11, ErrUnsupported, "9 bytes", false},
		{"code alignment factor of 2³²", false, func(l *listing) { l.cie(cieHead{caf: []byte{0x80, 0x80, 0x80, 0x80, 0x10}}) }, 10, ErrUnsupported, "code alignment factor", false},
		{"no data alignment factor", false, func(l *listing) { l.entry(-1, 1, 0, 1) }, 11, ErrTruncated, "data alignment factor", false},
		{"no return address column", false, func(l *listing) { l.entry(-1, 1, 0, 1, 0x78) }, 12, ErrTruncated, "return address column", false},
		{"return address column 65536", false, func(l *listing) { l.cie(cieHead{version: 3, ra: []byte{0x80, 0x80, 4}}) }, 12, ErrUnsupported, "register 65536", false},
		{"augmentation data beyond the entry", true, func(l *listing) { l.cie(cieHead{aug: "zR", data: []byte{100, 0}}) }, 16, ErrTruncated, "augmentation length", false},
		{"augmentation data that ends", true, func(l *listing) { l.cie(cieHead{aug: "zRL", data: sized(DW_EH_PE_udata4)}) }, 18, ErrTruncated, "augmentation zRL", false},
		{"personality of no format", true, func(l *listing) { l.cie(cieHead{aug: "zP", data: sized(0x0f, 0, 0, 0, 0)}) }, 17, ErrMalformed, "pointer format", false},

		{"FDE that ends in its start", false, func(l *listing) { l.entry(0, 0, 0x30, 0) }, 8, ErrTruncated, "FDE: start", false},
		{"FDE that ends in its size", false, func(l *listing) { l.entry(0, append(l.num(8, 0x3000), 0x10)...) }, 16, ErrTruncated, "FDE: size", false},
		{"FDE beyond the address space", false, func(l *listing) { l.fde(0, ^uint64(0)-0xff, 0x200) }, 8, ErrMalformed, "beyond the address space", false},
		{"FDE without CIE", false, func(l *listing) { l.fde(4, 0x3000, 0x10) }, 4, ErrMalformed, "there is none at 0x4", false},
		{"FDE of an FDE", false, func(l *listing) { l.fde(l.fde(0, 0x1010, 0), 0x3000, 0x10) }, 28, ErrMalformed, "there is none at", false},
		{"FDE of a CIE behind the section", false, func(l *listing) { l.fde(1<<20, 0x3000, 0x10) }, 4, ErrMalformed, "leads out of the section", false},
		{"FDE of a CIE in front of the section", true, func(l *listing) { l.fde(-10, 0x3000, 0x10) }, 4, ErrMalformed, "leads out of the section", false},
		{"entry of 3 bytes", false, func(l *listing) { l.b = append(l.b, 3, 0, 0, 0, 0xff, 0xff, 0xff) }, 0, ErrMalformed, "entry of 3 bytes", false},
		{"entry of reserved length", false, func(l *listing) { l.b = append(l.b, 0xf0, 0xff, 0xff, 0xff, 1, 2, 3, 4) }, 0, ErrMalformed, "reserved", true},
		{"entry beyond the section", false, func(l *listing) { l.b = append(l.b, 0, 1, 0, 0, 1, 2, 3, 4) }, 0, ErrTruncated, "entry of 0x100 bytes", true},
		{"64-bit entry beyond the section", true, func(l *listing) {
			l.b = append(l.b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
		}, 0, ErrTruncated, "entry of", true},
	} {
		l := &listing{eh: c.eh}
		l.cie(cieHead{})
		l.fde(0, 0x1000, 0x10)
		at := len(l.b)
		c.entry(l)
		l.fde(0, 0x2000, 0x10)
		x, ds := l.frames().Build(Both)
		want := "1000  cfa=rsp+8  ra=c-8 | 1010  gap"
		if !c.rest {
			want += " | 2000  cfa=rsp+8  ra=c-8 | 2010  gap"
		}
		if got := lines(t, x); got != want {
			t.Errorf("%s: the others\n got %s\nwant %s", c.name, got, want)
		}
		if len(ds) != 1 {
			t.Errorf("%s: damages %v, want one", c.name, ds)
			continue
		}
		if d := ds[0]; d.Off != uint64(at+c.at) || !errors.Is(d, c.cause) || !strings.Contains(d.Error(), c.text) {
			t.Errorf("%s\n got %v\nwant +%#x … %v … %s", c.name, d, at+c.at, c.cause, c.text)
		}
		n := 0
		if eds := l.frames().Entries(Both, func(e Entry) bool {
			if e.IsFDE && e.FDE.Lo < e.FDE.Hi {
				n++
			}
			return true
		}); len(eds) != 1 || eds[0].Off != ds[0].Off || n != strings.Count(want, "cfa") {
			t.Errorf("%s: Entries gives %d FDEs and %v", c.name, n, eds)
		}
	}

	// The FDEs of a damaged CIE are lost with it; each is reported.
	l := &listing{}
	bad := l.cie(cieHead{version: 9})
	one, two := l.fde(bad, 0x1000, 0x10), l.fde(bad, 0x2000, 0x10)
	l.fde(l.cie(cieHead{}), 0x3000, 0x10)
	x, ds := l.frames().Build(Both)
	if got, want := lines(t, x), "3000  cfa=rsp+8  ra=c-8 | 3010  gap"; got != want || len(ds) != 3 || ds[1].Off != uint64(one) || ds[2].Off != uint64(two) {
		t.Errorf("a damaged CIE's FDEs\n got %s, %v\nwant %s", got, ds, want)
	}
}

// TestOddities are entries that are no damage.
func TestOddities(t *testing.T) {
	const one, two = "1000  cfa=rsp+8  ra=c-8 | 1010  gap", " | 2000  cfa=rsp+8  ra=c-8 | 2010  gap"
	for _, c := range []struct {
		name string
		eh   bool
		make func(l *listing)
		want string
	}{
		{"an FDE before its CIE", false, func(l *listing) {
			l.fde(24, 0x1000, 0x10)
			l.cie(cieHead{})
			l.fde(24, 0x2000, 0x10)
		}, one + two},
		{"terminators between entries", true, func(l *listing) {
			cie := l.cie(cieHead{})
			l.fde(cie, 0x1000, 0x10)
			l.b = append(l.b, 0, 0, 0, 0)
			l.fde(cie, 0x2000, 0x10)
			l.b = append(l.b, 0, 0, 0, 0)
		}, one + two},
		{"padding behind the last entry", true, func(l *listing) {
			l.fde(l.cie(cieHead{}), 0x1000, 0x10)
			l.b = append(l.b, 0, 0, 0)
		}, one},
		{"an empty section", true, func(*listing) {}, ""},
		{"no FDE", true, func(l *listing) { l.cie(cieHead{}) }, ""},
		{"a CIE whose instructions are bad, without FDEs", true, func(l *listing) {
			l.cie(cieHead{}, DW_CFA_restore_state)
			l.fde(l.cie(cieHead{}), 0x1000, 0x10)
		}, one},
		{"a function that the linker discarded", true, func(l *listing) {
			cie := l.cie(cieHead{})
			l.fde(cie, 0, 0x3000)
			l.fde(cie, 0x1000, 0x10)
		}, one},
		{"the same in .debug_frame", false, func(l *listing) {
			cie := l.cie(cieHead{})
			l.fde(cie, 0, 0x3000)
			l.fde(cie, ^uint64(0), 0x3000)
			l.fde(cie, ^uint64(1), 0x3000)
			l.fde(cie, 0x1000, 0x10)
		}, one},
		{"no length", true, func(l *listing) {
			cie := l.cie(cieHead{})
			l.fde(cie, 0x1000, 0)
			l.fde(cie, 0x1000, 0x10, DW_CFA_nop)
			l.fde(cie, 0x1000, 0)
		}, one},
		{"up to the last address", true, func(l *listing) { l.fde(l.cie(cieHead{}), ^uint64(0)-15, 15) }, "fffffffffffffff0  cfa=rsp+8  ra=c-8 | ffffffffffffffff  gap"},
	} {
		l := &listing{eh: c.eh}
		c.make(l)
		f := l.frames()
		if got := built(t, f); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
		sound(t, f.Entries(Both, func(Entry) bool { return true }))
	}

	// An address of four bytes: the last function may end at 2³².
	l := &listing{word: 4}
	l.fde(l.cie(cieHead{}), 0xfffffff0, 16)
	if got, want := built(t, l.frames()), "fffffff0  cfa=rsp+8  ra=c-8 | 100000000  gap"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	// Entries can be left early.
	l = &listing{}
	l.fde(l.cie(cieHead{}), 0x1000, 16)
	n := 0
	l.frames().Entries(Both, func(Entry) bool { n++; return false })
	if n != 1 {
		t.Errorf("Entries went on to %d", n)
	}
}

// TestOverlaps lays FDEs over each other: the one with the greatest start holds, of several with that start
// the first in the section, and .debug_frame only where .eh_frame says nothing.
func TestOverlaps(t *testing.T) {
	type span struct {
		lo, size uint64
		off      byte // of the CFA
	}
	list := func(eh bool, fs ...span) Section {
		l := &listing{eh: eh}
		cie := l.cie(cieHead{}, DW_CFA_def_cfa, 7, 0)
		for _, f := range fs {
			l.fde(cie, f.lo, f.size, DW_CFA_def_cfa_offset, f.off)
		}
		return l.section()
	}
	for _, c := range []struct {
		name      string
		eh, debug []Section
		want      string
	}{
		{"inside", []Section{list(true, span{0x1000, 0x100, 1}, span{0x1040, 0x10, 2})}, nil,
			"1000  cfa=rsp+1 | 1040  cfa=rsp+2 | 1050  cfa=rsp+1 | 1100  gap"},
		{"inside, first", []Section{list(true, span{0x1040, 0x10, 2}, span{0x1000, 0x100, 1})}, nil,
			"1000  cfa=rsp+1 | 1040  cfa=rsp+2 | 1050  cfa=rsp+1 | 1100  gap"},
		{"twice", []Section{list(true, span{0x1000, 0x10, 1}, span{0x1000, 0x10, 2})}, nil, "1000  cfa=rsp+1 | 1010  gap"},
		{"same start", []Section{list(true, span{0x1000, 0x10, 1}, span{0x1000, 0x30, 2}, span{0x1000, 0x20, 3})}, nil, "1000  cfa=rsp+1 | 1010  cfa=rsp+2 | 1030  gap"},
		{"into the next", []Section{list(true, span{0x1000, 0x30, 1}, span{0x1010, 0x30, 2})}, nil, "1000  cfa=rsp+1 | 1010  cfa=rsp+2 | 1040  gap"},
		{"several sections", []Section{list(true, span{0x2000, 0x10, 1}), list(true, span{0x1000, 0x10, 2}, span{0x2000, 0x20, 3})}, nil,
			"1000  cfa=rsp+2 | 1010  gap | 2000  cfa=rsp+1 | 2010  cfa=rsp+3 | 2020  gap"},
		{"both kinds", []Section{list(true, span{0x1010, 0x10, 1})}, []Section{list(false, span{0x1000, 0x30, 2}, span{0x1014, 4, 3})},
			"1000  cfa=rsp+2 | 1010  cfa=rsp+1 | 1020  cfa=rsp+2 | 1030  gap"},
	} {
		f := New(Sections{EHFrame: c.eh, DebugFrame: c.debug, Machine: arch.AMD64})
		x, ds := f.Build(Both)
		sound(t, ds)
		if got := lines(t, x); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
		agree(t, f, x, everyPC(0xfff, 0x2030))
	}
}

// everyPC yields the addresses of [lo, hi).
func everyPC(lo, hi arch.Vaddr) func(func(arch.Vaddr) bool) {
	return func(yield func(arch.Vaddr) bool) {
		for ; lo < hi && yield(lo); lo++ {
		}
	}
}

// agree compares Lookup and Bounds with the whole table at pcs. It gives up after some differences.
func agree(t testing.TB, f *Frames, x *rows.Table, pcs func(func(arch.Vaddr) bool)) (n int) {
	t.Helper()
	bad := 0
	for pc := range pcs {
		n++
		want := x.At(pc).Text(x.Machine)
		one, err := f.Lookup(pc)
		if err != nil {
			t.Errorf("Lookup(%#x): %v", uint64(pc), err)
			bad++
		} else if got := one.At(pc).Text(x.Machine); got != want {
			t.Errorf("Lookup(%#x)\n got %s\nwant %s", uint64(pc), got, want)
			bad++
		} else if one.Find(pc) == 0 {
			// Between its first and last rows it equals the whole.
			for i, r := range one.Rows[:len(one.Rows)-1] {
				for _, a := range []arch.Vaddr{r.Lo, one.Hi(i) - 1} {
					if got, want := one.Sets[r.Set].Text(x.Machine), x.At(a).Text(x.Machine); got != want {
						t.Errorf("Lookup(%#x): at %#x\n got %s\nwant %s", uint64(pc), uint64(a), got, want)
						bad++
					}
				}
			}
		}
		lo, hi, ok := f.Bounds(Both, pc)
		if ok && (pc < lo || pc >= hi) || !ok && want != "gap" {
			t.Errorf("Bounds(%#x) = %#x, %#x, %v", uint64(pc), uint64(lo), uint64(hi), ok)
			bad++
		}
		if bad > 5 {
			break
		}
	}
	return n
}
