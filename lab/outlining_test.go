package lab

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// An outlined is what one file's .eh_frame takes in each form, in bytes.
type outlined struct {
	name                  string
	ehFrame, hdr          int
	heads, programs, cies int // of ehFrame; the rest is padding and its end
	gzip, zstd, table     int
	dicts, sections       []int // by form
	long                  int   // files whose heads the last form cannot shorten; those count as in the form before
	files                 int
}

func (o *outlined) total(form int) int { return o.dicts[form] + o.sections[form] }

func (o *outlined) add(z *outlined) {
	if o.dicts == nil {
		o.dicts, o.sections = make([]int, len(forms)), make([]int, len(forms))
	}
	o.files += z.files
	o.ehFrame += z.ehFrame
	o.hdr += z.hdr
	o.heads += z.heads
	o.programs += z.programs
	o.cies += z.cies
	o.gzip += z.gzip
	o.zstd += z.zstd
	o.table += z.table
	o.long += z.long
	for i := range forms {
		o.dicts[i] += z.dicts[i]
		o.sections[i] += z.sections[i]
	}
}

// outlineFile packs one file's .eh_frame in each form, and reads it back. It returns nil for one without, or of a machine
// other than x86-64.
func outlineFile(path string) (*outlined, error) {
	img, err := module.Open(path)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	if img.Machine() != arch.AMD64 {
		return nil, nil
	}
	x, err := takeApart(img)
	if x == nil || err != nil {
		return nil, err
	}
	ref, damage := x.frames.Build(dwarf.EHFrame)
	if len(damage) > 0 {
		return nil, damage[0]
	}
	if len(ref.Rows) == 0 {
		return nil, nil
	}
	data := x.in.EHFrame[0].Data
	z := &outlined{name: filepath.Base(path), ehFrame: len(data), files: 1}
	if s := img.Section(".eh_frame_hdr"); s != nil {
		z.hdr = int(s.Size)
	}
	for i := range x.entries {
		e := &x.entries[i]
		if e.IsFDE {
			z.heads += len(e.head)
			z.programs += len(e.program)
		} else {
			z.cies += len(e.head) + len(e.program)
		}
	}
	for i := range forms {
		f := &forms[i]
		dicts, section := f.pack(x)
		if section == nil || f.unpack == nil && z.hdr < 12+8*x.fdes { // the table that says where functions start lacks some
			z.long++
			z.dicts, z.sections = append(z.dicts, z.dicts[i-1]), append(z.sections, z.sections[i-1])
			continue
		}
		y, err := x.unpackForm(f, dicts, section)
		if err == nil {
			err = x.same(y, ref)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		z.dicts, z.sections = append(z.dicts, len(dicts)), append(z.sections, len(section))
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return nil, err
	}
	z.table = len(b)
	z.gzip, z.zstd, err = compressed(data)
	return z, err
}

// compressed returns the sizes of b under gzip -9 and under zstd at its slowest.
func compressed(b []byte) (gz, zs int, err error) {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	w.Write(b)
	if err := w.Close(); err != nil {
		return 0, 0, err
	}
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return 0, 0, err
	}
	defer e.Close()
	return out.Len(), len(e.EncodeAll(b, nil)), nil
}

// outlining answers the report's question (its section 3.4): can standard DWARF data be compressed by outlining?
func (ev *evaluation) outlining(t testing.TB) string {
	sum := &outlined{name: "all files"}
	var odd []string
	var mu sync.Mutex
	ratios := make([][]float64, len(forms))
	lookAt := func(path string) (*outlined, error) {
		z, err := outlineFile(path)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			odd = append(odd, fmt.Sprintf("%s (%v)", filepath.Base(path), err))
		}
		return z, nil
	}
	eachFile(t, ev.paths, func(path string) error {
		z, err := lookAt(path)
		if z != nil {
			mu.Lock()
			defer mu.Unlock()
			sum.add(z)
			for i := range forms {
				ratios[i] = append(ratios[i], float64(z.total(i))/float64(z.ehFrame))
			}
		}
		return err
	})
	cols := []*outlined{sum}
	named := []string{libs + "libc.so.6", find("/usr/bin/hackbench")}
	if ev.whole {
		named = []string{libs + "libc.so.6", find(libs + "libLLVM.so.19*"), "/usr/bin/gdb", find("/usr/bin/hackbench")}
	}
	for _, path := range named {
		if z, err := outlineFile(path); z != nil && err == nil {
			cols = append(cols, z)
		} else {
			ev.lacks(t, "%q, which is outlined: %v", path, err)
		}
	}
	if sum.files == 0 {
		t.Errorf("none of %d files has .eh_frame that can be taken apart; %d fail: %.500q", len(ev.paths), len(odd), fmt.Sprint(odd))
		return ""
	}
	cells := [][]string{{"form"}}
	for _, c := range cols {
		cells[0] = append(cells[0], c.name)
	}
	cells[0] = append(cells[0], "median of files", "dictionaries, all files")
	chart := []quantity{}
	line := func(name string, size func(c *outlined) int, mid, dicts string) {
		l := []string{name}
		for i, c := range cols {
			if n := size(c); i == 0 {
				l = append(l, fmt.Sprintf("%d (%s ×)", n, times(n, c.ehFrame)))
				chart = append(chart, quantity{strings.NewReplacer("`", "", "*", "").Replace(name), float64(n) / float64(max(c.ehFrame, 1)), n == c.ehFrame})
			} else {
				l = append(l, fmt.Sprintf("%d (%s ×)", n, times(n, c.ehFrame)))
			}
		}
		cells = append(cells, append(l, mid, dicts))
	}
	line("`.eh_frame` as it is", func(c *outlined) int { return c.ehFrame }, "1.00", "")
	for i, f := range forms {
		line("**"+f.name+"**", func(c *outlined) int { return c.total(i) }, fmt.Sprintf("%.2f", median(ratios[i])), fmt.Sprint(sum.dicts[i]))
	}
	line("gzip -9", func(c *outlined) int { return c.gzip }, "", "")
	line("zstd, slowest", func(c *outlined) int { return c.zstd }, "", "")
	line("compact table", func(c *outlined) int { return c.table }, "", "")
	ev.bars(t, "outlining.svg", "Call frame information, outlined: × .eh_frame", "×", chart)

	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("The report outlines equal rows of its compiled code, and asks whether standard DWARF data could be compressed in this way (its section 3.4). Here `.eh_frame` of %d files is written in other forms. "+
		"Each has one dictionary a module (the last two have two) of what occurs often enough, and everything else in place; each is read back, made into a standard section, and has the same functions, "+
		"exception tables and rows, in every file. All bytes are counted: CIEs, heads, dictionaries.\n\n", sum.files)
	for _, f := range forms {
		say("- **%s**: %s.\n", f.name, f.what)
	}
	share := func(n int) string { return exactly(n, sum.ehFrame) }
	say("\n%s\n![Outlining](outlining.svg)\n\n", markdown(cells))
	say("Of `.eh_frame`, %s are heads of FDEs (lengths, addresses, pointers to CIEs and exception tables), %s programs, %s CIEs, and %s padding: outlining the programs alone can save no more than their part. "+
		"`.eh_frame_hdr`, %d bytes (%s × `.eh_frame`), stays beside all forms; the compact table needs neither, but does not say where exception tables are. ",
		share(sum.heads), share(sum.programs), share(sum.cies), share(sum.ehFrame-sum.heads-sum.programs-sum.cies), sum.hdr, times(sum.hdr, sum.ehFrame))
	last := sum.total(len(forms)-1) + sum.hdr
	say("With it the last form takes %s × `.eh_frame`, the compact table alone %s. What is compressed by gzip or zstd cannot be read in place.\n", times(last, sum.ehFrame), times(sum.table, sum.ehFrame))
	if sum.long > 0 {
		say("\n%d files have heads with addresses of eight bytes or other data, or no complete `.eh_frame_hdr`: the last form does not shorten those, and they count as in the form before.\n", sum.long)
	}
	if slices.Sort(odd); len(odd) > 0 {
		say("\nLeft out: %s.\n", strings.Join(odd, "; "))
	}
	return b.String()
}

// TestOutlining packs and unpacks a hand-written section that has what compilers seldom write.
func TestOutlining(t *testing.T) {
	cie := []byte("\x14\x00\x00\x00\x00\x00\x00\x00\x01zR\x00\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01\x00\x00")
	fde := func(at int, program string) []byte {
		b := []byte{byte(13 + len(program)), 0, 0, 0, byte(at + 4), byte((at + 4) >> 8), 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0}
		return append(b, program...)
	}
	data := slices.Clone(cie)
	for i, p := range []string{
		"\x41\x0e\x10\x86\x02\x0a\x44\x0d\x06\x0a\x44\x0b\x0b\xc6",                 // remember twice, restore twice, restore rbp
		"\x02\x80\x0e\x10\x00\x00\x42\x42\x0e\x18\x2e\x10\x44\x2e\x00",             // nops within, advances in succession, the arguments' size
		"\x44\x0f\x02\x77\x08\x44\x0d\x07\x44\x10\x03\x02\x76\x08",                 // behind an expression, register and offset again
		"\x03\x00\x01\x12\x07\x7e\x04\x00\x01\x00\x00\x13\x02\x05\x0d\x02\x06\x0d", // long advances, negative offsets
		"\x44\x0b", // nothing to restore: damaged
		"\x41\x0e\x10\x86\x02\x0a\x44\x0d\x06\x0a\x44\x0b\x0b\xc6", "",
	} {
		b := fde(len(data), p)
		b[8], b[9], b[10] = byte(i), byte(i*3), 1
		data = append(data, b...)
	}
	data = append(data, 0, 0, 0, 0)
	x := &takenApart{in: dwarf.Sections{Machine: arch.AMD64, AddrSize: 8, EHFrame: []dwarf.Section{{Name: ".eh_frame", Addr: 0x400000, Data: data}}}}
	if err := x.read(); err != nil {
		t.Fatal(err)
	}
	if x.fdes != 7 {
		t.Fatalf("%d FDEs, want 7", x.fdes)
	}
	ref, damage := x.frames.Build(dwarf.EHFrame)
	if len(damage) != 1 {
		t.Fatalf("damage %v, want one", damage)
	}
	for _, f := range forms {
		dicts, section := f.pack(x)
		y, err := x.unpackForm(&f, dicts, section)
		if err != nil {
			t.Errorf("%s: %v", f.name, err)
			continue
		}
		if f.name == "rules" {
			continue // it remembers a state, so that the damaged one restores it
		}
		got, gotDamage := y.frames.Build(dwarf.EHFrame)
		if len(gotDamage) != 1 || text(got) != text(ref) {
			t.Errorf("%s: damage %v\n got %s\nwant %s", f.name, gotDamage, text(got), text(ref))
		}
	}
}

func text(t *rows.Table) string {
	var b strings.Builder
	for _, r := range t.Rows {
		s := &t.Sets[r.Set]
		fmt.Fprintf(&b, "%x %s", uint64(r.Lo), s.CFACell(t.Machine))
		for i := range s.Rules {
			fmt.Fprintf(&b, " %d=%s", s.Rules[i].Of, s.Rules[i].Cell(t.Machine))
		}
		b.WriteString("\n")
	}
	return b.String()
}
