package names

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
)

// cached returns modules that keep what they find in dir.
func cached(t *testing.T, dir string) *modules.Set {
	t.Helper()
	os.Chmod(dir, 0o700)
	t.Setenv("UNSPOOL_CACHE", dir)
	t.Setenv("DEBUGINFOD_URLS", "")
	mods, err := modules.ByName("compact")
	if err != nil || mods.CacheDir() == "" {
		t.Fatalf("no cache: %v", err)
	}
	return mods
}

// TestAnswers: a second report has the names and lines of the first without looking for them. They are found anew where a debug file comes or goes,
// or where what was kept is damaged, and are not kept of a file that others can change.
func TestAnswers(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	oracle.Need(t, "objcopy")
	oracle.Need(t, "strip")
	dir, cache := t.TempDir(), t.TempDir()
	path, debug := filepath.Join(dir, "a"), filepath.Join(dir, "debug")
	command := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	text := "static inline int __attribute__((always_inline)) in(int a) { return a * a + 5; }\n" +
		"int __attribute__((noinline)) f(int a) { return in(a) + 1; }\nint main(int n, char **v) { return f(n); }\n"
	if err := os.WriteFile(path+".c", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command("gcc", "-g", "-O1", "-Wl,--build-id", "-o", path, path+".c")
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(img.BuildID())
	symbols := symbol.New(symbol.Options{})
	lo, hi, ok := symbols.Module(path, "").FuncRange("f")
	at, found := img.VaddrToOff(lo)
	symbols.Close()
	img.Close()
	if !ok || !found {
		t.Fatalf("f of %s is at %#x: FuncRange %v, VaddrToOff %v; want true", path, lo, ok, found)
	}
	var offs []uint64
	for off := at; off < at+uint64(hi-lo); off++ {
		offs = append(offs, off)
	}
	command("objcopy", "--only-keep-debug", path, path+".debug")
	command("strip", path)
	// Files become younger by a change, and not by that of a directory around them.
	for away, mode := range map[string]os.FileMode{"good": 0o644, "open": 0o666} {
		link := filepath.Join(dir, away, ".build-id", id[:2], id[2:]+".debug")
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		command("cp", path+".debug", link)
		os.Chmod(link, mode)
	}
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(2100 * time.Millisecond) // nothing is kept of younger files

	file := "" // where the last answers are kept
	// name returns names, how many were looked for, and how many files were read.
	name := func(lines bool) (names []profile.Name, looked, read int) {
		t.Helper()
		mods := cached(t, cache)
		mods.Files = &module.Locator{DebugDirs: []string{debug}}
		n := New(Options{Mods: mods, Recorded: true})
		n.Lines = lines
		names = make([]profile.Name, len(offs))
		m := mods.Module(path, id)
		half := make([]profile.Name, len(offs)/2)
		n.User(m, offs[:len(half)], half)
		n.User(m, offs, names)
		if !reflect.DeepEqual(names[:len(half)], half) {
			t.Errorf("asked for twice: %+v, then %+v", half, names[:len(half)])
		}
		looked = n.learned
		for _, a := range n.answers {
			file = a.path
			if a.had != nil {
				read++
			}
		}
		if err := errors.Join(n.Close(), mods.Close()); err != nil {
			t.Error(err)
		}
		return names, looked, read
	}
	// same is name, twice: what is found, and what was kept.
	same := func(what string, lines bool) []profile.Name {
		t.Helper()
		names, looked, read := name(lines)
		again, relooked, reread := name(lines)
		if looked == 0 || read != 0 || relooked != 0 || reread != 1 {
			t.Errorf("%s: looked for %d and %d, read %d and %d files", what, looked, relooked, read, reread)
		}
		if !reflect.DeepEqual(names, again) {
			t.Errorf("%s: found\n%+v\nkept\n%+v", what, names, again)
		}
		return names
	}
	for _, n := range same("stripped", true) {
		if n.Func != "" || n.Start != at || n.Source != nil {
			t.Fatalf("stripped: %+v", n)
		}
	}
	move("good", "debug")
	inlined, all := 0, same("debug file", true)
	for _, n := range all {
		if n.Func != "f" || n.Start != at || len(n.Source) == 0 {
			t.Errorf("with a debug file: %+v", n)
		}
		if len(n.Source) == 2 && n.Source[0].Func == "in" && n.Source[0].Line == 1 && n.Source[1].Line == 2 {
			inlined++
		}
	}
	if inlined == 0 {
		t.Errorf("none of %d addresses of f has an inlined call of in at line 1; want one or more; the first has %+v", len(all), all[:min(1, len(all))])
	}
	for _, n := range same("no lines", false) {
		if n.Func != "f" || n.Source != nil {
			t.Errorf("without lines: %+v", n)
		}
	}
	want, _, _ := name(true)

	kept := file
	if all, _ := filepath.Glob(filepath.Join(cache, answersPrefix+id+"-*-lines")); len(all) != 2 || !slices.Contains(all, kept) {
		t.Fatalf("kept with a debug file, and without it: %q", all)
	}
	good, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(good); i += 1 + len(good)/60 {
		for _, bad := range [][]byte{append(append(slices.Clone(good[:i]), good[i]^0x21), good[i+1:]...), good[:i]} {
			if err := os.WriteFile(kept, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if names, _, read := name(true); read != 0 || !reflect.DeepEqual(names, want) {
				t.Errorf("damaged at byte %d: read %d files:\n%+v", i, read, names)
			}
		}
	}
	move("debug", "good")
	if names, looked, read := name(true); names[0].Func != "" || looked != 0 || read != 1 {
		t.Errorf("without its debug file, as before there was one: looked for %d, read %d files: %+v", looked, read, names[0])
	}
	move("open", "debug")
	if names, looked, read := name(true); !reflect.DeepEqual(names, want) || looked != 0 || read != 0 {
		t.Errorf("others can change the debug file: kept %d, read %d: %+v", looked, read, names)
	}
}

// TestAnswersCost: kept names of a large library cost next to nothing: no name is made anew, no symbol is read.
func TestAnswersCost(t *testing.T) {
	oracle.Long(t)
	paths, _ := filepath.Glob("/usr/lib/*-linux-gnu/libc.so.6")
	if len(paths) == 0 {
		oracle.Lacks(t, "a libc.so.6 where Debian has it")
	}
	img, err := module.Open(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if len(img.BuildID()) == 0 || !img.File().Private {
		oracle.Lacks(t, "a libc.so.6 with a build ID, which nobody else can change")
	}
	var offs []uint64
	img.Symbols(func(s module.Symbol) bool {
		if off, ok := img.VaddrToOff(s.Value); ok && s.Kind == module.Func && s.Section.Defined() {
			offs = append(offs, off)
		}
		return true
	})
	slices.Sort(offs)
	offs = slices.Compact(offs)
	cache := t.TempDir()
	var names [2][]profile.Name
	var allocs [2]uint64
	for i := range names {
		mods := cached(t, cache)
		n := New(Options{Mods: mods, Recorded: true})
		n.Lines = true
		m := mods.Module(paths[0], hex.EncodeToString(img.BuildID()))
		names[i] = make([]profile.Name, len(offs))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n.User(m, offs, names[i])
		runtime.ReadMemStats(&after)
		allocs[i] = after.Mallocs - before.Mallocs
		if err := errors.Join(n.Close(), mods.Close()); err != nil {
			t.Error(err)
		}
	}
	if !reflect.DeepEqual(names[0], names[1]) {
		i := 0
		for i < len(offs)-1 && reflect.DeepEqual(names[0][i], names[1][i]) {
			i++
		}
		t.Errorf("of %d kept names, that of offset %#x is another: %+v, want %+v", len(offs), offs[i], names[1][i], names[0][i])
	}
	t.Logf("%d offsets: %d allocations, then %d", len(offs), allocs[0], allocs[1])
	// One at a time, as streams ask.
	mods := cached(t, cache)
	n := New(Options{Mods: mods, Recorded: true})
	n.Lines = true
	m, one, at := mods.Module(paths[0], hex.EncodeToString(img.BuildID())), make([]profile.Name, 1), 0
	single := testing.AllocsPerRun(1000, func() { n.User(m, offs[at:at+1], one); at++ })
	if err := errors.Join(n.Close(), mods.Close()); err != nil {
		t.Error(err)
	}
	if single > 4 {
		t.Errorf("%v allocations for one offset", single)
	}
	if len(offs) < 1000 || allocs[1] > 300+uint64(len(offs))/20 || allocs[0] < 4*allocs[1] {
		t.Errorf("%d offsets: %d allocations without kept names, %d with them", len(offs), allocs[0], allocs[1])
	}
}

// TestAnswersText: names with too much text are not written, and making their file stops there.
func TestAnswersText(t *testing.T) {
	oracle.Long(t)
	var all []answer
	for i := range 64 {
		all = append(all, answer{uint64(i), &profile.Name{Func: strings.Repeat(string(rune('!'+i)), 1<<20)}})
	}
	var id [32]byte
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := encodeAnswers(all, &id)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; b != nil || took > 8*maxAnswers {
		t.Errorf("64 MiB of names: a file of %d bytes, made with %d bytes of memory", len(b), took)
	}
	b = encodeAnswers(all[:15], &id)
	if x := readAnswers(b, &id); x == nil {
		t.Errorf("15 MiB of names: a file of %d bytes, which cannot be read", len(b))
	} else if x.places != 15 {
		t.Errorf("15 MiB of names: a file of %d bytes with %d names, want 15", len(b), x.places)
	}
	n := New(Options{})
	defer n.Close()
	a := &answers{}
	for range 3 {
		names := make([]profile.Name, len(all))
		for i := range all {
			names[i] = *all[i].name
		}
		n.learn(a, make([]uint64, len(all)), names)
	}
	if len(a.new) != 1 {
		t.Errorf("%d times 64 MiB of names are held", len(a.new))
	}
}

// FuzzAnswers: no file of the cache does harm, and what is written is read again.
func FuzzAnswers(f *testing.F) {
	id := [32]byte{1}
	f.Add(encodeAnswers([]answer{
		{9, &profile.Name{Start: 8}}, {5, &profile.Name{Func: "f()", Linkage: "_Z1f", Start: 4, Source: []profile.Source{{Line: 3, File: "a"}, {Func: "g"}}}},
	}, &id)[48:])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(append([]byte(answersMagic), make([]byte, 8)...), append(id[:], b...)...)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
		x := readAnswers(b, &id)
		if x == nil {
			return
		}
		at, room := map[uint64]profile.Name{}, sourceRoom{}
		var all []answer
		for i := range x.places {
			name := x.name(i, &room)
			at[x.off(i)] = name
			all = append(all, answer{x.off(i), &name})
		}
		if len(at) != x.places {
			t.Fatalf("%d places, of which %d are different", x.places, len(at))
		}
		slices.Reverse(all)
		y := readAnswers(encodeAnswers(all, &id), &id)
		offs := slices.Sorted(maps.Keys(at))
		names := make([]profile.Name, len(offs))
		if missing := (&answers{had: y}).fill(offs, names); len(missing) > 0 {
			t.Fatalf("%d of %d are missing", len(missing), len(offs))
		}
		for i, off := range offs {
			if !reflect.DeepEqual(names[i], at[off]) {
				t.Errorf("%+v, want %+v", names[i], at[off])
			}
		}
	})
}
