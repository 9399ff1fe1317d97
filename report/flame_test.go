package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// flameData returns the JSON in a flame graph. It fails where the file is not well-formed XML or needs another file.
func flameData(t testing.TB, b []byte) []byte {
	t.Helper()
	var data []byte
	d := xml.NewDecoder(bytes.NewReader(b))
	in := false
	for {
		tok, err := d.Token()
		if err == io.EOF {
			return data
		}
		if err != nil {
			t.Fatalf("the flame graph is no XML: %v", err)
		}
		switch x := tok.(type) {
		case xml.StartElement:
			in = false
			for _, a := range x.Attr {
				in = in || a.Name.Local == "id" && a.Value == "data"
				if a.Name.Local == "src" || a.Name.Local == "href" {
					t.Errorf("<%s %s=%q> needs another file", x.Name.Local, a.Name.Local, a.Value)
				}
				if strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("<%s> has a handler %s", x.Name.Local, a.Name.Local)
				}
			}
		case xml.EndElement:
			in = false
		case xml.CharData:
			if in {
				data = append(data, x...)
			}
		}
	}
}

// A decodedFlame is what the script sees.
type decodedFlame struct {
	Lines   []string
	Modules []string
	Names   [][]any
	Frames  [][2]int
	Nodes   []uint64
}

func decodeFlame(t testing.TB, b []byte) (f decodedFlame) {
	t.Helper()
	if err := json.Unmarshal(flameData(t, b), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// each calls f with every stack that ends at a node with a weight of its own, the root first.
func (f *decodedFlame) each(yield func(n uint64, names []string)) {
	var path []string
	for i := 0; i+2 < len(f.Nodes); i += 3 {
		depth := int(f.Nodes[i+1])
		path = append(path[:depth], f.Names[f.Frames[f.Nodes[i]][0]][0].(string))
		if n := f.Nodes[i+2]; n > 0 {
			yield(n, path)
		}
	}
}

// countsOfFlame counts functions: what lies above the root, the thread and a mark.
func countsOfFlame(t *testing.T, b []byte) counts {
	f := decodeFlame(t, b)
	c := counts{}
	f.each(func(n uint64, path []string) {
		path = path[2:]
		if len(path) > 0 && (path[0] == "[truncated]" || path[0] == "[broken]") {
			path = path[1:]
		}
		var names []string
		for i := len(path) - 1; i >= 0; i-- {
			names = append(names, path[i])
		}
		c.add(n, names)
	})
	return c
}

// manyStacks is a profile of n random stacks of functions with unpleasant names.
func manyStacks(n int) *profile.Profile {
	r := rand.New(rand.NewPCG(7, 7))
	nasty := []string{"</script>", "]]>", "<!--", "\"'`&amp;", "a;b", "\x00\x1b[31m", "\xff\xfe", "\uffff", "${x}", "operator<=>", strings.Repeat("x", 9000), "日本語", ""}
	p := &profile.Profile{Modules: []profile.Module{{Path: "[kernel]", Kernel: true}, {}, {Path: "/usr/lib/<script>.so"}}}
	for i := range 400 {
		p.Funcs = append(p.Funcs, profile.Func{Name: nasty[i%len(nasty)] + fmt.Sprint(i), Module: int32(i % 3), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Addr: uint64(i), Off: uint64(i), Func: int32(i), Module: int32(i % 3), Mapping: -1})
	}
	for range n {
		s := profile.Stack{Comm: nasty[r.IntN(3)], Stop: unwind.Stop(r.IntN(int(unwind.NumStops))), Count: 1 + uint64(r.IntN(9)), Period: 1}
		for d := range 1 + r.IntN(40) {
			s.Frames = append(s.Frames, uint32(r.IntN(min(400, 3+d*d))))
		}
		p.Stacks = append(p.Stacks, s)
		p.Totals.Samples += s.Count
		p.Totals.Stops[s.Stop] += s.Count
	}
	return p
}

// However hostile the names, the file is XML, and nothing in it ends a script early.
func TestFlameHostile(t *testing.T) {
	p := manyStacks(300)
	p.Events = []profile.Event{{Name: "x", Unit: "</title></g><script>"}}
	var b bytes.Buffer
	if err := Flame(&b, p, Options{By: Periods}); err != nil {
		t.Fatal(err)
	}
	f := decodeFlame(t, b.Bytes())
	if len(f.Nodes) == 0 {
		t.Fatalf("no frames in %d bytes:\n%s", b.Len(), b.Bytes())
	}
	if n := bytes.Count(b.Bytes(), []byte("</script>")); n != 2 {
		t.Errorf("%d ends of scripts, want 2", n)
	}
	if n := bytes.Count(b.Bytes(), []byte("]]>")); n != 2 {
		t.Errorf("%d ends of CDATA, want 2", n)
	}
}

// A large profile makes a file that a browser opens at once, and loses no weight.
func TestFlameLarge(t *testing.T) {
	oracle.Long(t)
	p := manyStacks(60_000)
	var b bytes.Buffer
	if err := Flame(&b, p, Options{}); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 4<<20 {
		t.Errorf("%d bytes", b.Len())
	}
	f := decodeFlame(t, b.Bytes())
	sum := uint64(0)
	f.each(func(n uint64, _ []string) { sum += n })
	if sum != p.Totals.Samples {
		t.Errorf("%d samples, want %d", sum, p.Totals.Samples)
	}
	if all := strings.Join(f.Lines, "\n"); !strings.Contains(all, "not shown one by one") {
		t.Errorf("it does not say what is hidden:\n%s", all)
	}
}

// The script's questions are answered by node, and compared with what is plain from the data.
func TestFlameScript(t *testing.T) {
	oracle.Need(t, "node")
	_, r := load(t, "testdata/basic.txtar")
	svg := outputs(t, r)["flame"]
	dir := t.TempDir()
	data := filepath.Join(dir, "data.json")
	if err := os.WriteFile(data, flameData(t, svg), 0o666); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "flame.js")
	if err := os.WriteFile(script, []byte(flameScript()), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "testdata/flame_test.js", script, data)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
