package pe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// try reads all that an image has. There are at most as many rows as the file has bytes, three times; no work is done beyond its limit, but a few
// steps for each entry.
func try(t testing.TB, b []byte) (r *rows.Table, left int64) {
	img, err := module.New("try", b)
	if err != nil {
		return nil, 0
	}
	tab := Open(img)
	if tab == nil {
		return nil, 0
	}
	r, errs, left := tab.build()
	leaves := tab.Leaves()
	most := min(len(tab.entries), maxErrors) + 3
	if !img.Linked() {
		most += min(len(b)/10, maxErrors) // relocations
	}
	if n := len(r.Rows) + len(leaves.Rows); n > 3*len(b)+2*len(tab.entries)+64 || len(errs) > most {
		t.Errorf("%d rows, %d errors for %d entries of a file of %d bytes", n, len(errs), len(tab.entries), len(b))
	}
	if left < -int64(len(tab.entries)+1)*(2*wrongCost+1024) {
		t.Errorf("%d steps too many for a file of %d bytes and %d entries", -left, len(b), len(tab.entries))
	}
	handlers, scopes := 0, 0
	more := tab.Handlers(func(h *Handler) bool { handlers++; scopes += len(h.Scopes); return true })
	if handlers > len(tab.entries) || scopes > 1<<17+len(b) || len(more) > most {
		t.Errorf("%d handlers, %d scopes, %d errors for a file of %d bytes", handlers, scopes, len(more), len(b))
	}
	tab.Sum(io.Discard)
	for _, v := range []uint64{0, 0x180001000, 0x180001001, ^uint64(0)} {
		tab.Bounds(arch.Vaddr(v))
	}
	return r, left
}

// seeds are the golden images, and object files behind them.
func seeds(t testing.TB) (list [][]byte) {
	for name := range golden {
		b, err := os.ReadFile("testdata/" + name + ".dll")
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	for _, name := range []string{"../../module/testdata/x86_64.coff.o", "../../module/testdata/arm64.coff.o", "testdata/handlers.obj"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	// An empty object file with a long header, for what behind it is made up.
	return append(list, []byte("\x00\x00\xff\xff\x02\x00\x64\x86\x00\x00\x00\x00\xc7\xa1\xba\xd1\xee\xba\xa9\x4b\xaf\x20\xfa\xf6\x6a\xa4\xdc\xb8"+strings.Repeat("\x00", 28)))
}

// FuzzImage: no image makes the reader panic, hang or fill the memory.
func FuzzImage(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { try(t, b) })
}

// TestDamaged: truncations and changed bytes of the golden images.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	for _, b := range seeds(t) {
		for n := 0; n < len(b); n += 3 {
			try(t, b[:n:n])
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 3000 {
			c := bytes.Clone(b)
			for range 1 + r.IntN(3) {
				c[r.IntN(len(c))] = byte(r.Uint32())
			}
			try(t, c)
		}
	}
}

// A forgery is an image with one section, which can do all, from address 0x1000 on.
type forgery struct {
	b   []byte
	dir uint32
}

func forge(t *testing.T, name string, dir uint32, n int) *forgery {
	le := binary.LittleEndian
	f := &forgery{b: make([]byte, 1<<20), dir: dir}
	small, err := os.ReadFile("testdata/" + name + ".dll")
	if err != nil {
		t.Fatal(err)
	}
	copy(f.b, small[:0x400])
	pe := int(le.Uint32(f.b[60:]))
	opt := pe + 24
	le.PutUint16(f.b[pe+6:], 1)
	sec := opt + int(le.Uint16(f.b[pe+20:]))
	copy(f.b[sec:], ".text\x00\x00\x00")
	for i, v := range []int{len(f.b), 0x1000, len(f.b) - 0x400, 0x400} {
		le.PutUint32(f.b[sec+8+4*i:], uint32(v))
	}
	le.PutUint32(f.b[sec+36:], 0x60000020)
	le.PutUint32(f.b[opt+112+8*3:], f.dir)
	le.PutUint32(f.b[opt+112+8*3+4:], uint32(n))
	return f
}

func (f *forgery) at(rva uint32) []byte { return f.b[rva-0x1000+0x400:] }

// words writes numbers of 32 bits at an address.
func (f *forgery) words(rva uint32, list ...uint32) {
	for i, v := range list {
		binary.LittleEndian.PutUint32(f.at(rva)[4*i:], v)
	}
}

// TestQuadratic: what entries share, they cannot have for nothing.
func TestQuadratic(t *testing.T) {
	oracle.Long(t)
	chains := func(f *forgery, codes int) { // from 0x2000 on: each record leads to the next one, through 30 entries that stand for others
		for i := range uint32(32) {
			at := 0x2000 + 1024*i
			x := f.at(at)
			if x[0], x[1], x[2] = 0x21, 255, byte(codes); i == 31 {
				x[0] = 1
			}
			for k := range codes {
				x[4+2*k], x[5+2*k] = byte(codes-k), byte(k%16)<<4
			}
			next, end := at+1024, 4+uint32(codes+1)&^1*2
			if codes == 0 {
				for k := range uint32(30) {
					f.words(at+512+12*k, 0x1000, 0x1100, next)
					next = at + 512 + 12*k + 1
				}
			}
			f.words(at+end, 0x1000, 0x1100, next)
		}
	}
	for _, c := range []struct {
		name, image string
		size        uint32 // of an entry
		n           int    // entries
		fill        func(f *forgery, n int)
	}{
		{"the longest records, in chains", "amd64", 12, 40_000, func(f *forgery, n int) {
			chains(f, 255)
			for i := range uint32(n) {
				f.words(f.dir+12*i, 0x1000+i, 0x1000+i+400, 0x2000+1024*10)
			}
		}},
		{"chains of empty records", "amd64", 12, 40_000, func(f *forgery, n int) {
			chains(f, 0)
			for i := range uint32(n) {
				f.words(f.dir+12*i, 0x1000+i, 0x1000+i+1, 0x2000+1024*4)
			}
		}},
		{"jumps to chains", "amd64", 12, 2, func(f *forgery, n int) {
			chains(f, 0)
			f.words(f.dir, 0x1000, 0x1001, 0x2000+1024*2, 0x90000, 0xc0000, 0x1010)
			f.words(0x1010, 0x10401, 0x0004) // one code: push %rax
			for at := uint32(0x90000); at < 0xc0000-5; at += 5 {
				f.at(at)[0] = 0xe9
				f.words(at+1, 0x1000-(at+5))
			}
		}},
		{"records of nops", "arm64", 8, 60_000, func(f *forgery, n int) {
			f.words(0x2000, 1|1<<21|31<<27) // the epilogue has the prologue's codes
			for i := range uint32(n) {
				f.words(f.dir+8*i, 0x1000+4*(i%0x7000), 0x2000)
			}
			for i := range 31 * 4 {
				f.at(0x2004)[i] = 0xe3
			}
			f.at(0x2004)[31*4-1] = 0xe4
		}},
		{"epilogues", "arm64", 8, 60_000, func(f *forgery, n int) {
			f.words(0x2000, 1, 60_000|1<<16)
			for i := range uint32(n) {
				f.words(f.dir+8*i, 0x1000+4*(i%0x7000), 0x2000)
			}
			f.words(0x2008+4*60_000, 0xe4e4e4e5) // end_c: no instruction is the function's own
		}},
		{"codes without an end", "arm64", 8, 60_000, func(f *forgery, n int) {
			f.words(0x2000, 1, 255<<16)
			for i := range uint32(n) {
				f.words(f.dir+8*i, 0x1000+4*(i%0x7000), 0x2000)
			}
			for i := range 255 * 4 {
				f.at(0x2008)[i] = 0xe3
			}
		}},
	} {
		f := forge(t, c.image, 0x80000, int(c.size)*c.n)
		c.fill(f, c.n)
		if _, left := try(t, f.b); left >= 0 {
			t.Errorf("%s: %d steps are left: the image is not what it should be, or the steps are not counted", c.name, left)
		}
	}
}

// TestCut: an image that ends before its directory does, or before it begins, is damaged, and says nothing of leaf functions.
func TestCut(t *testing.T) {
	for _, b := range seeds(t)[:len(golden)] {
		whole, err := module.New("whole", b)
		if err != nil {
			t.Fatal(err)
		}
		s := whole.Segments()[slices.IndexFunc(whole.Segments(), func(s module.Segment) bool { return s.Kind == module.Functions })]
		for _, n := range []uint64{s.Off + s.Size - 1, s.Off + 1, s.Off, s.Off - 1, 0x200, 0x1e0} {
			img, err := module.New("cut", b[:n:n])
			if err != nil {
				t.Fatal(err)
			}
			tab := Open(img)
			if tab == nil {
				t.Fatalf("%d of %d bytes: no unwind information", n, len(b))
			}
			if _, errs := tab.Rows(); len(errs) == 0 || !errors.Is(errs[0], ErrTruncated) || len(tab.Leaves().Rows) > 0 {
				t.Errorf("%d of %d bytes: %v; %d rows of leaf functions", n, len(b), errs, len(tab.Leaves().Rows))
			}
		}
	}
}

// TestSum: the key has the records that rows are made of, also in a section that can be written; of such a section, it has no others.
func TestSum(t *testing.T) {
	sum := func(b []byte) string {
		img, err := module.New("sum", b)
		if err != nil {
			t.Fatal(err)
		}
		h := sha256.New()
		Open(img).Sum(h)
		return string(h.Sum(nil))
	}
	for _, b := range seeds(t)[:len(golden)] {
		img, err := module.New("whole", b)
		if err != nil {
			t.Fatal(err)
		}
		sections := binary.LittleEndian.Uint32(b[60:]) + 24 + uint32(binary.LittleEndian.Uint16(b[binary.LittleEndian.Uint32(b[60:])+20:]))
		for i, s := range img.Sections() {
			if s.Name != ".rdata" && s.Name != ".xdata" {
				continue
			}
			b := bytes.Clone(b)
			b[sections+40*uint32(i)+39] |= 0x80 // it can be written
			other := bytes.Clone(b)
			other[s.Off+s.Size-1] ^= 1
			if sum(b) == sum(other) {
				t.Errorf("%s: the records are not in the key", s.Name)
			}
			img, _ := module.New("empty", b)
			tab := Open(img)
			tab.entries = nil
			if used := tab.used(); slices.Contains(used, true) {
				t.Errorf("without entries, %v is used", used)
			}
		}
	}
}

var listed = regexp.MustCompile(`^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*(.*)$`)

// TestLength compares the lengths of instructions with objdump's, over the code of real images.
func TestLength(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "objdump")
	n, wrong := 0, 0
	for _, path := range images(t)[:1] {
		out := oracle.Run(t, "objdump", "-d", "-w", "--insn-width=16", path)
		for line := range strings.Lines(string(out)) {
			m := listed.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil || strings.Contains(m[3], "(bad)") || strings.Contains(m[3], ".byte") || strings.HasPrefix(m[3], "rex") { // no instruction, or a prefix of none
				continue
			}
			var code []byte
			for _, h := range strings.Fields(m[2]) {
				v, _ := strconv.ParseUint(h, 16, 8)
				code = append(code, byte(v))
			}
			n++
			if got := length(append(code[:len(code):len(code)], make([]byte, 16)...)); got != len(code) {
				if wrong++; wrong < 20 {
					t.Errorf("length(% x) = %d, want %d: %s", code, got, len(code), m[3])
				}
			}
		}
	}
	if n < 100_000 {
		t.Errorf("%d instructions, want 100,000", n)
	}
	t.Logf("%d instructions", n)
}
