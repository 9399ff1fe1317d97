package otlp

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Fields of ProfilesDictionary.
const (
	mappingTable = 1 + iota
	locationTable
	functionTable
	linkTable
	stringTable
	attributeTable
	stackTable
)

// A table is a table of the dictionary: entries that are there once, the first of them the zero value.
type table struct {
	field int
	index map[string]int32
	out   message
}

func newTable(field int, zero []byte) *table {
	t := &table{field: field, index: map[string]int32{}}
	t.of(zero)
	return t
}

// of returns the index of an entry.
func (t *table) of(entry []byte) int32 {
	i, ok := t.index[string(entry)]
	if !ok {
		i = int32(len(t.index))
		t.index[string(entry)] = i
		t.out.element(t.field, entry)
	}
	return i
}

// A dictionary is a ProfilesDictionary as it is written.
type dictionary struct {
	p                                                                  *profile.Profile
	unnamed                                                            func(*profile.Module) bool
	mappings, locations, functions, links, strings, attributes, stacks *table
	groups                                                             map[string]int32 // locations by the frames in them
}

func newDictionary(b *export.Batch) *dictionary {
	var link message // the identifiers of a link to nothing, at their full lengths
	link.element(1, make([]byte, 16))
	link.element(2, make([]byte, 8))
	return &dictionary{
		p: b.Profile, unnamed: b.Unnamed, mappings: newTable(mappingTable, nil), locations: newTable(locationTable, nil), functions: newTable(functionTable, nil),
		links: newTable(linkTable, link), strings: newTable(stringTable, nil), attributes: newTable(attributeTable, nil),
		stacks: newTable(stackTable, nil), groups: map[string]int32{},
	}
}

func (d *dictionary) bytes() (out message) {
	for _, t := range []*table{d.mappings, d.locations, d.functions, d.links, d.strings, d.attributes, d.stacks} {
		out = append(out, t.out...)
	}
	return out
}

func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

func (d *dictionary) string(s string) uint64 { return uint64(d.strings.of([]byte(valid(s)))) }

// text and number return an AnyValue.
func text(s string) (v message) {
	v.element(1, []byte(valid(s)))
	return v
}

func list(values ...message) (v message) {
	var array message
	for _, e := range values {
		array.element(1, e)
	}
	v.element(5, array)
	return v
}

func number(n int64) (v message) {
	v.tag(3, varint)
	return binary.AppendUvarint(v, uint64(n))
}

func (d *dictionary) attribute(key string, value message) int32 {
	var m message
	m.uint(1, d.string(key))
	m.element(2, value)
	return d.attributes.of(m)
}

// mapping returns the index of a location's mapping. All of the kernel is one for each of its modules.
func (d *dictionary) mapping(l *profile.Loc) int32 {
	mod := &d.p.Modules[l.Module]
	var m message
	switch {
	case l.Mapping >= 0:
		k := &d.p.Mappings[l.Mapping]
		m.uint(1, k.Lo)
		m.uint(2, k.Hi)
		m.uint(3, k.Off)
	case mod.Kernel:
		m.uint(1, 1<<63)
		m.uint(2, math.MaxUint64)
		m.uint(3, 1<<63)
	default:
		return 0
	}
	m.uint(4, d.string(mod.Path))
	if mod.BuildID != "" {
		m.packed(5, d.attribute("process.executable.build_id.gnu", text(mod.BuildID)))
	}
	return d.mappings.of(m)
}

// location returns the index of a frame with the calls inlined in it, the frame last.
func (d *dictionary) location(group []uint32) int32 {
	var key []byte
	for _, f := range group {
		key = binary.LittleEndian.AppendUint32(key, f)
	}
	if i, ok := d.groups[string(key)]; ok {
		return i
	}
	l := &d.p.Locs[group[len(group)-1]]
	var m message
	m.uint(1, uint64(d.mapping(l)))
	m.uint(2, l.Addr)
	if !d.unnamed(&d.p.Modules[l.Module]) {
		for _, f := range group {
			m.element(3, d.line(&d.p.Locs[f]))
		}
	}
	kind := "native"
	if l.How == profile.HowKernel || d.p.Modules[l.Module].Kernel {
		kind = "kernel"
	}
	m.packed(4, d.attribute("profile.frame.type", text(kind)), d.attribute("unspool.frame.how", text(l.How.String())))
	i := d.locations.of(m)
	d.groups[string(key)] = i
	return i
}

func (d *dictionary) line(l *profile.Loc) (m message) {
	f := &d.p.Funcs[l.Func]
	linkage := f.Linkage
	if linkage == "" {
		linkage = f.Name
	}
	var fn message
	fn.uint(1, d.string(f.Name))
	fn.uint(2, d.string(linkage))
	fn.uint(3, d.string(d.p.File(l)))
	m.uint(1, uint64(d.functions.of(fn)))
	m.uint(2, uint64(l.Line))
	m.uint(3, uint64(l.Column))
	return m
}

func (d *dictionary) stack(frames []uint32) int32 {
	var at []int32
	for len(frames) > 0 {
		n := 1
		for n < len(frames) && d.p.Locs[frames[n-1]].Inlined {
			n++
		}
		group := frames[:n]
		if d.unnamed(&d.p.Modules[d.p.Locs[frames[n-1]].Module]) {
			group = frames[n-1 : n]
		}
		at = append(at, d.location(group))
		frames = frames[n:]
	}
	var m message
	m.packed(1, at...)
	return d.stacks.of(m)
}

// begin returns a sample without its value: its stack, and the labels that pprof has as comm, pid, tid and stop.
func (d *dictionary) begin(s *profile.Stack) (m message) {
	m.uint(1, uint64(d.stack(s.Frames)))
	var at []int32
	if s.Comm != "" {
		at = append(at, d.attribute("thread.name", text(s.Comm)))
	}
	if s.PID != 0 || s.TID != 0 {
		at = append(at, d.attribute("process.pid", number(int64(s.PID))), d.attribute("thread.id", number(int64(s.TID))))
	}
	if s.Stop != unwind.Outermost && !d.p.Totals.NoStops {
		at = append(at, d.attribute("unspool.stop", text(s.Stop.String())))
	}
	m.packed(2, at...)
	return m
}

// valueType returns a ValueType.
func (d *dictionary) valueType(name, unit string) (m message) {
	m.uint(1, d.string(name))
	m.uint(2, d.string(unit))
	return m
}

// A counted is one Profile: what is counted, and in which samples.
type counted struct {
	head    message // its type
	samples message
	weight  func(*profile.Stack) uint64
}

// request returns an ExportProfilesServiceRequest: a Profile for each event, and one that counts the samples of all.
func request(b *export.Batch) []byte {
	p := b.Profile
	d := newDictionary(b)
	var all []*counted
	add := func(name, unit string, weight func(*profile.Stack) uint64) {
		c := &counted{weight: weight}
		c.head.element(1, d.valueType(name, unit))
		all = append(all, c)
	}
	for i, e := range p.Events {
		name := e.Base()
		switch {
		case e.Name == profile.OffCPU:
			name = "off_cpu"
		case e.Unit == "nanoseconds":
			name = "cpu"
		}
		add(name, e.Unit, func(s *profile.Stack) uint64 {
			if int(s.Event) != i {
				return 0
			}
			return s.Period
		})
	}
	add("samples", "count", func(s *profile.Stack) uint64 { return s.Count })
	for i := range p.Stacks {
		s := &p.Stacks[i]
		head := d.begin(s)
		for _, c := range all {
			if w := c.weight(s); w != 0 {
				m := head[:len(head):len(head)]
				m.element(4, binary.AppendUvarint(nil, min(w, math.MaxInt64)))
				c.samples.element(2, m)
			}
		}
	}
	var scope, scoped, resource, profiles, out message
	scope.string(1, "unspool")
	version, _, _ := strings.Cut(cli.Version(), " ")
	scope.string(2, valid(version))
	scoped.element(1, scope)
	for _, c := range all {
		m := append(c.head, c.samples...)
		m.fixed(3, uint64(p.Start.UnixNano()))
		m.uint(4, uint64(p.Duration))
		if len(p.Events) == 1 && p.Totals.Samples > 0 && !p.Waits() { // waits have no rate
			m.element(5, all[0].head[2:]) // behind the tag and the length of less than 128 bytes
			m.uint(6, min(p.Totals.Period/p.Totals.Samples, math.MaxInt64))
		}
		scoped.element(2, m)
	}
	put := func(key string, value message) {
		var kv message
		kv.string(1, key)
		kv.element(2, value)
		resource.element(1, kv)
	}
	for _, l := range b.Labels {
		if l.Name == "image" {
			name, tag := splitImage(l.Value)
			put("container.image.name", text(name))
			if tag != "" {
				put("container.image.tags", list(text(tag)))
			}
			continue
		}
		put(attributeName(b, l.Name), text(l.Value))
	}
	profiles.element(1, resource)
	profiles.element(2, scoped)
	out.element(1, profiles)
	out.element(2, d.bytes())
	return out
}

// attributeName is a label's name by OpenTelemetry's conventions. Without a pod, some labels are not of Kubernetes.
func attributeName(b *export.Batch, label string) string {
	pod := b.Label("pod_uid") != ""
	switch label {
	case export.ServiceName:
		return "service.name"
	case "service_namespace":
		return "service.namespace"
	case "service_instance_id":
		return "service.instance.id"
	case "service_version":
		return "service.version"
	case "deployment_environment_name":
		return "deployment.environment.name"
	case "node":
		return "host.name"
	case "container_id":
		return "container.id"
	case "pod_uid":
		return "k8s.pod.uid"
	case "cgroup":
		return "process.linux.cgroup"
	case "executable":
		return "process.executable.path"
	case "executable_build_id":
		return "process.executable.build_id.gnu"
	case "cmdline":
		return "process.command_line"
	case "container":
		if !pod {
			return "container.name"
		}
		return "k8s.container.name"
	case "pod", "namespace":
		if pod {
			return "k8s." + label + ".name"
		}
	case "controller":
		switch kind := b.Label("controller_kind"); kind {
		case "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "CronJob", "Job":
			return "k8s." + strings.ToLower(kind) + ".name"
		}
	}
	return label
}

// splitImage splits a reference to an image, NAME:TAG@DIGEST, into its name and tag. The name may have a port.
func splitImage(image string) (name, tag string) {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i], image[i+1:]
	}
	return image, ""
}
