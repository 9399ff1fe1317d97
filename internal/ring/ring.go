// Package ring names the files that an agent keeps in a directory: one for each place and interval. Names sort by time.
package ring

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"
)

const (
	stamp   = "20060102T150405.000Z"
	maxName = 64 // characters of a service in a file's name
)

var file = regexp.MustCompile(`^unspool-(\d{8}T\d{6}\.\d{3}Z)-\d+-([a-zA-Z0-9._-]+)\.pb\.gz$`)

// MostInterval is the longest time that a file is about.
const MostInterval = time.Hour

// Name returns the name of the file of an interval that began at a time: the n-th of its agent. Of the service's name it has the letters, digits
// and ._- of ASCII, and an underscore for the others.
func Name(began time.Time, n int, service string) string {
	service = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, service)
	return fmt.Sprintf("unspool-%s-%d-%s.pb.gz", began.UTC().Format(stamp), n, cmp.Or(service[:min(len(service), maxName)], "_"))
}

// Parse returns what a name says; ok is false for other files.
func Parse(name string) (began time.Time, service string, ok bool) {
	m := file.FindStringSubmatch(name)
	if m == nil {
		return began, "", false
	}
	began, err := time.Parse(stamp, m[1])
	return began, m[2], err == nil
}
