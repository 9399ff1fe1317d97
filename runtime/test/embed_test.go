package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// TestEmbed: a program walks its own stack by the eh_elf file in it, as libgcc does. A file for another memory kind, or for another module, is not taken;
// tools say nothing new of the copy.
func TestEmbed(t *testing.T) {
	oracle.Need(t, "gcc", "readelf")
	prog := compile(t, "gcc", "embed.c", "-std=gnu11", "-O2", "-Wl,--build-id")
	img, err := module.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	ref, id := tableOf(t, img)
	embed := func(o native.Options) []byte {
		t.Helper()
		code, err := native.Emit(ref, o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := native.Embed(img.Bytes(), code)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := native.Embed(b, code); err == nil {
			t.Errorf("%+v: %d bytes of machine code are embedded a second time in a file of %d bytes, without an error", o, len(code), len(b))
		}
		return b
	}
	says := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(path, "100").CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if out, _ := exec.Command("readelf", "-aW", path).CombinedOutput(); bytes.Contains(bytes.ToLower(out), []byte("warning")) {
			t.Errorf("%s: readelf: %s", name, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, l := range layouts {
		b := embed(native.Options{Layout: l, Deref: native.Self, ID: id})
		// check, 101 times deep, main, and what called it, where libc begins, which has no file.
		if got := says(l.String(), b); got != "1 modules, 104 frames" {
			t.Errorf("layout %v: %s", l, got)
		}
		at := bytes.LastIndex(b, []byte("\x7fELF"))
		b[at+300] ^= 1
		if got := says("damaged", b); got != "0 modules, 1 frames" {
			t.Errorf("layout %v, damaged: %s", l, got)
		}
	}
	for name, o := range map[string]native.Options{"slice": {Deref: native.Slice, ID: id}, "other": {Deref: native.Self, ID: strings.Repeat("ab", len(id)/2)}} {
		if got := says(name, embed(o)); got != "0 modules, 1 frames" {
			t.Errorf("%s: %s", name, got)
		}
	}
}
