package debuginfo

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// compressedUnits returns the path of a file with a build ID and 1000 units, a named function of 0x1000 bytes each, in a compressed section that is
// large enough to be kept.
func compressedUnits(t testing.TB, name string) string {
	abbrevs := cat(
		abbrevBytes(1, DW_TAG_compile_unit, 1, DW_AT_low_pc, DW_FORM_addr, DW_AT_high_pc, DW_FORM_data8),
		abbrevBytes(2, DW_TAG_subprogram, 0, DW_AT_low_pc, DW_FORM_addr, DW_AT_high_pc, DW_FORM_data8, DW_AT_name, DW_FORM_string), []byte{0})
	var info []byte
	for i := range 1000 {
		at := u64(uint64(0x1000 * i))
		info = append(info, unit4(uleb(1), at, u64(0x1000), uleb(2), at, u64(0x1000), fmt.Appendf(nil, "%s%d\x00", name, i), []byte{0})...)
	}
	var z bytes.Buffer
	z.WriteString("ZLIB")
	z.Write(binary.BigEndian.AppendUint64(nil, uint64(len(info))))
	w, _ := zlib.NewWriterLevel(&z, zlib.NoCompression)
	w.Write(info)
	w.Close()
	if z.Len() < minExpanded {
		t.Fatalf("%d bytes are too few to be kept", z.Len())
	}
	path := filepath.Join(t.TempDir(), "units")
	if err := os.WriteFile(path, elfFile(map[string][]byte{".zdebug_info": z.Bytes(), ".debug_abbrev": abbrevs,
		".note.gnu.build-id": cat(u32(4), u32(8), u32(3), []byte("GNU\x00unitunit"))}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// others says which of the places of addrs are others than are wanted.
func others(addrs []arch.Vaddr, got, want [][]Place) string {
	n, first := 0, ""
	for i, a := range addrs[:min(len(addrs), len(got), len(want))] {
		if !reflect.DeepEqual(got[i], want[i]) {
			if n++; n == 1 {
				first = fmt.Sprintf("; the first is %#x: %+v, want %+v", uint64(a), got[i], want[i])
			}
		}
	}
	return fmt.Sprintf("there are places of %d addresses, want %d; %d have other places%s", len(got), len(want), n, first)
}

// TestExpanded: places are the same without a cache, with an empty one, from a section that is kept, and where what is kept is damaged or of
// another file.
func TestExpanded(t *testing.T) {
	defer func(d time.Duration) { settled = d }(settled)
	settled = 0
	addrs := make([]arch.Vaddr, 1000)
	for i := range addrs {
		addrs[i] = arch.Vaddr(i*0x1000 + 8)
	}
	// open returns the debug information of a file, and what finds its section in the cache.
	open := func(file, dir string) (in *Info, kept func() []byte) {
		t.Helper()
		img, err := module.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		if !img.File().Private {
			t.Skip("this test lacks a temporary directory that is this user's and root's alone")
		}
		if in, err = Open(img, Options{CacheDir: dir}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { in.Close() })
		sec := img.Section(".debug_info")
		return in, func() []byte {
			return in.loadExpanded(filepath.Join(dir, "expanded-756e6974756e6974.zdebug_info"), expandedKey(img, sec))
		}
	}
	places := func(file, dir string) [][]Place {
		t.Helper()
		in, _ := open(file, dir)
		out := in.Places(addrs)
		if notes := in.Notes(); notes != nil {
			t.Errorf("%s", notes)
		}
		return out
	}

	file, dir := compressedUnits(t, "f"), t.TempDir()
	path := filepath.Join(dir, "expanded-756e6974756e6974.zdebug_info")
	want := places(file, "")
	if len(want[999]) != 1 || want[999][0].Name != "f999" {
		t.Fatalf("places %v", want[999])
	}
	if got := places(file, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("with an empty cache, %s", others(addrs, got, want))
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in, kept := open(file, dir)
	if b := kept(); !bytes.Equal(b, in.main.stored(in.main.img.Section(".debug_info"))) {
		t.Errorf("kept are %d bytes, which are not the section", len(b))
	}
	if got := places(file, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("from the cache, %s", others(addrs, got, want))
	}

	key := good[16:expandedHead]
	for i := range good {
		if i > 2*expandedHead && i%997 != 0 {
			continue
		}
		bad := bytes.Clone(good)
		bad[i] ^= 0x40
		if _, ok := checkExpanded(bad, key); ok {
			t.Errorf("byte %d damaged: not noticed", i)
		}
		if _, ok := checkExpanded(good[:i], key); ok {
			t.Errorf("cut to %d bytes: not noticed", i)
		}
	}
	for _, bad := range [][]byte{{}, good[:expandedHead], good[:len(good)/2], append(bytes.Clone(good), 0), bytes.Replace(good, []byte("f500"), []byte("evil"), 1)} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := places(file, dir); !reflect.DeepEqual(got, want) {
			t.Errorf("with %d bytes that are damaged, %s", len(bad), others(addrs, got, want))
		}
		if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, good) {
			t.Errorf("%d bytes that are damaged were not written again (%v)", len(bad), err)
		}
	}

	// Another file with this build ID and of this size.
	other := places(compressedUnits(t, "g"), dir)
	if other[999][0].Name != "g999" {
		t.Errorf("another file with the same build ID: %v", other[999])
	}
	if got := places(file, dir); !reflect.DeepEqual(got, want) {
		t.Errorf("another file with the same build ID has left its section: %s", others(addrs, got, want))
	}
	// A file that others can change neither finds nor leaves anything.
	before, _ := os.ReadFile(path)
	forged := compressedUnits(t, "e")
	os.Chmod(forged, 0o666)
	img, err := module.Open(forged)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	theirs, err := Open(img, Options{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	if got := theirs.Places(addrs); got[999][0].Name != "e999" {
		t.Errorf("a file that others can change: %v", got[999])
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
		t.Errorf("%s, which others can change, has left its section in %s: %d bytes, %d before", forged, path, len(after), len(before))
	}
	if got := places(file, filepath.Join(dir, "missing")); !reflect.DeepEqual(got, want) {
		t.Errorf("without a directory, %s", others(addrs, got, want))
	}
}
