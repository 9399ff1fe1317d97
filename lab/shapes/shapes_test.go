package shapes

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

var all = os.Getenv("UNSPOOL_SHAPES") == "all"

// only are the shape and the build of UNSPOOL_SHAPES=SHAPE,BUILD.
var only = func() []string {
	if s := os.Getenv("UNSPOOL_SHAPES"); strings.Contains(s, ",") {
		return strings.SplitN(s, ",", 2)
	}
	return nil
}()

// A tally counts the walks of one shape, build and source.
type tally struct {
	shape, build, source           string
	walks, whole, right, explained int
}

func TestMain(m *testing.M) {
	var err error
	if made, err = os.MkdirTemp("", "shapes"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(made)
	os.Exit(code)
}

// TestShapes walks each shape in each build, a few of them unless UNSPOOL_SHAPES=all.
func TestShapes(t *testing.T) {
	oracle.Need(t, "gdb")
	var files []string
	for _, pattern := range []string{"testdata/*.c", "testdata/*.cc", "testdata/*.rs", "testdata/*/*.go"} {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatalf("Glob(%s) = %q, %v, want sources", pattern, some, err)
		}
		files = append(files, some...)
	}
	var mu sync.Mutex
	var tallies []tally
	used := make([]int, len(permitted)+len(seldom))
	agreed := map[string]bool{}
	t.Run("", func(t *testing.T) {
		for i, file := range files {
			s := readShape(t, file)
			for _, b := range s.builds(i) {
				t.Run(s.name+"/"+b.name, func(t *testing.T) {
					t.Parallel()
					ts, gdb := walks(t, s, b, &mu, used)
					mu.Lock()
					defer mu.Unlock()
					tallies = append(tallies, ts...)
					agreed[s.name] = agreed[s.name] || gdb || s.gdb || s.runs
				})
			}
		}
	})
	t.Log(table(tallies))
	for name, ok := range agreed {
		if !ok && only == nil {
			t.Errorf("%s: gdb never finds the chain that is said to be true", name)
		}
	}
	for i, n := range used[:len(permitted)] {
		if n == 0 && all {
			t.Errorf("permitted, but matches nothing: %+v", permitted[i])
		}
	}
}

// builds returns the builds that are to be walked of shape i.
func (s *shape) builds(i int) (out []*build) {
	want := func(b *build) bool { return true }
	switch {
	case only != nil:
		want = func(b *build) bool {
			return regexp.MustCompile("^("+only[0]+")$").MatchString(s.name) && regexp.MustCompile("^("+only[1]+")$").MatchString(b.name)
		}
	case !all:
		var chosen []string
		musl := func(name string) bool { return strings.HasPrefix(name, "musl") }
		for k := range few {
			if len(chosen) > 0 && !musl(chosen[0]) {
				break
			}
			list := few[(i+k)%len(few)]
			// The next one in turn that the shape takes.
			for n := range list {
				b := byName(list[(i/len(few)+n)%len(list)])
				if s.takes(b) && (len(chosen) == 0 || !musl(b.name)) {
					chosen = append(chosen, b.name)
					break
				}
			}
		}
		want = func(b *build) bool {
			// Of another language than C, the first.
			return slices.Contains(chosen, b.name) || len(chosen) == 0 && len(out) < 1
		}
	}
	for k := range builds {
		if b := &builds[k]; s.takes(b) && want(b) {
			out = append(out, b)
		}
	}
	return out
}

func byName(name string) *build {
	for _, list := range [][]build{builds, cross} {
		if i := slices.IndexFunc(list, func(b build) bool { return b.name == name }); i >= 0 {
			return &list[i]
		}
	}
	panic(name + ": no build")
}

// walks walks one shape in one build.
func walks(t *testing.T, s *shape, b *build, mu *sync.Mutex, used []int) (out []tally, gdb bool) {
	dir := t.TempDir()
	p := b.make(t, s, dir)
	ws := p.walks(t, s, b, dir)
	return judge(t, s, b, ws, mu, used)
}

// judge holds walks against the shape's chains and what is permitted, and counts them.
func judge(t *testing.T, s *shape, b *build, ws []walk, mu *sync.Mutex, used []int) (out []tally, gdb bool) {
	t.Helper()
	wrong := map[string]int{}
	for _, w := range ws {
		right := s.right(b, w)
		gdb = gdb || w.source == "gdb" && right
		i := slices.IndexFunc(out, func(x tally) bool { return x.source == w.source })
		if i < 0 {
			i, out = len(out), append(out, tally{shape: s.name, build: b.name, source: w.source})
		}
		x := &out[i]
		x.walks++
		if w.stop == "outermost" {
			x.whole++
		}
		switch {
		case right && (w.stop == "outermost" || w.source == "gdb"):
			x.right++
		case w.source == "gdb":
		case explained(s, b, w, mu, used):
			x.explained++
		default:
			wrong[w.String()]++
		}
	}
	t.Cleanup(func() { // at the end of the log, behind its table
		for w, n := range wrong {
			t.Errorf("%s, %s: %d × %s\nwant ^%s$", s.name, b.name, n, w, s.chains(b))
		}
	})
	return out, gdb
}

// walks walks a program in all ways that there are.
func (p *program) walks(t *testing.T, s *shape, b *build, dir string) (out []walk) {
	how := []string{"--", p.path}
	if !s.runs {
		pid := fmt.Sprint(p.start(t))
		for range 5 {
			out = append(out, p.stack(t, "live", pid)...)
		}
		core := filepath.Join(dir, "core")
		for range looks(b) {
			seen := p.core(t, pid, core)
			out = append(out, seen...)
			if s.gdb || slices.ContainsFunc(seen, func(w walk) bool { return s.right(b, w) }) {
				break
			}
		}
		out = append(out, p.stack(t, "core", core, p.path)...)
		how = []string{"-p", pid, "--duration", "200ms"}
	}
	for _, source := range []string{"perf", "ebpf", "ptrace"} {
		if s.wait {
			break
		}
		got := p.record(t, source, how...)
		if len(got) == 0 {
			t.Errorf("%s: no samples", source)
		}
		out = append(out, got...)
	}
	return out
}

// looks says how often gdb may look for a chain: it has no rules for a few places where a shape's program runs now and then. Where more builds of
// the shape are walked, once is enough.
func looks(b *build) int {
	if all || strings.HasPrefix(b.name, "musl") {
		return 1
	}
	return 8
}

// explained looks for the walk among those that are permitted.
func explained(s *shape, b *build, w walk, mu *sync.Mutex, used []int) bool {
	for i, e := range slices.Concat(permitted, seldom) {
		match := func(pattern, name string) bool { return regexp.MustCompile("^(?:" + pattern + ")$").MatchString(name) }
		if !match(e.shapes, s.name) || !match(e.builds, b.name) || !match(e.sources, w.source) || !match(e.stop, w.stop) {
			continue
		}
		for _, x := range s.truth {
			// What stands for the truth is the chain without what calls its outermost function.
			inner := strings.TrimSuffix(strings.TrimSuffix(x.chain, pattern("START")), pattern("THREAD"))
			if match(strings.ReplaceAll(pattern(e.chain), pattern("TRUTH"), "(?:"+inner+")"), w.chain) {
				mu.Lock()
				used[i]++
				mu.Unlock()
				return true
			}
		}
	}
	return false
}

// table prints what was counted: in a full run, of each build; else, of each shape.
func table(ts []tally) string {
	sums := map[[3]string]*tally{}
	var keys [][3]string
	sum := func(x tally, shape, build, source string) {
		k := [3]string{shape, build, source}
		if sums[k] == nil {
			sums[k] = &tally{shape: shape, build: build, source: source}
			keys = append(keys, k)
		}
		s := sums[k]
		s.walks, s.whole, s.right, s.explained = s.walks+x.walks, s.whole+x.whole, s.right+x.right, s.explained+x.explained
	}
	for _, x := range ts {
		build := "any"
		if all || only != nil {
			build = x.build
		}
		sum(x, x.shape, build, x.source)
		sum(x, "~ all", "any", x.source)
	}
	slices.SortFunc(keys, func(a, b [3]string) int { return slices.Compare(a[:], b[:]) })
	var out strings.Builder
	fmt.Fprintf(&out, "\n%-12s %-28s %-7s %8s %8s %8s %9s\n", "shape", "build", "source", "walks", "whole", "right", "explained")
	for _, k := range keys {
		s := sums[k]
		whole := fmt.Sprint(s.whole)
		if s.source == "gdb" {
			whole = "" // it does not say
		}
		fmt.Fprintf(&out, "%-12s %-28s %-7s %8d %8s %8d %9d\n", s.shape, s.build, s.source, s.walks, whole, s.right, s.explained)
	}
	return out.String()
}
