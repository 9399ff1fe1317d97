package names

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// TestKernelBrought: the kernel's names come with a recording to another kernel, and those of code that a process made to where it is gone.
func TestKernelBrought(t *testing.T) {
	from := New(Options{})
	from.Collect()
	from.collect(madeBy(-1), false, []uint64{1<<63 + 5}, []profile.Name{{Func: "do_it", Start: 1 << 63}})
	from.collect(madeBy(7), false, []uint64{5}, []profile.Name{{Func: "seven"}})
	from.collect(madeBy(7), false, []uint64{6}, []profile.Name{{Func: "six"}})
	from.collect(&unwind.Module{Path: "/a", BuildID: "0123456789"}, false, []uint64{5}, []profile.Name{{Func: "a"}})
	to := New(Options{Recorded: true, KernelRelease: "0.0"})
	if err := to.Import(from.Export()); err != nil {
		t.Fatal(err)
	}
	var names [3]profile.Name
	to.Kernel([]uint64{1<<63 + 5}, names[:1])
	to.User(&unwind.Module{PID: 7}, []uint64{5, 6}, names[1:])
	if names[0].Func != "do_it" || names[1].Func != "seven" || names[2].Func != "six" {
		t.Errorf("%+v", names)
	}
	names = [3]profile.Name{}
	to.User(&unwind.Module{PID: 8}, []uint64{5, 6}, names[1:])
	to.User(&unwind.Module{Path: "/nowhere/b", BuildID: "0123456789"}, []uint64{5}, names[:1])
	if names[0].Func != "a" || names[1].Func != "" || names[2].Func != "" {
		t.Errorf("%+v", names)
	}
}

// TestKeptNames: what is written is read again, whatever is damaged is nothing, and the oldest goes first.
func TestKeptNames(t *testing.T) {
	oracle.Long(t)
	k := &keptModule{path: "/a", id: "0123456789", at: map[uint64]profile.Name{
		5:  {Func: "f(int)", Linkage: "_Z1fi", Start: 1, Source: []profile.Source{{Func: "g", File: "/a.c", Line: 3, Column: 4}, {File: "/b.c", Line: 1 << 31}}},
		90: {Func: "f(int)", Linkage: "_Z1fi", Start: 1}, 1 << 60: {Func: "h", Module: "[x]"}}}
	good := encodeKept([]*keptModule{k, {path: "/b", id: "ff", at: map[uint64]profile.Name{}}})
	got, err := decodeKept(good)
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], k) {
		t.Fatalf("%+v, %v; want %+v", got, err, k)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x21
		if _, err := decodeKept(bad); err == nil {
			t.Errorf("byte %d damaged: not noticed", i)
		}
		if _, err := decodeKept(good[:i]); err == nil {
			t.Errorf("cut to %d bytes: not noticed", i)
		}
	}
	// More modules, places, lines or strings than there may be; all would be read if their bytes were their only bound.
	uv := binary.AppendUvarint
	for what, parts := range map[string][3]any{
		"modules": {[]byte{1, 0}, 1 << 20, []byte{0, 0, 0}}, "places": {[]byte{1, 0, 1, 0, 0}, 3 << 20, []byte{1, 0, 0, 0, 0, 0}},
		"lines": {[]byte{1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0}, 5 << 20, []byte{0, 0, 0, 0, 0}}, "strings": {[]byte{}, 1<<25 + 1, []byte{0}},
	} {
		n := parts[1].(int)
		b := append(make([]byte, 12), parts[0].([]byte)...)
		b = append(uv(b, uint64(n)), bytes.Repeat(parts[2].([]byte), n)...)
		if what == "strings" {
			b = append(b, 0)
		}
		if _, err := decodeKept(sealKept(b)); err == nil {
			t.Errorf("%d %s were read", n, what)
		}
	}
	many := &keptModule{path: "/m", id: "ff", at: map[uint64]profile.Name{}} // as those of several processes together
	for i := range uint64(maxKeptPlaces + 5) {
		many.at[i] = profile.Name{Func: "f"}
	}
	if got, err := decodeKept(encodeKept([]*keptModule{many, k})); err != nil || len(got) != 2 || len(got[0].at) != len(many.at) || !reflect.DeepEqual(got[1], k) {
		t.Errorf("more than %d places: %v", maxKeptPlaces, err)
	}
	// What others can change is for its own path only.
	a, b := &unwind.Module{Path: "/a", BuildID: "0123456789"}, &unwind.Module{Path: "/tmp/forged", BuildID: "0123456789"}
	if keptName(a, true) != keptName(b, true) || keptName(a, false) == keptName(b, false) || keptName(b, false) == keptName(a, true) {
		t.Errorf("%s, %s, %s", keptName(a, true), keptName(a, false), keptName(b, false))
	}
	for _, id := range []string{"", "another", "../../../etc", "0123", strings.Repeat("ab", 65)} {
		if name := keptName(&unwind.Module{Path: "/a", BuildID: id}, true); name != "" {
			t.Errorf("build ID %q has a file, %s", id, name)
		}
	}
	dir := t.TempDir()
	for i := range 5 {
		path := filepath.Join(dir, fmt.Sprint(keptPrefix, i))
		kept.Write(path, good)
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		os.Chtimes(path, at, at)
	}
	kept.Write(filepath.Join(dir, keptPrefix+"one"), encodeKept([]*keptModule{k}))
	if m := loadKept(filepath.Join(dir, keptPrefix+"one")); m == nil || !reflect.DeepEqual(m, k) {
		t.Errorf("%+v", m)
	}
	kept.Prune(dir, keptPrefix, int64(len(good))*3)
	left, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(left) != 3 || !strings.HasSuffix(left[0], "3") || !strings.HasSuffix(left[2], "one") {
		t.Errorf("left: %v", left)
	}
}

func FuzzKeptNames(f *testing.F) {
	f.Add(encodeKept([]*keptModule{{path: "/a", id: "01", at: map[uint64]profile.Name{5: {Func: "f", Source: []profile.Source{{Line: 3}}}}}})[12:])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealKept(append(make([]byte, 12), b...))
		if mods, err := decodeKept(b); err == nil {
			again, err := decodeKept(encodeKept(mods))
			if err != nil || !reflect.DeepEqual(again, mods) {
				t.Errorf("%+v, %v; want %+v", again, err, mods)
			}
		}
	})
}
