package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

const (
	maxAnswer = 32 << 20 // bytes: 110 pods of a node, or 500, have some 30 kB each
	maxPod    = 4 << 20  // bytes: etcd takes 1.5 MiB
	maxName   = 512      // bytes
	maxPods   = 4096
)

// A pod is the part of a v1 Pod that has names.
type pod struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
		Created   string `json:"creationTimestamp"`
		Labels    struct {
			Hash string `json:"pod-template-hash"` // a Deployment's name for its ReplicaSet is its own, and this
		} `json:"labels"`
		Annotations struct {
			Config    string `json:"kubernetes.io/config.hash"` // a static pod's UID on its node
			Service   string `json:"resource.opentelemetry.io/service.name"`
			Namespace string `json:"resource.opentelemetry.io/service.namespace"`
		} `json:"annotations"`
		Owners []struct {
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		Containers []container `json:"containers"`
		Init       []container `json:"initContainers"`
		Ephemeral  []container `json:"ephemeralContainers"`
	} `json:"spec"`
	Status struct {
		Containers []status `json:"containerStatuses"`
		Init       []status `json:"initContainerStatuses"`
		Ephemeral  []status `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

type container struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

type status struct {
	Name string `json:"name"`
	ID   string `json:"containerID"` // RUNTIME://ID
	Last struct {
		Terminated struct {
			ID string `json:"containerID"`
		} `json:"terminated"`
	} `json:"lastState"`
}

// A bounded reader ends with an error after n bytes, or all.
type bounded struct {
	r      io.Reader
	all, n int
}

var errLarge = errors.New("larger than the pods of a node can be")

func (b *bounded) Read(to []byte) (int, error) {
	if room := min(b.all, b.n); len(to) > room {
		to = to[:room]
	}
	if len(to) == 0 {
		return 0, errLarge
	}
	n, err := b.r.Read(to)
	b.all -= n
	b.n -= n
	return n, err
}

// decode reads a PodList. It keeps one pod of the text at a time. A pod that is damaged costs itself only, and is counted.
func decode(r io.Reader) (names map[string]*Names, damaged int, err error) {
	in := &bounded{r: r, all: maxAnswer, n: maxPod}
	d := json.NewDecoder(in)
	open := func(want json.Delim) error {
		switch t, err := d.Token(); {
		case err != nil:
			return err
		case t != want:
			return fmt.Errorf("at byte %d: no list of pods", d.InputOffset())
		}
		return nil
	}
	if err := open('{'); err != nil {
		return nil, 0, err
	}
	names = map[string]*Names{}
	listed := false
	for ; d.More(); in.n = maxPod {
		key, err := d.Token()
		if err != nil {
			return nil, damaged, err
		}
		switch key {
		case "kind":
			var kind string
			if err := d.Decode(&kind); err != nil {
				return nil, damaged, err
			}
			if kind != "PodList" {
				return nil, damaged, errors.New("no list of pods")
			}
		case "items":
			if listed {
				return nil, damaged, errors.New("two lists of pods")
			}
			listed = true
			t, err := d.Token()
			if err != nil {
				return nil, damaged, err
			}
			if t == nil { // null: no pods
				continue
			}
			if t != json.Delim('[') {
				return nil, damaged, fmt.Errorf("at byte %d: no list of pods", d.InputOffset())
			}
			for n := 0; d.More(); n, in.n = n+1, maxPod {
				if n >= maxPods {
					return nil, damaged, errLarge
				}
				var p pod
				var wrong *json.UnmarshalTypeError
				if err := d.Decode(&p); errors.As(err, &wrong) {
					damaged++
					continue
				} else if err != nil {
					return nil, damaged, err
				}
				if !p.name(names) {
					damaged++
				}
			}
			if _, err := d.Token(); err != nil {
				return nil, damaged, err
			}
		default:
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return nil, damaged, err
			}
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, damaged, err
	}
	if !listed {
		return nil, damaged, errors.New("no list of pods")
	}
	return names, damaged, nil
}

// name puts the names of a pod and its containers into names. It returns false for a pod without a name or a UID.
func (p *pod) name(names map[string]*Names) bool {
	m := &p.Metadata
	uid := strings.ToLower(m.UID)
	if !isUID(uid) || m.Name == "" || m.Namespace == "" {
		return false
	}
	all := Names{Namespace: text(m.Namespace), Pod: text(m.Name), ServiceNamespace: text(m.Annotations.Namespace)}
	all.Kind, all.Controller = p.controller()
	switch all.Kind {
	case "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Job":
		all.Service = all.Controller
	default:
		all.Service = all.Pod
	}
	if s := text(m.Annotations.Service); s != "" {
		all.Service = s
	}
	put := func(id string, n *Names) {
		if len(names) < maxKnown {
			names[id] = n
		}
	}
	put(uid, &all)
	if hash := strings.ToLower(m.Annotations.Config); isUID(hash) {
		put(hash, &all)
	}
	images := map[string]string{}
	for _, list := range [][]container{p.Spec.Containers, p.Spec.Init, p.Spec.Ephemeral} {
		for _, c := range list {
			images[c.Name] = c.Image
		}
	}
	for _, list := range [][]status{p.Status.Containers, p.Status.Init, p.Status.Ephemeral} {
		for _, s := range list {
			one := all
			one.Container, one.Image = text(s.Name), text(images[s.Name])
			for _, id := range []string{s.ID, s.Last.Terminated.ID} {
				if _, id, ok := strings.Cut(id, "://"); ok && len(id) == 64 && isHex(id) {
					put(id, &one)
				}
			}
		}
	}
	return true
}

// controller returns the workload that a pod belongs to. A ReplicaSet of a Deployment is named after it and the hash of the pod's template; a Job of a
// CronJob after it and the minute, since 1970, for which the Job was due.
func (p *pod) controller() (kind, name string) {
	for _, o := range p.Metadata.Owners {
		if !o.Controller || o.Kind == "Node" { // a static pod's
			continue
		}
		kind, name = text(o.Kind), text(o.Name)
		if before, ok := strings.CutSuffix(name, "-"+p.Metadata.Labels.Hash); ok && kind == "ReplicaSet" && p.Metadata.Labels.Hash != "" && before != "" {
			return "Deployment", before
		}
		if i := strings.LastIndexByte(name, '-'); kind == "Job" && i > 0 {
			created, err := time.Parse(time.RFC3339, p.Metadata.Created)
			minute, number := strconv.ParseInt(name[i+1:], 10, 32)
			if due := created.Sub(time.Unix(60*minute, 0)); err == nil && number == nil && due.Abs() <= 24*time.Hour {
				return "CronJob", name[:i]
			}
		}
		return kind, name
	}
	return "", ""
}

// text returns the beginning of a name, in valid UTF-8.
func text(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	s = strings.ToValidUTF8(s, "")
	return strings.Clone(s)
}

// isUID says whether s is a UUID, or a static pod's hash.
func isUID(s string) bool {
	if len(s) == 36 {
		for _, i := range []int{8, 13, 18, 23} {
			if s[i] != '-' {
				return false
			}
		}
		return isHex(strings.ReplaceAll(s, "-", ""))
	}
	return len(s) == 32 && isHex(s)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
