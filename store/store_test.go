package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// shell is the image of a program that every machine has.
func shell(t testing.TB) *module.Image {
	t.Helper()
	img, err := module.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func get(t *testing.T, s *Store, want Origin) *compact.Table {
	t.Helper()
	table, from, err := s.Table(shell(t))
	if err != nil || table == nil {
		t.Fatalf("Table: %v, %v", table, err)
	}
	if from != want {
		t.Fatalf("Table: from %v, want %v", from, want)
	}
	return table
}

// onlyFile returns the path of the one file in dir, links apart.
func onlyFile(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	list = slices.DeleteFunc(list, func(e os.DirEntry) bool { return e.Type()&os.ModeSymlink != 0 })
	if err != nil || len(list) != 1 {
		t.Fatalf("the cache holds %v, %v; want one file", list, err)
	}
	return filepath.Join(dir, list[0].Name())
}

func open2(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBounded: all tables and links on disk have a bound together. Those go that were not used for longest, and nothing of others in the directory.
func TestBounded(t *testing.T) {
	was := maxKept
	t.Cleanup(func() { maxKept = was })
	dir := t.TempDir()
	get(t, open2(t, dir), Built)
	used := onlyFile(t, dir)
	st, err := os.Stat(used)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	os.Chtimes(used, old, old)
	maxKept = st.Size() + 320<<10
	put := func(name string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, 8<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(path, old.Add(time.Hour), old.Add(time.Hour))
	}
	for i := range 100 {
		put(fmt.Sprintf("%040x-own-key.%d", i, compact.Version))
		if err := os.Symlink("nothing", filepath.Join(dir, fmt.Sprintf("at-%x.%d", i, compact.Version))); err != nil {
			t.Fatal(err)
		}
	}
	put("names-of-others")
	get(t, open2(t, dir), Disk) // the oldest is used
	s := open2(t, dir)
	for i := range 200 { // distinct build IDs without end
		if err := s.save(fmt.Sprintf("%040x-any-key.%d", 1000+i, compact.Version), make([]byte, 4<<10)); err != nil {
			t.Fatal(err)
		}
		var total int64
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if st, err := e.Info(); err == nil && e.Name() != "names-of-others" {
				total += st.Size() + fileCost
			}
		}
		if most := maxKept + maxKept/32 + 8<<10; total > most {
			t.Fatalf("after %d files: %d bytes, at most %d", i+1, total, most)
		}
		if i != 59 { // these and the used one are within the bound
			continue
		}
		for _, path := range []string{used, filepath.Join(dir, "names-of-others"), filepath.Join(dir, fmt.Sprintf("%040x-any-key.%d", 1000, compact.Version))} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("gone: %v", err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("%030d*-own-key.*", 0))); len(left) > 0 {
			t.Errorf("not used, and left: %d", len(left))
		}
	}
}

// TestOldVersions puts what an earlier version has kept of a module into the cache: it is passed over, and gone when the new table is there.
func TestOldVersions(t *testing.T) {
	dir := t.TempDir()
	get(t, open2(t, dir), Built)
	now := onlyFile(t, dir)
	stem, ok := strings.CutSuffix(now, fmt.Sprint(compact.Version))
	if !ok {
		t.Fatalf("%s does not end in the version", now)
	}
	old, other := stem+"1", filepath.Join(dir, "of-another-module.1")
	if err := os.Rename(now, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	get(t, open2(t, dir), Built)
	if _, err := os.Lstat(old); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v, want it replaced", old, err)
	}
	if _, err := os.Lstat(now); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(other); err != nil {
		t.Errorf("a table of another module: %v", err)
	}
	get(t, open2(t, dir), Disk)
}

func TestKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "cache")
	s := open2(t, dir)
	built := get(t, s, Built)
	get(t, s, Memory)
	mapped := get(t, open2(t, dir), Disk)
	if built.Stats() != mapped.Stats() {
		t.Errorf("built %+v, mapped %+v", built.Stats(), mapped.Stats())
	}
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v; want 0700", st.Mode(), err)
	}
	// What came from disk is proven as what was built.
	img := shell(t)
	f, err := format.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Rows()
	if err := compact.Verify(mapped, ref, 2); err != nil {
		t.Error(err)
	}
}

// TestMemory: what takes more memory than it may is not made, and says so; what is on disk is used. Others are made one after another.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	s := open2(t, dir)
	s.Memory = 1 << 10
	if table, from, err := s.Table(shell(t)); table != nil || from != Memory && from != None || !errors.Is(err, ErrMemory) {
		t.Errorf("%v, from %v, %v; want ErrMemory", table, from, err)
	}
	get(t, open2(t, dir), Built)
	s = open2(t, dir)
	s.Memory = 1 << 10
	get(t, s, Disk)
	s = open2(t, t.TempDir())
	s.Memory = 1 << 30
	get(t, s, Built)
	if s.making != 0 {
		t.Errorf("making tables takes %d bytes in the end", s.making)
	}
}

// TestTogether: tables are made at the same time while that takes no more than it may, and what takes more is made alone.
func TestTogether(t *testing.T) {
	s := &Store{Memory: 1 << 20, Together: 100 * makeCost}
	begin := func(size uint64) (begun chan func()) {
		begun = make(chan func(), 1)
		go func() {
			end, err := s.begin(func() *format.Unwind {
				return &format.Unwind{Sources: []format.Source{{Name: ".eh_frame", Size: size}, {Name: format.PCLNTab, Size: 1 << 40, Spare: true}}}
			})
			if err != nil {
				t.Error(err)
			}
			begun <- end
		}()
		return begun
	}
	waits := func(begun chan func()) {
		t.Helper()
		select {
		case <-begun:
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("making a table did not wait, although all together may take %d bytes; now it takes %d", s.Together, s.making)
		case <-time.After(20 * time.Millisecond):
		}
	}
	first, second := <-begin(60), <-begin(40)
	third := begin(1)
	waits(third)
	first()
	end := <-third
	large := begin(1000)
	waits(large)
	second()
	waits(large)
	end()
	end = <-large
	fourth := begin(1)
	waits(fourth)
	end()
	(<-fourth)()
	if s.making != 0 {
		t.Errorf("making tables takes %d bytes in the end", s.making)
	}
	if _, err := s.begin(func() *format.Unwind {
		return &format.Unwind{Sources: []format.Source{{Name: ".eh_frame", Size: 1 << 20}}}
	}); !errors.Is(err, ErrMemory) {
		t.Errorf("%v, want ErrMemory", err)
	}
}

// A table is found by its module's build ID alone, when the file is gone; not by a part of it, nor by what is not its table.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	built := get(t, open2(t, dir), Built)
	path := onlyFile(t, dir)
	s, id := open2(t, dir), shell(t).ID()
	if kept := s.Kept(id); kept == nil || kept.Stats() != built.Stats() || s.Stats().Mapped != 1 {
		t.Errorf("the table was not found: %v, %+v", kept, s.Stats())
	}
	for _, none := range []string{"", id[:8], id + "00", "..", "/", "*"} {
		if s.Kept(none) != nil {
			t.Errorf("%q found a table", none)
		}
	}
	if kept := (&Store{}).Kept(id); kept != nil {
		t.Errorf("a store that keeps nothing found a table of %s: %d bytes; want none", id, len(kept.Bytes()))
	}
	if s.Kept(id); s.Stats().Mapped != 1 {
		t.Errorf("the table was mapped again: %+v", s.Stats())
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := open2(t, dir); s.Kept(id) != nil || s.Stats().Rejected != 1 {
		t.Errorf("what is no table was taken, %+v", s.Stats())
	}
}

// TestSparse: a file in a table's place that is long, and has nothing in it, takes no memory.
func TestSparse(t *testing.T) {
	for _, size := range []int64{3 << 30, 1 << 40} {
		dir := t.TempDir()
		get(t, open2(t, dir), Built)
		if err := os.Truncate(onlyFile(t, dir), size); err != nil {
			t.Skipf("this test lacks a file system for a sparse file: %v", err)
		}
		s := open2(t, dir)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		get(t, s, Built)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; s.Stats().Rejected != 1 || took > 1<<30 {
			t.Errorf("%d bytes: rejected %d files, want 1; it took %d bytes of memory", size, s.Stats().Rejected, took)
		}
	}
}

// Every flipped byte, every truncation and a foreign table are noticed, and the table is made again.
func TestTampered(t *testing.T) {
	dir := t.TempDir()
	get(t, open2(t, dir), Built)
	path := onlyFile(t, dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(path)
	for i := 0; i < len(good); i += 1 + len(good)/997 {
		b := bytes.Clone(good)
		b[i] ^= 1 << (i % 8)
		if _, err := open(b, name); err == nil {
			t.Errorf("byte %d of %d changed, and nothing noticed", i, len(good))
		}
		if i >= trailerSize {
			if _, err := open(good[:i], name); err == nil {
				t.Errorf("truncated to %d of %d, and nothing noticed", i, len(good))
			}
		}
	}
	if got, err := open(seal(good[:len(good)-trailerSize-len(name)], "another"), name); err == nil {
		t.Errorf("the table of another module, of %d bytes, was taken for that of %s; want an error", len(got.Bytes()), name)
	}
	for _, bad := range [][]byte{nil, []byte("x"), good[:len(good)/2], bytes.Repeat([]byte{0xff}, len(good))} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		s := open2(t, dir)
		get(t, s, Built)
		if s.Stats().Rejected != 1 {
			t.Errorf("%d bytes: rejected %d files, want 1", len(bad), s.Stats().Rejected)
		}
		get(t, open2(t, dir), Disk)
	}
	// A link in the file's place is not followed.
	os.Remove(path)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	get(t, open2(t, dir), Built)
}

func TestUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	own := t.TempDir()
	os.Chmod(own, 0o700)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(shared, "below") // others can put another in its place
	for _, dir := range []string{file, filepath.Join(file, "below"), shared, below, link, "/proc/unspool"} {
		s, err := Open(dir)
		if err == nil {
			t.Errorf("Open(%s) gave no error", dir)
		}
		had := get(t, s, Built)
		get(t, s, Memory)
		runtime.KeepAlive(had)
	}
}

// TestLetGo: what nobody has is let go, and is on disk when it is wanted again; what somebody has stays, and is given out again.
func TestLetGo(t *testing.T) {
	dir := t.TempDir()
	s := open2(t, dir)
	get(t, s, Built)
	collect := func() {
		for range 3 {
			runtime.GC()
		}
	}
	collect()
	had := get(t, s, Disk)
	collect()
	if now := get(t, s, Memory); now != had {
		t.Errorf("two tables of one module: %p, and %p before; %+v", now, had, s.Stats())
	}
	code := getNative(t, s, walking, Built)
	mapped := func() (n int) {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(b, []byte("r-xp"))
	}
	with := mapped()
	collect()
	if _, ok := code.Find(0); ok || mapped() != with {
		t.Errorf("machine code that somebody has: found at 0 %v; %d mappings, and %d before", ok, mapped(), with)
	}
	runtime.KeepAlive(code)
	code = nil
	for deadline := time.Now().Add(10 * time.Second); mapped() >= with && time.Now().Before(deadline); {
		collect() // and what unmaps it runs on a goroutine of its own
	}
	if now := mapped(); now >= with {
		t.Errorf("machine code that nobody has: %d mappings, and %d before", now, with)
	}
	getNative(t, s, walking, Disk)
	// Names of what is gone do not gather either.
	for i := range 3 * minSweep {
		e := entryOf(s, &s.tables, fmt.Sprint("module ", i))
		e.ready.Do(func() { e.some = true; e.done.Store(true) })
	}
	if n := len(s.tables); n > 2*minSweep {
		t.Errorf("%d tables that nobody has are known", n)
	}
	if now := get(t, s, Memory); now != had {
		t.Errorf("table %p, which somebody has, was forgotten: there is %p; %+v", had, now, s.Stats())
	}
}

// A disk without room, and a directory that is gone, are told once and cost nothing else.
func TestFull(t *testing.T) {
	t.Run("removed", func(t *testing.T) {
		dir := t.TempDir()
		s := open2(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		get(t, s, Built)
		if s.Err() == nil || s.Stats().Unkept != 1 {
			t.Errorf("Err() = %v, %+v", s.Err(), s.Stats())
		}
	})
	t.Run("full", func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, "size=4k,mode=700"); err != nil {
			t.Skipf("this test lacks the right to mount a small file system: %v", err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		s := open2(t, dir)
		get(t, s, Built)
		if s.Err() == nil || !strings.Contains(s.Err().Error(), "no space") {
			t.Errorf("Err() = %v, want that there is no space", s.Err())
		}
		if list, _ := os.ReadDir(dir); len(list) != 0 {
			t.Errorf("%v is left behind", list)
		}
	})
}

func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	img := shell(t)
	var wg sync.WaitGroup
	stores := []*Store{open2(t, dir), open2(t, dir)}
	var tables [8]*compact.Table
	for i := range tables {
		wg.Go(func() {
			table, _, err := stores[i%2].Table(img)
			if err != nil || table == nil {
				t.Errorf("Table: %v, %v", table, err)
			}
			tables[i] = table
		})
	}
	wg.Wait()
	for _, s := range stores {
		if n := s.Stats().Built + s.Stats().Mapped; n != 1 {
			t.Errorf("a store made or mapped %d tables, want 1", n)
		}
	}
	runtime.KeepAlive(&tables) // what nobody has is made again
	get(t, open2(t, dir), Disk)
}

func TestNone(t *testing.T) {
	img, err := module.New("none", bareELF())
	if err != nil {
		t.Fatal(err)
	}
	s := open2(t, t.TempDir())
	if table, from, err := s.Table(img); table != nil || from != None || err != nil {
		t.Errorf("Table: %v, %v, %v; want nothing", table, from, err)
	}
}

// bareELF is an ELF header without anything.
func bareELF() []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	b[16], b[18], b[20], b[52] = 3, 62, 1, 64
	return b
}

func FuzzOpen(f *testing.F) {
	b := rows.NewBuilder(arch.AMD64)
	table, err := compact.Emit(rows.Build(b))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seal(table, "name"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= trailerSize {
			open(b, "name")
		}
		open(seal(b, "name"), "name")
	})
}

// BenchmarkTable measures a table from disk and one that is made: the time until the first lookup.
func BenchmarkTable(b *testing.B) {
	img := shell(b)
	dir := b.TempDir()
	b.Run("disk", func(b *testing.B) {
		for b.Loop() {
			s, err := Open(dir)
			if err != nil {
				b.Fatal(err)
			}
			if t, _, err := s.Table(img); t == nil || err != nil {
				b.Fatalf("Table: a table: %v, %v, want a table", t != nil, err)
			}
		}
	})
	b.Run("built", func(b *testing.B) {
		for b.Loop() {
			if t, _, err := new(Store).Table(img); t == nil || err != nil {
				b.Fatalf("Table: a table: %v, %v, want a table", t != nil, err)
			}
		}
	})
}

// TestGo: a Go program without .debug_frame has the table of one that has it, made of its pclntab, and under a name of its own.
func TestGo(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println() }\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	table := func(s *Store, ldflags string) *compact.Table {
		t.Helper()
		path := filepath.Join(dir, "prog"+ldflags)
		cmd := exec.Command("go", "build", "-o", path, "-ldflags="+ldflags, "main.go")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		b, from, err := s.Table(img)
		if b == nil || from != Built || err != nil {
			t.Fatalf("%q: %v, %v, %v", ldflags, b, from, err)
		}
		return b
	}
	s := &Store{}
	whole, stripped := table(s, ""), table(s, "-s")
	for table, want := range map[*compact.Table]rows.Origin{whole: rows.FromDebugFrame, stripped: rows.FromPCLNTab} {
		if got := slices.Collect(table.Origins()); len(got) != 1 || got[0].Origin != want {
			t.Errorf("origins %v, want %s", got, want)
		}
	}
	// In docs/TABLE.md, byte 22 is the origin, bytes 12 to 15 are the checksum.
	a, b := bytes.Clone(whole.Bytes()), bytes.Clone(stripped.Bytes())
	for _, at := range []int{12, 13, 14, 15, 22} {
		a[at], b[at] = 0, 0
	}
	if whole.NumRows() < 5000 || !bytes.Equal(a, b) {
		t.Errorf("%d rows, and stripped %d", whole.NumRows(), stripped.NumRows())
	}
}

// TestFault: where reading a file faults while its table is made, whoever asks next makes the table.
func TestFault(t *testing.T) {
	img, s := shell(t), new(Store)
	faulty := recipe[compact.Table]{
		load: func(string) (*compact.Table, error) { return nil, nil },
		make: func(*format.Unwind) ([]byte, *compact.Table, error) { panic("a page of the file is gone") },
	}
	ask := func(how recipe[compact.Table]) (tab *compact.Table, from Origin, fault any, err error) {
		defer func() { fault = recover() }()
		tab, from, _, err = obtain(s, &s.tables, img, "test", how)
		return tab, from, nil, err
	}
	for range 2 {
		if _, _, fault, _ := ask(faulty); fault != "a page of the file is gone" {
			t.Errorf("the fault is %v", fault)
		}
		if len(s.tables) != 0 {
			t.Errorf("%d entries are left of a table that could not be made", len(s.tables))
		}
	}
	whole := faulty
	whole.make = Build
	if tab, from, fault, err := ask(whole); tab == nil || from != Built || err != nil || fault != nil {
		t.Errorf("made %v, from %v; %v, %v", tab != nil, from, err, fault)
	}
}

// TestWritten: what may have been made of two files, because somebody wrote to the file meanwhile, is not used and not kept.
func TestWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prog")
	put := func(from string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("/bin/sh")
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	s := &Store{dir: t.TempDir()}
	how := recipe[compact.Table]{load: s.load, pack: seal, make: Build}
	written := how
	written.make = func(u *format.Unwind) ([]byte, *compact.Table, error) {
		b, tab, err := Build(u)
		put("/bin/ls")
		return b, tab, err
	}
	tab, from, _, err := obtain(s, &s.tables, img, "test", written)
	kept, _ := filepath.Glob(filepath.Join(s.dir, "*"))
	if tab != nil || from != None || !errors.Is(err, ErrWritten) || len(kept) > 0 || len(s.tables) > 0 {
		t.Errorf("a table %v, from %v, %v; kept %q, %d entries; want none, and that somebody wrote to the file", tab != nil, from, err, kept, len(s.tables))
	}
	now, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if tab, from, _, err := obtain(s, &s.tables, now, "test", how); tab == nil || from != Built || err != nil {
		t.Errorf("of the file as it is now: a table %v, from %v, %v", tab != nil, from, err)
	}
}
