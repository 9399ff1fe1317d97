package module

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestLibraries: libraries are found behind libraries, by $ORIGIN, as ldd finds them; what is no program needs none.
func TestLibraries(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"b.c": "int b(void) { return 1; }", "a.c": "int b(void); int a(void) { return b(); }", "main.c": "int a(void); int main(void) { return a(); }",
	} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	oracle.Run(t, "gcc", "-shared", "-fPIC", "-o", at("libb.so"), at("b.c"))
	oracle.Run(t, "gcc", "-shared", "-fPIC", "-o", at("liba.so"), at("a.c"), "-L"+dir, "-lb", "-Wl,-rpath,$ORIGIN")
	oracle.Run(t, "gcc", "-o", at("main"), at("main.c"), "-L"+dir, "-la", "-Wl,-rpath,${ORIGIN}", "-Wl,--allow-shlib-undefined")
	ldd := oracle.Run(t, "ldd", at("main"))
	for _, name := range []string{"liba.so", "libb.so", "libc.so.6"} {
		if got := Libraries(at("main"), func(s string) bool { return s == name }); !slices.Equal(got, []string{name}) || !strings.Contains(string(ldd), name) {
			t.Errorf("Libraries(main, %s) = %q; ldd says\n%s", name, got, ldd)
		}
	}
	if got := Libraries(at("main"), func(s string) bool { return strings.HasPrefix(s, "lib") }); !slices.Equal(got, []string{"liba.so", "libc.so.6"}) {
		t.Errorf("one that is accepted is not read: %q", got)
	}
	if got := Libraries(at("main.c"), func(string) bool { return true }); got != nil {
		t.Errorf("a text needs %q", got)
	}
}
