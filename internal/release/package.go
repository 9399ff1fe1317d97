package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/md5"
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// A file is one that is installed. The directories that lead to it come with it.
type file struct {
	name string // without a slash before it
	mode int64  // 0o644 or 0o755
	data []byte
}

// tarball returns a compressed archive.
func tarball(dir string, files []file, when time.Time) []byte { return zip(archive(dir, files, when)) }

// archive returns a tar archive, whose names begin with a directory. The same files make the same bytes, whatever their order: names are sorted,
// and all files are root's and of the same time.
func archive(dir string, files []file, when time.Time) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(kind byte, name string, mode int64, data []byte) {
		err := w.WriteHeader(&tar.Header{Typeflag: kind, Name: dir + name, Mode: mode, Size: int64(len(data)),
			Uname: "root", Gname: "root", ModTime: when, Format: tar.FormatGNU})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			panic("BUG: a tar archive in memory: " + err.Error())
		}
	}
	had := map[string]bool{}
	var enter func(string)
	enter = func(at string) {
		switch {
		case had[at]:
			return
		case at == ".":
			if dir != "" {
				add(tar.TypeDir, "", 0o755, nil)
			}
		default:
			enter(path.Dir(at))
			add(tar.TypeDir, at+"/", 0o755, nil)
		}
		had[at] = true
	}
	for _, f := range sorted(files) {
		enter(path.Dir(f.name))
		add(tar.TypeReg, f.name, f.mode, f.data)
	}
	if err := w.Close(); err != nil {
		panic("BUG: a tar archive in memory: " + err.Error())
	}
	return b.Bytes()
}

func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.name, b.name) })
}

// A control is what a Debian package says of itself (Debian Policy, section 5.3).
type control struct {
	Version     string
	Arch        string
	Maintainer  string // NAME <ADDRESS>
	Depends     []string
	Description string // the first line is a phrase, the others are sentences
}

// deb returns a Debian package (deb(5), format 2.0): an ar archive of a number, an archive about the package, and an archive of its files.
func deb(c control, files []file, when time.Time) []byte {
	var sums, conf strings.Builder // conf are the files that dpkg leaves as their user has changed them (deb-conffiles(5))
	kib := 0                       // as Policy 5.6.20 counts: each file and directory takes whole KiB
	dirs := map[string]bool{}
	for _, f := range sorted(files) {
		fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.name)
		if strings.HasPrefix(f.name, "etc/") {
			fmt.Fprintf(&conf, "/%s\n", f.name)
		}
		kib += (len(f.data) + 1023) / 1024
		for dir := path.Dir(f.name); !dirs[dir]; dir = path.Dir(dir) {
			dirs[dir] = true
			kib++
		}
	}
	first, rest, _ := strings.Cut(strings.TrimSpace(c.Description), "\n")
	var text strings.Builder
	fmt.Fprintf(&text, "Package: unspool\nVersion: %s\nArchitecture: %s\nMaintainer: %s\nInstalled-Size: %d\n", c.Version, c.Arch, c.Maintainer, kib)
	if len(c.Depends) > 0 {
		fmt.Fprintf(&text, "Depends: %s\n", strings.Join(c.Depends, ", "))
	}
	fmt.Fprintf(&text, "Section: devel\nPriority: optional\nHomepage: %s\nDescription: %s\n", home, first)
	text.WriteString(paragraphs(rest))
	inside := append(scripts(), file{"control", 0o644, []byte(text.String())}, file{"md5sums", 0o644, []byte(sums.String())})
	if conf.Len() > 0 {
		inside = append(inside, file{"conffiles", 0o644, []byte(conf.String())})
	}
	about := tarball("./", inside, when)

	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range []file{{"debian-binary", 0, []byte("2.0\n")}, {"control.tar.gz", 0, about}, {"data.tar.gz", 0, tarball("./", files, when)}} {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n%s", m.name, when.Unix(), 0, 0, "100644", len(m.data), m.data)
		if len(m.data)%2 != 0 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

//go:embed debian
var debian embed.FS

// scripts are what dpkg runs, and the file that says when (deb-triggers(5), deb-postinst(5), deb-postrm(5)).
func scripts() (out []file) {
	for name, mode := range map[string]int64{"triggers": 0o644, "postinst": 0o755, "postrm": 0o755} {
		b, err := debian.ReadFile("debian/" + name)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		out = append(out, file{name, mode, b})
	}
	return out
}

// paragraphs returns text as the description's field has it: lines of up to 80 characters behind a space, and a dot between paragraphs.
func paragraphs(text string) string {
	var b strings.Builder
	for p := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if b.Len() > 0 {
			b.WriteString(" .\n")
		}
		line := ""
		for _, word := range strings.Fields(p) {
			if len(line)+1+len(word) > 79 {
				b.WriteString(line + "\n")
				line = ""
			}
			line += " " + word
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// debVersion returns a version of Go's as Debian spells it. What Go sorts before a release, such as v1.3.0-rc.1 and the commits between two tags
// (v1.2.4-0.TIME-COMMIT), Debian sorts before it after a tilde.
func debVersion(v string) string {
	v = strings.TrimPrefix(v, "v")
	v, build, _ := strings.Cut(v, "+")
	release, before, ok := strings.Cut(v, "-")
	if ok {
		release += "~" + strings.ReplaceAll(before, "-", ".")
	}
	if build != "" {
		release += "+" + strings.ReplaceAll(build, "-", ".")
	}
	return release
}

// zip compresses by gzip, without a name or a time.
func zip(data []byte) []byte {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = z.Write(data)
	}
	if err = cmp.Or(err, z.Close()); err != nil {
		panic("BUG: gzip in memory: " + err.Error())
	}
	return b.Bytes()
}
