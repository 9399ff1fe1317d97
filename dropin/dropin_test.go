package dropin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/oracle"
)

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPrepare: libraries go in front of what the environment has.
func TestPrepare(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	program := filepath.Join(dir, "program") // is linked with nothing
	touch(t, program)
	if _, err := Prepare(program, nil, Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "no "+doctor.Dropin) {
		t.Errorf("Prepare without libraries = %v, want no %s", err, doctor.Dropin)
	}
	touch(t, filepath.Join(dir, doctor.Dropin))
	if _, err := Prepare(program, nil, Options{Dir: dir, Exceptions: true}); err == nil || !strings.Contains(err.Error(), "no "+doctor.Exceptions+" in "+dir) {
		t.Errorf("Prepare with Exceptions = %v, want no %s in %s", err, doctor.Exceptions, dir)
	}
	touch(t, filepath.Join(dir, doctor.Exceptions))
	for _, c := range []struct {
		o             Options
		path, preload string // what the environment has
		want          []string
	}{
		{Options{}, "", "", []string{"LD_LIBRARY_PATH=" + dir}},
		{Options{Strict: true, Stepper: "rules"}, "/a:/b", "/x.so", []string{"LD_LIBRARY_PATH=" + dir + ":/a:/b", "UNSPOOL_STRICT=1", "UNSPOOL_STEPPER=rules"}},
		{Options{Exceptions: true}, "", "", []string{"LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + filepath.Join(dir, doctor.Exceptions)}},
		{Options{Exceptions: true}, "", "/x.so", []string{"LD_LIBRARY_PATH=" + dir, "LD_PRELOAD=" + filepath.Join(dir, doctor.Exceptions) + ":/x.so"}},
	} {
		t.Setenv("LD_LIBRARY_PATH", c.path)
		t.Setenv("LD_PRELOAD", c.preload)
		c.o.Dir = dir
		if got, err := Prepare(program, nil, c.o); !slices.Equal(got, c.want) || err != nil {
			t.Errorf("Prepare(%+v) with %q and %q = %q, %v; want %q", c.o, c.path, c.preload, got, err, c.want)
		}
	}
}

// TestWalkers: a program in C++ is linked with libgcc's unwinder, which counts where exceptions do; the loader says the same.
func TestWalkers(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++", "ldd")
	dir := t.TempDir()
	source, program := filepath.Join(dir, "throws.cc"), filepath.Join(dir, "throws")
	if err := os.WriteFile(source, []byte("int main() { try { throw 1; } catch (int) { return 0; } }"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "g++", "-o", program, source)
	if list := string(oracle.Run(t, "ldd", program)); !strings.Contains(list, "libgcc_s.so.1") || strings.Contains(list, "libunwind") || strings.Contains(list, "libdw") {
		t.Fatalf("ldd %s prints\n%s\nwant libgcc_s.so.1, no libunwind and no libdw", program, list)
	}
	for exceptions, want := range map[bool][]string{false: nil, true: {"libgcc_s.so.1"}} {
		if got := Walkers(program, exceptions); !slices.Equal(got, want) {
			t.Errorf("Walkers(%s, %t) = %q, want %q", program, exceptions, got, want)
		}
	}
}

// TestLibdwFront: a program that has libdw only needs the library in front of it; one that has libunwind, too, does without.
func TestLibdwFront(t *testing.T) {
	dir := t.TempDir()
	libdw, both := []string{"libdw.so.1"}, []string{"libdw.so.1", "libunwind.so.8"}
	if got, err := libdwFront(dir, []string{"libunwind.so.8"}); got != "" || err != nil {
		t.Errorf("libdwFront(%s, libunwind.so.8) = %q, %v, want nothing", dir, got, err)
	}
	if got, err := libdwFront(dir, both); got != "" || err != nil {
		t.Errorf("libdwFront(%s, %q) = %q, %v, want nothing", dir, both, got, err)
	}
	if got, err := libdwFront(dir, libdw); err == nil || !strings.HasPrefix(err.Error(), "the program walks with libdw.so.1: ") {
		t.Errorf("libdwFront(%s, %q) = %q, %v, want that the program walks with libdw.so.1", dir, libdw, got, err)
	}
	front := filepath.Join(dir, frontOfLibdw)
	touch(t, front)
	for _, walkers := range [][]string{libdw, both} {
		if got, err := libdwFront(dir, walkers); got != front || err != nil {
			t.Errorf("libdwFront(%s, %q) = %q, %v", dir, walkers, got, err)
		}
	}
}
