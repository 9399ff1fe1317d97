package ring

import (
	"testing"
	"time"
)

// TestNames: what a name says is what it was made of; others are no names.
func TestNames(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.FixedZone("", 3600))
	for service, want := range map[string]string{"nginx": "nginx", "a/b c-1_2.x": "a_b_c-1_2.x", "": "_", "é": "_", "\x00": "_"} {
		began, got, ok := Parse(Name(at, 7, service))
		if !ok || got != want || !began.Equal(at) {
			t.Errorf("%q: %v %q %v, want %v %q", service, began, got, ok, at, want)
		}
	}
	for _, name := range []string{"", "x.pb.gz", "unspool-20260102T030405.678Z-1-a.pb.gz.tmp", "unspool-20261302T030405.678Z-1-a.pb.gz", "unspool-20260102T030405.678Z-1-a/b.pb.gz"} {
		if _, _, ok := Parse(name); ok {
			t.Errorf("%q is the name of a profile", name)
		}
	}
}
