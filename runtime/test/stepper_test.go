package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/store"
)

// compiled returns a store with tables and machine code of all files that a recording maps.
func compiled(t *testing.T, file string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "cache")
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	paths := map[string]bool{}
	r, err := oracle.OpenRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Samples(func(s *oracle.RecordedSample) bool {
		for _, m := range s.Space.Maps {
			paths[m.Path] = true
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for path := range paths {
		if img := openImage(t, path); img != nil {
			kept.Table(img)
			kept.Native(img, native.Options{Layout: native.Page, Deref: native.Callback})
		}
	}
	return dir
}

// steps returns how often a drop-in's walks have left frames by machine code, by data, and by data because the code could not.
func steps(t *testing.T, path string) (native, data, fallen int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(b), "native %d data %d fallen %d\n", &native, &data, &fallen); err != nil || strings.Count(string(b), "\n") != 1 {
		t.Fatalf("%q: %v", b, err)
	}
	return native, data, fallen
}

// TestSteppers: whatever steps, perf prints the same; in strict mode, what it prints with Debian's library. And machine code does most
// steps where it is to.
func TestSteppers(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			lib, cache := dropIn(t, "gcc"), compiled(t, file)
			args := []string{"script", "--no-inline", "-i", file}
			stock, ours := printed(t, stockEnv(), args...), printed(t, dropInEnv(lib), args...)
			for _, stepper := range []string{"rules", "table", "native"} {
				for _, strict := range []string{"0", "1"} {
					counts := filepath.Join(t.TempDir(), "steps")
					env := append(dropInEnv(lib, "UNSPOOL_STEPPER="+stepper, "UNSPOOL_STRICT="+strict, "UNSPOOL_STEPS="+counts), "UNSPOOL_CACHE="+cache)
					want := ours
					if strict == "1" {
						want = stock
					}
					if diff := sameFiles(t, want, printed(t, env, args...)); diff != "" {
						t.Errorf("by %s, strict %s: %s", stepper, strict, diff)
					}
					code, data, fallen := steps(t, counts)
					if t.Logf("by %s, strict %s: %d by code, %d by data, %d of these because the code could not", stepper, strict, code, data, fallen); stepper != "native" {
						if code != 0 || fallen != 0 || data == 0 {
							t.Errorf("by %s: %d steps by machine code", stepper, code)
						}
					} else if code < data {
						t.Errorf("%d steps by machine code, %d by data", code, data)
					}
				}
			}
		})
	}
}

// TestStepperRefused: machine code that is damaged, or that others may write, is not run; tables step instead.
func TestStepperRefused(t *testing.T) {
	var file string
	for _, f := range recordings(t) {
		if filepath.Base(f) == "signals.data" {
			file = f
		}
	}
	if file == "" {
		oracle.Lacks(t, "a recording of signals")
	}
	lib := dropIn(t, "gcc")
	args := []string{"script", "--no-inline", "-i", file}
	want := printed(t, dropInEnv(lib), args...)
	for name, spoil := range map[string]func(path, other string) error{
		"damaged": func(path, _ string) error {
			b, err := os.ReadFile(path)
			if err == nil {
				b[len(b)/2] ^= 1
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
		"cut off":          func(path, _ string) error { return os.Truncate(path, 4096) },
		"empty":            func(path, _ string) error { return os.Truncate(path, 0) },
		"others may write": func(path, _ string) error { return os.Chmod(path, 0o622) },
		"of another module": func(path, other string) error {
			b, err := os.ReadFile(other)
			if err == nil {
				err = os.WriteFile(path, b, 0o600)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			cache := compiled(t, file)
			files, _ := filepath.Glob(filepath.Join(cache, "*-own-*.eh_elf.so"))
			if len(files) < 2 {
				t.Fatalf("machine code of %d modules is stored", len(files))
			}
			other := filepath.Join(t.TempDir(), "other")
			if b, err := os.ReadFile(files[0]); err != nil || os.WriteFile(other, b, 0o600) != nil {
				t.Fatalf("%s: %v", other, err)
			}
			if name == "of another module" {
				os.Remove(files[0])
				files = files[1:]
			}
			for _, path := range files {
				if err := spoil(path, other); err != nil {
					t.Fatal(err)
				}
			}
			counts := filepath.Join(t.TempDir(), "steps")
			env := append(dropInEnv(lib, "UNSPOOL_STEPPER=native", "UNSPOOL_STEPS="+counts), "UNSPOOL_CACHE="+cache)
			if diff := sameFiles(t, want, printed(t, env, args...)); diff != "" {
				t.Error(diff)
			}
			if code, data, _ := steps(t, counts); code != 0 || data == 0 {
				t.Errorf("%d steps by machine code, %d by data; want none by machine code", code, data)
			}
		})
	}
}
