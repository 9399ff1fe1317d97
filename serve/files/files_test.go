package files

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/serve"
)

// TestInput: a recording, one that is damaged, and what is none.
func TestInput(t *testing.T) {
	const recording = "../../testdata/perf.data"
	b, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	none, zero := filepath.Join(dir, "none"), filepath.Join(dir, "zero")
	for path, text := range map[string][]byte{none: []byte("no recording"), zero: nil} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mods := modules.New()
	defer mods.Close()
	for _, c := range []struct {
		path, want string
		samples    uint64
	}{{recording, "", 10}, {none, none, 0}, {zero, zero, 0}, {filepath.Join(dir, "absent"), "absent", 0}} {
		read := uint64(0)
		in := Input(c.path, Options{
			Open: func(_ context.Context, added func(*profile.Profile, []int32)) (*record.File, error) {
				return record.Open(c.path, record.FileOptions{Mods: mods, Added: added})
			},
			Read:    func(_ *record.File, p *profile.Profile) { read = p.Totals.Samples },
			Damaged: func(err error) { t.Errorf("%s: %v", c.path, err) },
		})
		rec, err := in.Read(t.Context(), func(serve.Progress) {})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.path, err)
			}
			continue
		}
		if err != nil || in.Name != c.path || read != c.samples || rec.Profile.Totals.Samples != c.samples || !rec.Local || rec.Times == nil || rec.Periods {
			t.Errorf("%s (%d bytes): %+v, %v; %d samples were read, want %d", c.path, len(b), rec, err, read, c.samples)
		}
	}
}
