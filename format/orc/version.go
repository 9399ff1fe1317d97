package orc

import (
	"bytes"

	"github.com/unspool/unspool/module"
)

// banner is how the string begins that a kernel prints first (init/version.c: linux_banner).
const banner = "Linux version "

// vermagic is how a module says which kernel it is for (linux/vermagic.h).
const vermagic = "vermagic="

// A version is the beginning of a kernel's.
type version struct{ major, minor int }

func (v version) less(o version) bool {
	return v.major < o.major || v.major == o.major && v.minor < o.minor
}

// parseVersion reads "6.1.0-50-amd64" and what follows.
func parseVersion(b []byte) (v version, ok bool) {
	number := func() (n int) {
		digits := 0
		for len(b) > 0 && b[0] >= '0' && b[0] <= '9' && digits < 5 {
			n, b, digits = 10*n+int(b[0]-'0'), b[1:], digits+1
		}
		ok = digits > 0 && digits < 5
		return n
	}
	if v.major = number(); !ok || len(b) == 0 || b[0] != '.' {
		return v, false
	}
	b = b[1:]
	v.minor = number()
	return v, ok
}

// versionOf returns the version of the kernel that an image is, or is a module for.
func versionOf(img *module.Image) (version, bool) {
	left := int(img.Reach()) // sections that share their bytes are no reason to read more than the file has
	find := func(s *module.Section, mark string, first bool) (version, bool) {
		b, err := img.Data(s)
		if err != nil {
			return version{}, false
		}
		b = b[:min(len(b), left)]
		left -= len(b)
		for {
			i := bytes.Index(b, []byte(mark))
			if i < 0 {
				return version{}, false
			}
			whole := !first || i == 0 || b[i-1] == 0
			b = b[i+len(mark):]
			if v, ok := parseVersion(b); ok && whole {
				return v, true
			}
		}
	}
	if s := img.Section(".modinfo"); s != nil {
		if v, ok := find(s, vermagic, true); ok {
			return v, true
		}
	}
	secs := img.Sections()
	for i := range secs {
		if s := &secs[i]; s.Perm&module.Read != 0 && s.Perm&module.Exec == 0 && !s.Empty && !s.Compressed {
			if v, ok := find(s, banner, false); ok {
				return v, true
			}
		}
	}
	return version{}, false
}
