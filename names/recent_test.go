package names

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// TestRecent: a live profile's names are there again when its files are closed; what was not asked before is not, and comes when it can be found.
func TestRecent(t *testing.T) {
	t.Setenv("DEBUGINFOD_URLS", "")
	p := &tiny{name: "f", frame: 16}
	copy(p.id[:], "01234567890123456789")
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, p.file(), 0o700); err != nil {
		t.Fatal(err)
	}
	mods := modules.Interpreted()
	defer mods.Files.Close()
	n := New(Options{Mods: mods})
	defer n.Close()
	m := mods.Module(path, hex.EncodeToString(p.id[:]))
	name := func(m *unwind.Module, offs ...uint64) string {
		names := make([]profile.Name, len(offs))
		n.User(m, offs, names)
		var all []string
		for i := range names {
			all = append(all, names[i].Func)
		}
		return strings.Join(all, " ")
	}
	if got := name(m, 0x1010, 0x127f); got != "f _start" {
		t.Fatalf("%q", got)
	}
	n.symbols.Close()
	if got := name(m, 0x1010, 0x1040, 0x127f); got != "f  _start" {
		t.Errorf("without files: %q", got)
	}
	other := mods.Module(path, strings.Repeat("ab", 20))
	if got := name(other, 0x1010); got != "" {
		t.Errorf("0x1010 of build %s has the name %q of build %s; want none", other.BuildID, got, m.BuildID)
	}
	if name(mods.Module(path, ""), 0x1010); n.recent.young[place{path, "", 0x1010}].Func != "" {
		t.Errorf("a name of a file without a build ID, which can be replaced unseen, is remembered: %+v", n.recent.young[place{path, "", 0x1010}])
	}
}

// TestRecentBounds: what is asked again stays, the rest goes, and all takes little room.
func TestRecentBounds(t *testing.T) {
	var r recent
	m := &unwind.Module{Path: "p", BuildID: "id"}
	names := []profile.Name{{Func: strings.Repeat("f", 1000)}}
	for off := range uint64(10_000) {
		r.learn(m, []uint64{off}, names)
		if missing := r.fill(m, []uint64{0}, names); missing != nil {
			t.Fatalf("%d names later, what is always asked for is gone", off)
		}
	}
	if all := len(r.young) + len(r.old); all > 2*(recentBytes/1200+1) || all < recentBytes/1200 {
		t.Errorf("%d names", all)
	}
	if missing := r.fill(m, []uint64{1}, names); missing == nil {
		t.Errorf("after 10,000 names, offset 1, which nobody asked for, still has one: %d are young, %d old", len(r.young), len(r.old))
	}
}

// TestRecentTime: a name is searched again after a while, however often it was asked for; a place without one soon.
func TestRecentTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r recent
		m := &unwind.Module{Path: "p", BuildID: "id"}
		offs, names := []uint64{1, 2}, make([]profile.Name, 2)
		r.learn(m, offs, []profile.Name{{Func: "f"}, {}})
		began := time.Now()
		var lost [2]time.Duration
		for range 2 * recentTime / time.Second {
			time.Sleep(time.Second)
			for _, i := range r.fill(m, offs, names) {
				if lost[i] == 0 {
					lost[i] = time.Since(began)
				}
			}
			if time.Since(began)%(10*time.Second) == 0 {
				r.size = recentBytes + 1 // another turn
			}
		}
		if lost != [2]time.Duration{recentTime, namelessTime} {
			t.Errorf("searched again after %v", lost)
		}
	})
}
