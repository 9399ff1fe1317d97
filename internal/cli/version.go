package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// Version returns the program's version as Go's build knows it, with the commit where the version does not name it: that of a tag; before the
// first tag v0.0.0-TIME-COMMIT; "(devel)" of a build that did not ask Git.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return version(info)
}

func version(info *debug.BuildInfo) string {
	v := info.Main.Version
	if commit := setting(info, "vcs.revision"); len(commit) >= 12 && !strings.Contains(v, commit[:12]) {
		v += " " + commit[:12]
	}
	return v
}

// setting returns a setting of a build, "" for one that is not known.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// About returns a program's version, commit, build and parts, a line each. A part has a name and what there is to say of it.
func About(name string, parts ...[2]string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{Main: debug.Module{Version: "unknown"}}
	}
	return about(name, info, parts)
}

func about(name string, info *debug.BuildInfo, parts [][2]string) string {
	commit := "not known"
	if c := setting(info, "vcs.revision"); c != "" {
		commit = c + " of " + setting(info, "vcs.time")
		if setting(info, "vcs.modified") == "true" {
			commit += ", with changes"
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s version %s\n", name, version(info))
	for _, p := range append([][2]string{{"commit", commit}, {"built", "by " + runtime.Version() + " for " + runtime.GOOS + "/" + runtime.GOARCH}}, parts...) {
		fmt.Fprintf(&b, "%-8s %s\n", p[0], p[1])
	}
	return b.String()
}

// date is when this version was committed, where that is known.
func date() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if t := setting(info, "vcs.time"); len(t) >= 10 {
			return t[:10]
		}
	}
	return ""
}
