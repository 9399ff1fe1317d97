package cli

import (
	"runtime/debug"
	"strings"
	"testing"
)

// TestVersion: a version names its commit once.
func TestVersion(t *testing.T) {
	const commit = "4920ef4e5ab7f6a299d6b7fad7e5263c3ae64870"
	for _, c := range []struct{ module, commit, want string }{
		{"v0.0.0-20261123134531-4920ef4e5ab7", commit, "v0.0.0-20261123134531-4920ef4e5ab7"},
		{"v1.2.3", commit, "v1.2.3 4920ef4e5ab7"},
		{"v1.2.4-0.20261123134531-4920ef4e5ab7+dirty", commit, "v1.2.4-0.20261123134531-4920ef4e5ab7+dirty"},
		{"(devel)", "", "(devel)"},
		{"(devel)", "49", "(devel)"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: c.module}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: c.commit}}}
		if got := version(info); got != c.want {
			t.Errorf("of %s at %q: %q, want %q", c.module, c.commit, got, c.want)
		}
	}
}

func TestAbout(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "4920ef4e5ab7f6a2"}, {Key: "vcs.time", Value: "2026-11-23T13:45:31Z"}, {Key: "vcs.modified", Value: "true"}}}
	got := about("name", info, [][2]string{{"inside", "this"}})
	lines := strings.Split(got, "\n")
	if len(lines) != 5 || lines[0] != "name version v1.2.3 4920ef4e5ab7" || lines[1] != "commit   4920ef4e5ab7f6a2 of 2026-11-23T13:45:31Z, with changes" ||
		!strings.HasPrefix(lines[2], "built    by go1.") || lines[3] != "inside   this" || lines[4] != "" {
		t.Errorf("%q", got)
	}
	if got := about("name", &debug.BuildInfo{}, nil); !strings.Contains(got, "\ncommit   not known\n") {
		t.Errorf("without a commit: %q", got)
	}
}
