package dwarf

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// readelf is a judge of the rows and of how rows spells cells. It says "u" also for a register without a rule,
// and of an expression only that it is one: "exp", "vexp".

// readelfText prints a Set as readelf -wF does, without the cells that are "u".
func readelfText(s *rows.Set, m *arch.Machine) string {
	cells := []string{s.CFACell(m)}
	switch s.CFA.Kind {
	case rows.CFANone:
		cells[0] = "none"
	case rows.CFARegDeref, rows.CFAPLT, rows.CFAExpr:
		cells[0] = "exp"
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		cell := r.Cell(m)
		switch r.Kind {
		case rows.Undefined:
			continue
		case rows.RegDeref, rows.Expr:
			cell = "exp"
		case rows.RegOffset, rows.ValExpr:
			cell = "vexp"
		}
		cells = append(cells, readelfReg(m, r.Of, s.RA)+"="+cell)
	}
	return strings.Join(cells, " ")
}

func readelfReg(m *arch.Machine, r, ra arch.Reg) string {
	if r == ra {
		return "ra"
	}
	return m.RegName(r)
}

var (
	readelfEntry = regexp.MustCompile(`^([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ (CIE|FDE)(?: cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+))?`)
	readelfRow   = regexp.MustCompile(`^[0-9a-f]{16} |^[0-9a-f]{8} +[^ Z]`)
	readelfRule  = regexp.MustCompile(`r[0-9]+ \(([a-z0-9]+)\)`) // "r1 (rdx)", which the header has no room for
)

// askReadelf runs readelf -wF over one kind of section.
func askReadelf(path string, which Which) (*judged, error) {
	section := map[Which]string{EHFrame: ".eh_frame", DebugFrame: ".debug_frame"}[which]
	c := exec.Command("readelf", "-wNF", path) // N: not the separate debug file
	c.Env = append(os.Environ(), "LC_ALL=C")
	out, err := c.Output()
	if err != nil {
		return nil, err
	}
	j := &judged{ids: map[string]uint32{}, spell: readelfText}
	cies := map[string]uint32{} // the text of a CIE's row, by its offset
	here, cie := false, ""
	var columns []string
	sc := bufio.NewScanner(bytes.NewReader(out))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if name, ok := strings.CutPrefix(line, "Contents of the "); ok {
			here = strings.HasPrefix(name, section+" ")
		}
		if !here {
			continue
		}
		if m := readelfEntry.FindStringSubmatch(line); m != nil {
			if cie = ""; m[2] == "CIE" {
				cie = m[1]
				cies[cie] = j.intern([]byte("none"))
				continue
			}
			lo, err1 := strconv.ParseUint(m[4], 16, 64)
			hi, err2 := strconv.ParseUint(m[5], 16, 64)
			text, ok := cies[m[3]]
			if err1 != nil || err2 != nil || !ok {
				return nil, fmt.Errorf("cannot make sense of %q", line)
			}
			// A FDE without instructions has no rows of its own.
			j.fdes = append(j.fdes, judgedFDE{lo: lo, hi: hi, first: len(j.rows), n: 1})
			j.rows = append(j.rows, judgedRow{lo, text})
			continue
		}
		f := strings.Fields(readelfRule.ReplaceAllString(line, "$1"))
		switch {
		case len(f) > 1 && f[0] == "LOC":
			columns = f[1:]
		case readelfRow.MatchString(line) && len(f) == len(columns)+1:
			lo, err := strconv.ParseUint(f[0], 16, 64)
			if err != nil {
				return nil, err
			}
			text := f[1]
			for i, cell := range f[2:] {
				if cell != "u" {
					text += " " + columns[i+1] + "=" + cell
				}
			}
			id := j.intern([]byte(text))
			if cie != "" {
				cies[cie] = id
				continue
			}
			last := &j.fdes[len(j.fdes)-1]
			if last.n == 1 && lo == last.lo {
				j.rows[last.first].text = id
			} else {
				last.n++
				j.rows = append(j.rows, judgedRow{lo, id})
			}
		}
	}
	return j, sc.Err()
}

// readelfFiles are those that are looked at besides some of the machine's, if they are there.
var readelfFiles = []string{libcPath, "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libgcrypt.so.20",
	"/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libgcc_s.so.1"}

// TestReadelf compares every row of some files with readelf's, cell by cell.
func TestReadelf(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "readelf")
	var paths []string
	for _, p := range readelfFiles {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			paths = append(paths, p)
		}
	}
	for _, p := range oracle.Spread(oracle.Binaries(t), 60) {
		if st, err := os.Stat(p); err == nil && st.Size() < 1<<20 && len(paths) < 36 {
			paths = append(paths, p)
		}
	}
	n := 0
	for _, p := range paths {
		n += readelfFile(t, p)
	}
	t.Logf("%d rows of %d files", n, len(paths))
}

// readelfFile compares the rows of one file and returns their number.
func readelfFile(t *testing.T, path string) (n int) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return 0
	}
	defer img.Close()
	f, err := Open(img)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return 0
	}
	for _, which := range []Which{EHFrame, DebugFrame} {
		if len(f.sections(which)) == 0 {
			continue
		}
		x, damage := f.Build(which)
		sound(t, damage)
		j, err := askReadelf(path, which)
		if err != nil {
			t.Errorf("readelf -wF %s: %v", path, err)
			continue
		}
		k, ds := j.compare(x, 5)
		for _, d := range ds {
			t.Errorf("%s: rows of [%#x, %#x)\n got %s\nwant %s", filepath.Base(path), d.lo, d.hi, d.got, d.want)
		}
		n += k
	}
	return n
}
