package agent

import (
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
)

// maxCgroup is how many bytes of /proc/PID/cgroup are read: a path has at most 4096, and version 1 some fifteen of them.
const maxCgroup = 64 << 10

// A Place is where a process lives, by the paths of its cgroups (cgroups(7)).
type Place struct {
	Cgroup    string // of version 2, or of version 1's systemd or else first hierarchy
	Unit      string // the systemd service or scope of the machine that it belongs to
	Container string // the container's ID: 64 hexadecimal digits
	Pod       string // the pod's UID
	Claimed   bool   // Container is in a cgroup that its user may have made and named
}

// named is the container for which names are asked. A user may give his cgroups the ID of another one's container.
func (p *Place) named() string {
	if p.Claimed {
		return ""
	}
	return p.Container
}

// PlaceOf returns where a process of this machine lives; the zero Place if it has gone.
func PlaceOf(pid int32) Place {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return Place{}
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxCgroup))
	return ParseCgroups(string(b))
}

var (
	// Container runtimes name a container's cgroup by its ID: docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope by the
	// systemd driver; /docker/ID, /kubepods/burstable/podUID/ID, /libpod_parent/libpod-ID by the cgroupfs driver; UID:cri-containerd:ID by containerd's.
	containerID = regexp.MustCompile(`^(?:[a-z0-9-]+-|.*:cri-containerd:)?([0-9a-f]{64})(?:\.scope)?$`)
	// kubepods-burstable-podUID.slice, with _ for -, or podUID.
	podUID = regexp.MustCompile(`^(?:kubepods-)?(?:besteffort-|burstable-|guaranteed-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?::cri-containerd:.*)?$`)
	// What a process calls itself ends up in engines: a unit's name has these characters only (systemd.unit(5)).
	unitName = regexp.MustCompile(`^[a-zA-Z0-9:_.\\@-]{1,255}\.(?:service|scope)$`)
)

// ParseCgroups reads the text of /proc/PID/cgroup.
func ParseCgroups(text string) (p Place) {
	named, first := "", ""
	for line := range strings.Lines(text) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, place, ok := strings.Cut(rest, ":")
		place = strings.TrimSuffix(place, " (deleted)")
		if !ok || !strings.HasPrefix(place, "/") {
			continue
		}
		switch {
		case id == "0" && controllers == "":
			p.Cgroup = place
		case controllers == "name=systemd":
			named = place
		case first == "" || first == "/":
			first = place
		}
		p.observe(place)
	}
	for _, place := range []string{named, first} {
		if p.Cgroup == "" || p.Cgroup == "/" && place != "" { // a machine with both versions
			p.Cgroup = place
		}
	}
	if p.Cgroup != "" { // from within a container, those outside of it are at /../..
		p.Cgroup = path.Clean(strings.ToValidUTF8(p.Cgroup, "\ufffd"))
	}
	return p
}

// observe takes what a cgroup's path says. The innermost container is the process's; the outermost unit is the machine's.
// What is below user.slice or a user's own systemd is made by users, without privileges: pods are not there, and containers are only claimed.
func (p *Place) observe(place string) {
	unit, users := "", false
	for element := range strings.SplitSeq(place, "/") {
		if strings.HasPrefix(element, "crio-conmon-") || strings.HasPrefix(element, "libpod-conmon-") {
			continue // the runtime's own process beside the container
		}
		m := containerID.FindStringSubmatch(element)
		if m != nil {
			p.Container, p.Claimed = m[1], users
		} else if unit == "" && unitName.MatchString(element) {
			unit = element
		}
		if m := podUID.FindStringSubmatch(element); m != nil && !users {
			p.Pod = strings.ReplaceAll(m[1], "_", "-") // as Kubernetes writes it; a static pod's is a hash
		}
		users = users || element == "user.slice" || strings.HasPrefix(element, "user@") && strings.HasSuffix(element, ".service")
	}
	if unit != "" && p.Unit == "" {
		p.Unit = unit
	}
}
