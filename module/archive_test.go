package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestArchive: archives of each kind that llvm-ar and ar write have the members that were put into them.
func TestArchive(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "ar", "llvm-ar-19")
	dir := t.TempDir()
	names := []string{"a.o", "a name with spaces.o", "fifteen-chars.o", "sixteen--chars.o", strings.Repeat("long", 40) + ".o", "odd.o"}
	for i, name := range names {
		b := append(small(i%2 == 0, binary.LittleEndian), make([]byte, i)...)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what string
		args []string
	}{
		{"gnu", []string{"ar", "rcs"}},
		{"twice", []string{"ar", "qc"}},
		{"thin", []string{"ar", "rcsT"}},
		{"llvm-gnu", []string{"llvm-ar-19", "--format=gnu", "rcS"}},
		{"llvm-thin", []string{"llvm-ar-19", "--format=gnu", "--thin", "rcS"}},
		{"bsd", []string{"llvm-ar-19", "--format=bsd", "rcS"}},
		{"darwin", []string{"llvm-ar-19", "--format=darwin", "rcS"}},
		{"coff", []string{"llvm-ar-19", "--format=coff", "rcS"}},
	} {
		lib := filepath.Join(dir, c.what+".a")
		in := slices.Clone(names)
		if c.what == "twice" {
			in = append(in, "a.o")
		}
		cmd := exec.Command(c.args[0], append(append(slices.Clone(c.args[1:]), lib), in...)...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c.what, err, out)
		}
		a, err := OpenArchive(lib)
		if err != nil || !IsArchive(lib) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		list, err := a.Members()
		if err != nil || len(list) != len(in) {
			t.Errorf("%s: %d members, %v, want %d", c.what, len(list), err, len(in))
			continue
		}
		for i, m := range list {
			want := in[i]
			if i == len(names) {
				want = "a.o#2"
			}
			b, _ := os.ReadFile(filepath.Join(dir, in[i]))
			img, err := a.Open(m)
			if err != nil || m.Name != want || !a.IsImage(m) {
				t.Errorf("%s: member %d is %q, %v, want %q", c.what, i, m.Name, err, want)
				continue
			}
			if i%2 == 1 {
				img.Close()
				img, err = OpenMember(lib + "(" + want + ")")
				if err != nil {
					t.Errorf("%s: %v", c.what, err)
					continue
				}
			}
			// Formats may pad a member at its end.
			if got := img.Bytes(); !bytes.HasPrefix(got, b) || len(got) > len(b)+8 || img.Name() != lib+"("+want+")" || img.File() == nil {
				t.Errorf("%s: %s has %d bytes, want %d", c.what, img.Name(), len(got), len(b))
			}
			defer img.Close() // after the archive
			defer exercise(img)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if _, err := OpenMember(lib + "(none.o)"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a member that is not there: %v", c.what, err)
		}
	}
	if _, err := OpenArchive(filepath.Join(dir, "a.o")); !errors.Is(err, ErrFormat) || IsArchive(filepath.Join(dir, "a.o")) || IsArchive(dir) {
		t.Errorf("an object: %v", err)
	}
	for _, name := range []string{"", ")", "(", "()", dir + "(a.o)", dir + "/a.o(a.o)", dir + "/none.a(a.o)"} {
		if _, err := OpenMember(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OpenMember(%q): %v", name, err)
		}
	}
}

// TestThinOwner: a thin archive leads only where its owner may read.
func TestThinOwner(t *testing.T) {
	if os.Getuid() != 0 {
		oracle.Lacks(t, "root")
	}
	dir := t.TempDir()
	lib, secret := filepath.Join(dir, "x.a"), filepath.Join(dir, "secret.o")
	if err := errors.Join(os.WriteFile(secret, seeds()[0], 0o600), os.WriteFile(lib, []byte(thinMagic+header("secret.o/", 64)), 0o644), os.Chown(lib, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMember(lib + "(secret.o)"); err == nil || !strings.Contains(err.Error(), "user 65534, whose archive names it, may not read it") {
		t.Errorf("%v", err)
	}
}

// header returns a member's header.
func header(name string, size int) string { return fmt.Sprintf("%-16s%-32s%-10d`\n", name, "0", size) }

// TestDamagedArchive: what is wrong with an archive has an offset; the members before are there.
func TestDamagedArchive(t *testing.T) {
	good := header("a/", 3) + "abc\n"
	for _, c := range []struct {
		what, b, err string
		members      int
	}{
		{"empty", "", "", 0},
		{"padding", good + "\n\n\n", "", 1},
		{"header cut", good + header("b/", 0)[:59], `x.a+0x48: archive: header of a member: truncated`, 1},
		{"size", good + strings.Replace(header("b/", 77), "77", "7x", 1), `x.a+0x78: archive: a member's size "7x        ": malformed`, 1},
		{"negative size", good + strings.Replace(header("b/", 77), "77", "-7", 1), `x.a+0x78: archive: a member's size "-7        ": malformed`, 1},
		{"end of header", good + strings.Replace(header("b/", 0), "`", "'", 1), `x.a+0x48: archive: a member's header ends with "'\n": malformed`, 1},
		{"contents cut", good + header("b/", 4) + "abc", `x.a+0x48: archive: a member of 4 bytes, of which 3 are there: truncated`, 1},
		{"no long names", good + header("/7", 0), `x.a+0x48: archive: no name at "7" of 0 bytes of names: malformed`, 1},
		{"long name outside", good + header("//", 2) + "a\n" + header("/2", 0), `x.a+0x86: archive: no name at "2" of 2 bytes of names: malformed`, 1},
		{"long name without end", header("//", 2) + "ab" + header("/1", 0), "", 1},
		{"BSD name outside", header("#1/5", 4) + "abcd", `x.a+0x8: archive: a name of "5" bytes in a member of 4: malformed`, 0},
		{"tables", header("/", 2) + "ab" + header("__.SYMDEF", 2) + "ab" + header("#1/12", 12) + "__.SYMDEF\x00\x00\x00" + good, "", 1},
	} {
		a, err := newArchive("x.a", []byte(archiveMagic+c.b))
		if err != nil {
			t.Fatal(err)
		}
		list, err := a.Members()
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != c.err || len(list) != c.members {
			t.Errorf("%s: %d members, %s, want %d, %s", c.what, len(list), text, c.members, c.err)
		}
	}
	// Names are made unlike each other, whatever members are called.
	b := archiveMagic
	for _, name := range []string{"a.o", "a.o", "a.o#2", "a.o#3", "a.o", "a.o#2"} {
		b += header(name+"/", 0)
	}
	a, _ := newArchive("x.a", []byte(b))
	var names []string
	list, err := a.Members()
	for _, m := range list {
		names = append(names, m.Name)
	}
	if want := []string{"a.o", "a.o#2", "a.o#2#2", "a.o#3", "a.o#4", "a.o#2#3"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v, want %q", names, err, want)
	}
	a, _ = newArchive("x.a", []byte(archiveMagic+header("a\x1b[31m/", 0)))
	if list, err := a.Members(); err != nil || len(list) != 1 || strings.Contains(list[0].Name, "\x1b") {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestDamagedMember: a member that damage may have lost is not said to be missing.
func TestDamagedMember(t *testing.T) {
	object := string(small(true, binary.LittleEndian))
	path := filepath.Join(t.TempDir(), "x.a")
	if err := os.WriteFile(path, []byte(archiveMagic+header("a.o/", len(object))+object+header("b.o/", len(object))), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := OpenMember(path + "(a.o)")
	if err != nil {
		t.Fatal(err)
	}
	img.Close()
	for range 2 { // the second time, the members are known
		if _, err := OpenMember(path + "(b.o)"); !errors.Is(err, ErrTruncated) {
			t.Errorf("a truncated member: %v", err)
		}
	}
}

// TestSparseArchive: a member's holes are no contents.
func TestSparseArchive(t *testing.T) {
	const size = 1 << 30
	e := synth{is64: true, order: binary.LittleEndian, typ: elf.ET_DYN, machine: elf.EM_X86_64,
		secs: []synthSection{{name: ".text", typ: elf.SHT_PROGBITS, data: make([]byte, 48)}}}
	object := e.bytes()
	binary.LittleEndian.PutUint64(object[binary.LittleEndian.Uint64(object[40:])+64+32:], size-4096) // of the section
	a, err := OpenArchive(hole(t, []byte(archiveMagic+header("a.o/", size)+string(object)), size+68))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	list, err := a.Members()
	if err != nil || len(list) != 1 || list[0].Size != size {
		t.Fatalf("Members = %+v, %v, want one of %d bytes", list, err, size)
	}
	img, err := a.Open(list[0])
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if b, err := img.Data(img.Section(".text")); err == nil || img.Reach() > 2*maxHoles {
		t.Errorf("%d bytes of a hole; ranges of %d", len(b), img.Reach())
	}
}

// TestArchivesOfMachine: members are those that ar lists.
func TestArchivesOfMachine(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "ar")
	var paths []string
	for _, pattern := range []string{"/usr/lib/*/*.a", "/usr/lib/gcc*/*/*/*.a", "/usr/*/lib/*.a"} {
		more, _ := filepath.Glob(pattern)
		paths = append(paths, more...)
	}
	slices.Sort(paths)
	archives, members := 0, 0
	for _, path := range oracle.Spread(paths, oracle.Few(20, 1000)) {
		if !IsArchive(path) {
			continue // a linker's script
		}
		out, err := exec.Command("ar", "t", path).Output()
		if err != nil {
			continue
		}
		a, err := OpenArchive(path)
		if err != nil {
			t.Error(err)
			continue
		}
		list, err := a.Members()
		var got strings.Builder
		for _, m := range list {
			name, _, _ := strings.Cut(m.Name, "#")
			got.WriteString(name + "\n")
		}
		if err != nil || got.String() != string(out) {
			t.Errorf("%s: %v\n got %s\nwant %s", path, err, got.String(), out)
		}
		a.Close()
		archives, members = archives+1, members+len(list)
	}
	t.Logf("%d members of %d archives", members, archives)
}

// FuzzArchive reads arbitrary archives, and each member that is an image.
func FuzzArchive(f *testing.F) {
	object := string(seeds()[0])
	f.Add([]byte(archiveMagic + header("/", 2) + "ab" + header("a.o/", len(object)) + object))
	f.Add([]byte(archiveMagic + header("//", 8) + "long.o/\n" + header("/0", len(object)) + object))
	f.Add([]byte(archiveMagic + header("#1/4", 4+len(object)) + "a.o\x00" + object + header("b.o", 1) + "x\n"))
	f.Add([]byte(thinMagic + header("//", 6) + "../x/\n" + header("/0", 123) + header("y.o/", 1)))
	f.Add(universal([]byte(archiveMagic+header("a.o/", len(object))+object), smallMachO(true, binary.LittleEndian, mhObject)))
	f.Fuzz(func(t *testing.T, b []byte) {
		began := time.Now()
		a, err := newArchive("x.a", b)
		if err != nil {
			return
		}
		list, _ := a.Members()
		if len(list) > len(b)/memberHeader {
			t.Fatalf("%d members in %d bytes", len(list), len(b))
		}
		for i, m := range list {
			if !a.thin && (m.Off > uint64(len(b)) || m.Size > uint64(len(b))-m.Off) {
				t.Fatalf("%+v in %d bytes", m, len(b))
			}
			if img, err := a.Open(m); err == nil && i < 10 {
				exercise(img)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%v for %d bytes", took, len(b))
		}
	})
}

// TestPrograms: a universal file is an archive of its programs and of what its static libraries contain. A program that is not there, or that lies in
// another one, costs itself only.
func TestPrograms(t *testing.T) {
	x64 := smallMachO(true, binary.LittleEndian, mhObject)
	arm := bytes.Clone(x64)
	arm[4] = cpuARM
	lib := func(o []byte) []byte {
		h := fmt.Sprintf("%-16s%-32s%-10d`\n", "a.o/", "", len(o))
		return append([]byte(archiveMagic+h), o...)
	}
	// The header of an archive has no processor: that of its object.
	fat := universal(x64, arm, x64)
	libs := universal(append(bytes.Clone(x64[:12]), lib(x64)...), append(bytes.Clone(arm[:12]), lib(arm)...))
	for i := range 2 { // behind what named the processors
		entry := libs[8+20*i:]
		binary.BigEndian.PutUint32(entry[8:], binary.BigEndian.Uint32(entry[8:])+12)
		binary.BigEndian.PutUint32(entry[12:], binary.BigEndian.Uint32(entry[12:])-12)
	}
	at := func(b []byte, i int) uint32 { return binary.BigEndian.Uint32(b[8+20*i+8:]) } // where a program is
	far, twice, cut := bytes.Clone(fat), bytes.Clone(fat), bytes.Clone(libs)
	binary.BigEndian.PutUint32(far[8+20+12:], 1<<31)
	binary.BigEndian.PutUint32(twice[8+20+8:], 0x108)
	cut[at(cut, 0)+uint32(len(archiveMagic))+59] = 'x'
	for _, c := range []struct {
		b      []byte
		want   string
		damage string
	}{
		{fat, "x86_64 arm64 x86_64#2 ", ""},
		{libs, "x86_64:a.o arm64:a.o ", ""},
		{far, "x86_64 x86_64#2 ", fmt.Sprintf("f+%#x: program arm64: 0x80000000 bytes: truncated", at(fat, 1))},
		{twice, "x86_64 x86_64#2 ", "f+0x108: program arm64: " + fmt.Sprintf("%#x", len(arm)) + " bytes, of which another has some: malformed"},
		{cut, "arm64:a.o ", fmt.Sprintf("f+%#x: program x86_64: archive: a member's header ends with \"`x\": malformed", at(libs, 0)+8)},
	} {
		a, err := newArchive("f", c.b)
		if err != nil {
			t.Fatal(err)
		}
		list, err := a.Members()
		got := ""
		for _, m := range list {
			got += m.Name + " "
			img, err := a.Open(m)
			if err != nil || !a.IsImage(m) {
				t.Fatalf("%s: %v", m.Name, err)
			}
			if want, _, _ := strings.Cut(m.Name, ":"); img.Machine().ELF == arch.EM_AARCH64 != (want == "arm64") || img.Name() != "f("+m.Name+")" {
				t.Errorf("%s is %s, for %s", m.Name, img.Name(), img.Machine().Name)
			}
		}
		if said := fmt.Sprint(err); got != c.want || said != c.damage && (err != nil || c.damage != "") {
			t.Errorf("%s\n%v\nwant\n%s\n%s", got, err, c.want, c.damage)
		}
	}
	if _, err := newArchive("f", []byte("\xca\xfe\xba\xbe\x00\x00\x00\x37 and a class of Java")); !errors.Is(err, ErrFormat) {
		t.Errorf("a class of Java: %v", err)
	}
}
