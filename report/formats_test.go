package report

import (
	"slices"
	"strings"
	"testing"
)

// TestFormats: each format writes something, says what it is for, and is the only one with its name and its endings; a longer ending goes
// before a shorter one that it contains.
func TestFormats(t *testing.T) {
	names, endings := map[string]bool{}, map[string]bool{}
	for i := range Formats {
		f := &Formats[i]
		if f.Name == "" || f.About == "" || f.Whole == nil && f.Stream == nil || names[f.Name] || Formats.Named(f.Name) != f {
			t.Errorf("%+v", f)
		}
		names[f.Name] = true
		if f.Text && (f.Whole == nil || f.Binary || f.Private) {
			t.Errorf("%s is text for people, but has single samples only, is binary or private: %+v", f.Name, f)
		}
		for _, e := range f.Endings {
			if !strings.HasPrefix(e, ".") || endings[e] {
				t.Errorf("%s: ending %q", f.Name, e)
			}
			endings[e] = true
			if got := Formats.ByEnding("dir/x" + e); got != f {
				t.Errorf("x%s is %v, not %s", e, got, f.Name)
			}
		}
	}
	if got := Formats.PrivateEndings(); got != ".perf, .json, .jsonl or .stacks.json" {
		t.Errorf("PrivateEndings() = %q", got)
	}
	for _, path := range []string{"", "x", "x.data", "svg", "x.svg.old"} {
		if f := Formats.ByEnding(path); f != nil {
			t.Errorf("%q is %s", path, f.Name)
		}
	}
}

// TestUses: Format.Uses names exactly the options that change a report.
func TestUses(t *testing.T) {
	_, r := load(t, "testdata/basic.txtar")
	p := r.profile()
	write := func(f *Format, o Options) string {
		var b strings.Builder
		if f.Whole != nil {
			if err := f.Whole(&b, p, o); err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			return b.String()
		}
		s := f.Stream(&b, r, r.info, o)
		if err := s.Close(r.info.Loss); err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		return b.String()
	}
	for option, o := range map[string]Options{
		"icicle": {Icicle: true}, "summary": {Summary: true}, "function": {Func: "malloc"}, "sort": {Total: true, Func: "."}, "limit": {Limit: 1},
	} {
		users, without := Formats.Using(option), Options{}
		if option == "sort" {
			without.Func = o.Func // functions without weight of their own have an order, too
		}
		for i := range Formats {
			f := &Formats[i]
			if changed := write(f, o) != write(f, without); changed != slices.Contains(users, f.Name) {
				t.Errorf("--%s changes %s: %v; its users are %q", option, f.Name, changed, users)
			}
		}
	}
}

// TestChoose: the name, then the ending, then the fallback.
func TestChoose(t *testing.T) {
	for _, c := range []struct{ name, path, want, err string }{
		{"flame", "x.json", "flame", ""}, {"", "x.svg", "flame", ""}, {"", "x.stacks.json", "stacks", ""}, {"", "", "top", ""}, {"", "-", "top", ""},
		{"", "x.xyz", "", "no format has the ending of \"x.xyz\": use .txt .folded "}, {"flam", "x.svg", "", "--format is top, tree, "},
	} {
		f, err := Formats.Choose(c.name, c.path, "top")
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("Choose(%q, %q): %v, want %q", c.name, c.path, err, c.err)
			}
		} else if err != nil || f.Name != c.want {
			t.Errorf("Choose(%q, %q) = %+v, %v; want %s", c.name, c.path, f, err, c.want)
		}
	}
}
