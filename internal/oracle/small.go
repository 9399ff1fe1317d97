package oracle

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// SmallPrograms makes n programs of 10 MB in dir, small0 and so on: testdata/small of the module at root. They have different build IDs, and are otherwise
// equal. flags are for gcc. It returns their paths.
func SmallPrograms(t testing.TB, root, dir string, n int, flags ...string) (paths []string) {
	t.Helper()
	Need(t, "gcc")
	id := bytes.Repeat([]byte{0x5a, 0xa5}, 10)
	first := filepath.Join(t.TempDir(), "first")
	source := filepath.Join(root, "testdata/small")
	Run(t, "gcc", append(flags, "-O1", "-fomit-frame-pointer", "-Wl,--build-id=0x"+hex.EncodeToString(id), "-o", first,
		filepath.Join(source, "main.c"), filepath.Join(source, "functions.s"))...)
	image, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(image, id) != 1 {
		t.Fatal("the build ID is not found once")
	}
	at := bytes.Index(image, id)
	for i := range n {
		copy(image[at:], fmt.Sprintf("small program %06d", i))
		paths = append(paths, filepath.Join(dir, fmt.Sprint("small", i)))
		if err := os.WriteFile(paths[i], image, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}
