package dwarf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// TestShrinks cuts a file short after it has been mapped: what is gone costs rows, or is an error to a caller who is
// guarded, and never the process.
func TestShrinks(t *testing.T) {
	const libc = "/usr/lib/x86_64-linux-gnu/libc.so.6"
	b, err := os.ReadFile(libc)
	if err != nil {
		oracle.Lacks(t, libc)
	}
	for _, keep := range []float64{0, 0.5, 0.85, 0.88, 0.9} {
		path := filepath.Join(t.TempDir(), "libc.so")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		f, err := Open(img)
		if err != nil {
			t.Fatal(err)
		}
		whole, _ := f.Build(EHFrame)
		if err := os.Truncate(path, int64(keep*float64(len(b)))); err != nil {
			t.Fatal(err)
		}
		var damage []Damage
		rows := 0
		err = module.Guard(func() error {
			table, d := f.Build(EHFrame)
			rows, damage = len(table.Rows), d
			return nil
		})
		if err == nil && len(damage) == 0 && rows != len(whole.Rows) {
			t.Errorf("cut to %.0f %%: %d of %d rows, and nothing said", 100*keep, rows, len(whole.Rows))
		}
		if keep == 0 && !errors.Is(err, module.ErrTruncated) {
			t.Errorf("cut to nothing: %v", err)
		}
	}
}
