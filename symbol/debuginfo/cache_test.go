package debuginfo

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// manyUnits returns a file with a build ID and n units, 0x1000 bytes of code each.
func manyUnits(t testing.TB, n int) *module.Image { return manyUnitsOf(t, n, "unitunit") }

// manyUnitsOf is manyUnits with a build ID of 8 bytes.
func manyUnitsOf(t testing.TB, n int, id string) *module.Image {
	var info []byte
	for i := range n {
		info = append(info, unit4(uleb(1), u64(uint64(0x1000*i)), u64(0x1000), u32(1<<20), uleb(2), u64(uint64(0x1000*i)), u64(0x1000), u32(0), []byte{0, 0})...)
	}
	path := filepath.Join(t.TempDir(), "units")
	if err := os.WriteFile(path, elfFile(map[string][]byte{".debug_info": info, ".debug_abbrev": synthAbbrevs,
		".note.gnu.build-id": cat(u32(4), u32(8), u32(3), []byte("GNU\x00"+id))}), 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := module.Open(path)
	if err != nil || img.BuildID() == nil {
		t.Fatal("no build ID", err)
	}
	t.Cleanup(func() { img.Close() })
	if !img.File().Private {
		t.Skip("this test lacks a temporary directory that is this user's and root's alone")
	}
	return img
}

// TestCache keeps an index, and finds the same with it, without it, and with one that is damaged in any byte.
func TestCache(t *testing.T) {
	defer func(d time.Duration) { settled = d }(settled)
	settled = 0
	img := manyUnits(t, 100)
	dir := t.TempDir()
	look := func(dir string) []span {
		in, err := Open(img, Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		return in.units()
	}
	want := look("")
	if len(want) != 100 || want[99] != (span{99 * 0x1000, 100 * 0x1000, want[99].id}) {
		t.Fatalf("index %v", want)
	}
	if got := look(dir); !reflect.DeepEqual(got, want) {
		t.Errorf("built: %v, want %v", got, want)
	}
	path := filepath.Join(dir, "units-756e6974756e6974")
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("in the cache: %v", names)
	}
	in, _ := Open(img, Options{CacheDir: dir})
	if got, ok := in.loadIndex(); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("kept: %v, %v, want %v", got, ok, want)
	}
	for i := range kept {
		bad := bytes.Clone(kept)
		bad[i] ^= 0x40
		if _, ok := decodeIndex(bad, in.cacheKey()); ok {
			t.Errorf("byte %d damaged: not noticed", i)
		}
		if _, ok := decodeIndex(kept[:i], in.cacheKey()); ok {
			t.Errorf("cut to %d bytes: not noticed", i)
		}
	}
	if err := os.WriteFile(path, kept[:len(kept)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := look(dir); !reflect.DeepEqual(got, want) {
		t.Errorf("with a damaged file: %v, want %v", got, want)
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, kept) {
		t.Errorf("the damaged file was not written again (%v)", err)
	}
	// The same build ID, as after dwz, with other sections.
	other, _ := Open(manyUnits(t, 99), Options{CacheDir: dir})
	if got := other.units(); len(got) != 99 {
		t.Errorf("another file with this build ID: %d ranges", len(got))
	}
	// The same bytes but for one unit's address, in a file of another user: it neither finds nor leaves anything.
	b, _ := os.ReadFile(img.Name())
	forged := filepath.Join(t.TempDir(), "forged")
	at := bytes.Index(b, u64(0x5000))
	b[at+2]++
	os.WriteFile(forged, b, 0o666)
	os.Chmod(forged, 0o666)
	theirs, err := module.Open(forged)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	before, _ := os.ReadFile(path)
	in, _ = Open(theirs, Options{CacheDir: dir})
	if got := in.units(); reflect.DeepEqual(got, want) {
		t.Errorf("another user's file, in which one address differs, has the index of ours, of %d ranges", len(got))
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
		t.Errorf("another user's file has left its index in %s: %d bytes, %d before", path, len(after), len(before))
	}
	if got := look(filepath.Join(dir, "missing")); !reflect.DeepEqual(got, want) {
		t.Errorf("without a directory: %v, want %v", got, want)
	}
}

// TestCacheBounded: the indexes of all files together take no more than they may; those of the files that were read last stay.
func TestCacheBounded(t *testing.T) {
	defer func(d time.Duration, n int64) { settled, maxCacheAll = d, n }(settled, maxCacheAll)
	settled = 0
	one := int64(cacheHead + 100*cacheRange)
	maxCacheAll = 3 * one
	dir := t.TempDir()
	for i := range 10 {
		in, err := Open(manyUnitsOf(t, 100, fmt.Sprintf("unit%04d", i)), Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(in.units()); n != 100 {
			t.Fatalf("file %d: %d ranges", i, n)
		}
		in.Close()
		at := time.Now().Add(time.Duration(i-100) * time.Second)
		os.Chtimes(filepath.Join(dir, fmt.Sprintf("%s%x", cachePrefix, fmt.Sprintf("unit%04d", i))), at, at)
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"units-756e697430303037", "units-756e697430303038", "units-756e697430303039"}
	if !reflect.DeepEqual(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}

func FuzzCache(f *testing.F) {
	key := make([]byte, cacheKeyLen)
	f.Add(encodeIndex([]span{{1, 2, 3}, {4, 8, 3}}, key))
	f.Fuzz(func(t *testing.T, b []byte) {
		spans, ok := decodeIndex(b, key)
		if ok && !bytes.Equal(encodeIndex(spans, key)[16:], b[16:]) {
			t.Errorf("decodeIndex(%x) = %v", b, spans)
		}
	})
}

// TestForget reads more than is kept: answers stay the same.
func TestForget(t *testing.T) {
	in, err := Open(manyUnits(t, 100), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var addrs []arch.Vaddr
	for i := range 100 {
		addrs = append(addrs, arch.Vaddr(i*0x1000+8))
	}
	want := in.Places(addrs)
	for range 3 {
		in.grow(maxSize)
		if got := in.Places(addrs); !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if in.size > maxSize {
		t.Errorf("%d bytes kept", in.size)
	}
}
