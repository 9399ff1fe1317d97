// Package containers tells the names and images of docker's and podman's containers, without asking either: it reads the files in which they keep them.
//
// docker writes /var/lib/docker/containers/ID/config.v2.json, podman (and CRI-O) /var/lib/containers/storage/DRIVER-containers/containers.json. These
// are root's, in directories of root's. The sockets of the two would do as well, but who may ask them is as powerful as root. A container of a user without
// privileges has no name here: that user could write anything into the files. Neither format is documented; tests hold both to the real programs.
package containers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxConfig  = 4 << 20  // bytes of docker's file of a container
	maxList    = 16 << 20 // bytes of podman's file of all
	maxName    = 256      // bytes
	maxKnown   = 1 << 12
	maxDrivers = 8
	fresh      = 5 * time.Minute  // a container can get another name
	again      = 20 * time.Second // until a container that is not known is looked for once more
)

// Names are those of a container, in valid UTF-8 of at most 256 bytes each.
type Names struct {
	Container string
	Image     string // as it was asked for; may be empty
}

// Files know containers by their files. They are safe for concurrent use. A nil *Files knows none.
type Files struct {
	docker, podman string
	owner          uint32
	now            func() time.Time

	mu    sync.Mutex
	known map[string]entry
}

type entry struct {
	Names
	until time.Time
}

// The directories of docker and podman, unless they are configured otherwise.
const (
	Docker = "/var/lib/docker"
	Podman = "/var/lib/containers/storage"
)

// New returns what knows the containers of docker and podman in these directories.
func New(docker, podman string) *Files {
	return &Files{docker: docker, podman: podman, now: time.Now, known: map[string]entry{}}
}

// Find returns the names of a container, by its ID of 64 hexadecimal digits. It reads files at most once in 20 s for a container.
func (f *Files) Find(id string) (n Names, ok bool) {
	if f == nil || !isID(id) {
		return n, false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	e, known := f.known[id]
	if known && now.Before(e.until) {
		return e.Names, e.Container != ""
	}
	if !known && len(f.known) >= maxKnown {
		clear(f.known)
	}
	n, err := f.ofDocker(id)
	if err != nil {
		n, err = f.ofPodman(id)
	}
	e = entry{n, now.Add(fresh)}
	if err != nil {
		e = entry{Names{}, now.Add(again)}
	}
	f.known[id] = e
	return e.Names, e.Container != ""
}

func isID(id string) bool { return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == "" }

func (f *Files) ofDocker(id string) (Names, error) {
	file, err := f.open(filepath.Join(f.docker, "containers", id, "config.v2.json"))
	if err != nil {
		return Names{}, err
	}
	defer file.Close()
	return decodeDocker(io.LimitReader(file, maxConfig))
}

// decodeDocker reads docker's configuration of a container. Its other fields, of which some may hold secrets, are passed over.
func decodeDocker(r io.Reader) (Names, error) {
	var c struct {
		Name   string // with a slash in front
		Config struct{ Image string }
	}
	if err := json.NewDecoder(r).Decode(&c); err != nil {
		return Names{}, err
	}
	return named(strings.TrimPrefix(c.Name, "/"), c.Config.Image)
}

func (f *Files) ofPodman(id string) (Names, error) {
	lists, _ := filepath.Glob(filepath.Join(f.podman, "*-containers", "containers.json")) // overlay-containers, vfs-containers …
	for _, path := range lists[:min(len(lists), maxDrivers)] {
		file, err := f.open(path)
		if err != nil {
			continue
		}
		n, err := decodePodman(io.LimitReader(file, maxList), id)
		file.Close()
		if err == nil {
			return n, nil
		}
	}
	return Names{}, os.ErrNotExist
}

// decodePodman finds a container in podman's list. It keeps one container of the text at a time.
func decodePodman(r io.Reader, id string) (Names, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return Names{}, errors.New("no list of containers")
	}
	for d.More() {
		var c struct {
			ID       string   `json:"id"`
			Names    []string `json:"names"`
			Metadata string   `json:"metadata"`
		}
		if err := d.Decode(&c); err != nil {
			return Names{}, err
		}
		if c.ID != id {
			continue
		}
		var m struct {
			Image string `json:"image-name"`
			Name  string `json:"name"`
		}
		_ = json.Unmarshal([]byte(c.Metadata), &m) // what it lacks stays empty
		if m.Name == "" && len(c.Names) > 0 {
			m.Name = c.Names[0]
		}
		return named(m.Name, m.Image)
	}
	return Names{}, os.ErrNotExist
}

func named(name, image string) (Names, error) {
	n := Names{text(name), text(image)}
	if n.Container == "" {
		return Names{}, errors.New("a container without a name")
	}
	return n, nil
}

// text returns the beginning of a name, in valid UTF-8.
func text(s string) string {
	return strings.Clone(strings.ToValidUTF8(s[:min(len(s), maxName)], ""))
}

// open opens a regular file that only root can have written.
func (f *Files) open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != f.owner || st.Mode&0o022 != 0 {
		file.Close()
		return nil, fmt.Errorf("%s: not a file of root's alone", path)
	}
	return file, nil
}
