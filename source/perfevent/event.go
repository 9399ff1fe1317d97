package perfevent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/source"
)

// An event is what perf's -e names: the part of a perf_event_attr that says what is counted.
type event struct {
	name                     string // as given, modifiers apart
	typ                      uint32
	config, config1, config2 uint64
	bpType                   uint32
	mods                     modifiers
	kernelOnly               bool // happens in the kernel only, so that leaving the kernel out leaves nothing
	noRaw                    bool // this user may not have a tracepoint's fields
	each                     bool // rare enough for every one to be recorded
	probe                    bool // of a kprobe or a uprobe
	uprobe                   bool
}

// A modifiers is what stands behind an event's name.
type modifiers struct {
	user, kernel, hv, host, guest, noIdle bool
	precise                               uint8
}

// A places says where the kernel describes its events; tests have their own.
type places struct {
	tracefs []string               // the first that has events/ is used
	mount   func() (string, error) // makes one more; may be nil
	devices string
}

var kernelPlaces = places{
	tracefs: []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"},
	mount:   mountTracefs,
	devices: "/sys/bus/event_source/devices",
}

// clock says whether e is cpu-clock or task-clock, PERF_COUNT_SW_* 0 and 1, by which samples are taken by a timer.
func (e *event) clock() bool { return e.typ == source.TypeSoftware && e.config <= 1 }

// PERF_COUNT_HW_*, PERF_COUNT_SW_* by number. The first spelling is the usual one.
var (
	hardwareEvents = [...][]string{
		{"cycles", "cpu-cycles"}, {"instructions"}, {"cache-references"}, {"cache-misses"}, {"branches", "branch-instructions"},
		{"branch-misses"}, {"bus-cycles"}, {"stalled-cycles-frontend", "idle-cycles-frontend"},
		{"stalled-cycles-backend", "idle-cycles-backend"}, {"ref-cycles"},
	}
	softwareEvents = [...][]string{
		{"cpu-clock"}, {"task-clock"}, {"page-faults", "faults"}, {"context-switches", "cs"}, {"cpu-migrations", "migrations"},
		{"minor-faults"}, {"major-faults"}, {"alignment-faults"}, {"emulation-faults"}, {"dummy"}, {"bpf-output"}, {"cgroup-switches"},
	}
	cacheNames = [...][]string{
		{"L1-dcache", "l1-d", "l1d", "L1-data"}, {"L1-icache", "l1-i", "l1i", "L1-instruction"}, {"LLC", "L2"},
		{"dTLB", "d-tlb", "Data-TLB"}, {"iTLB", "i-tlb", "Instruction-TLB"}, {"branch", "bpu", "btb", "bpc"}, {"node"},
	}
	cacheOps = [...][2]string{{"loads", "load-misses"}, {"stores", "store-misses"}, {"prefetches", "prefetch-misses"}}
)

const (
	swCPUClock       = 0
	swContextSwitch  = 3
	swCPUMigrations  = 4
	swDummy          = 9
	swCgroupSwitches = 11
)

// A fixed is an event that every kernel knows by number.
type fixed struct {
	typ    uint32
	config uint64
}

// fixedEvents are all of them by lower-case name; fixedNames the usual spellings, in the order of the tables.
var fixedEvents, fixedNames = func() (map[string]fixed, []string) {
	m, names := map[string]fixed{}, []string(nil)
	add := func(spellings []string, f fixed) {
		names = append(names, spellings[0])
		for _, s := range spellings {
			m[strings.ToLower(s)] = f
		}
	}
	for i, s := range hardwareEvents {
		add(s, fixed{source.TypeHardware, uint64(i)})
	}
	for i, s := range softwareEvents {
		add(s, fixed{source.TypeSoftware, uint64(i)})
	}
	for i, caches := range cacheNames {
		for op, results := range cacheOps {
			for miss, suffix := range results {
				var spellings []string
				for _, c := range caches {
					spellings = append(spellings, c+"-"+suffix)
				}
				add(spellings, fixed{source.TypeHWCache, uint64(i | op<<8 | miss<<16)})
			}
		}
	}
	return m, names
}()

// parseEvent reads an event as perf spells it:
//
//	NAME[:MODIFIERS]                cycles:u, page-faults, LLC-load-misses, mem-loads (as in sysfs)
//	rHEX[:MODIFIERS]                a raw event of the processor
//	SYSTEM:NAME[:MODIFIERS]         a tracepoint, as in tracefs
//	PMU/TERM[=N],…/[MODIFIERS]      an event of a performance monitoring unit, as in sysfs
//	mem:ADDR[/LEN][:ACCESS][:MODIFIERS]   a hardware breakpoint; ACCESS of r, w, x
//
// MODIFIERS are letters: u user, k kernel, h hypervisor, H host, G guest, I not idle, p (up to three) precise.
func parseEvent(s string, at places) (event, error) {
	switch {
	case s == "":
		return event{}, errors.New("event: no name")
	case strings.HasPrefix(s, "mem:"):
		return parseBreakpoint(s)
	case s == OffCPU || s == Allocations: // the event itself only brings records of mappings
		return event{name: s, typ: source.TypeSoftware, config: swDummy, each: true}, nil
	}
	if pmu, rest, ok := strings.Cut(s, "/"); ok {
		if unit, where, ok := strings.Cut(s, ":"); ok && probeTypes[unit] { // the slash is that of a path
			return event{}, unmadeProbe(s, unit, where)
		}
		return parsePMU(s, pmu, rest, at)
	}
	if strings.Contains(s, ",") {
		return event{}, fmt.Errorf("event %q: give one event only", s)
	}
	name, rest, more := strings.Cut(s, ":")
	e, ok := plainEvent(name, at)
	if !ok && more {
		return parseTracepoint(name, rest, at)
	}
	if !ok {
		return event{}, unknownEvent(s, at)
	}
	if !more {
		return e, nil
	}
	var err error
	if e.mods, err = parseModifiers(rest); err != nil {
		return event{}, fmt.Errorf("event %q: %w", s, err)
	}
	return e, nil
}

// plainEvent looks a name without modifiers up.
func plainEvent(name string, at places) (event, bool) {
	if f, ok := fixedEvents[strings.ToLower(name)]; ok {
		e := event{name: name, typ: f.typ, config: f.config}
		if f.typ == source.TypeSoftware {
			e.kernelOnly = f.config == swContextSwitch || f.config == swCPUMigrations || f.config == swCgroupSwitches
		}
		return e, true
	}
	if len(name) > 1 && name[0] == 'r' {
		if v, err := strconv.ParseUint(name[1:], 16, 64); err == nil {
			return event{name: name, typ: source.TypeRaw, config: v}, true
		}
	}
	if !plainWord(name) {
		return event{}, false
	}
	for _, pmu := range [...]string{"cpu", "cpu_core", "armv8_pmuv3", "armv8_pmuv3_0"} {
		terms, err := os.ReadFile(filepath.Join(at.devices, pmu, "events", name))
		if err != nil {
			continue
		}
		e := event{name: name}
		if e.setPMU(pmu, strings.TrimSpace(string(terms)), at) == nil {
			return e, true
		}
	}
	return event{}, false
}

func parseModifiers(s string) (m modifiers, err error) {
	for _, c := range s {
		switch c {
		case 'u':
			m.user = true
		case 'k':
			m.kernel = true
		case 'h':
			m.hv = true
		case 'H':
			m.host = true
		case 'G':
			m.guest = true
		case 'I':
			m.noIdle = true
		case 'p':
			if m.precise++; m.precise > 3 {
				return m, errors.New("at most three modifiers p")
			}
		default:
			return m, fmt.Errorf("unknown modifier %q, not one of u, k, h, H, G, I, p", c)
		}
	}
	if s == "" {
		return m, errors.New("no modifier behind the colon")
	}
	return m, nil
}

// plainWord says whether s can be a file's name below sysfs or tracefs and nothing else.
func plainWord(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' && i > 0) {
			return false
		}
	}
	return s != ""
}

func parseTracepoint(system, rest string, at places) (event, error) {
	name, mods, more := strings.Cut(rest, ":")
	full := system + ":" + name
	if !plainWord(system) || !plainWord(name) {
		return event{}, unknownEvent(full, at)
	}
	e := event{name: full, typ: source.TypeTracepoint, kernelOnly: true, each: true}
	if more {
		var err error
		if e.mods, err = parseModifiers(mods); err != nil {
			return event{}, fmt.Errorf("event %q: %w", full, err)
		}
	}
	root, err := at.events()
	if err != nil {
		if slices.Contains(fixedNames, strings.ToLower(system)) {
			return event{}, unknownEvent(full, at)
		}
		return event{}, fmt.Errorf("event %q: %w", full, err)
	}
	b, err := os.ReadFile(filepath.Join(root, system, name, "id"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return event{}, unknownEvent(full, at)
	case err != nil:
		return event{}, fmt.Errorf("event %q: %w: tracepoints are for root, and for users who can read tracefs", full, err)
	}
	e.config, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return event{}, fmt.Errorf("event %q: its id in tracefs: %w", full, err)
	}
	format, _ := os.ReadFile(filepath.Join(root, system, name, "format"))
	e.probe = bytes.Contains(format, []byte(" __probe_")) // a field that probes have, and nothing else
	uprobes, _ := os.ReadFile(filepath.Join(filepath.Dir(root), "uprobe_events"))
	e.uprobe = e.probe && bytes.Contains(uprobes, []byte(":"+system+"/"+name+" ")) // p:SYSTEM/NAME FILE:OFFSET
	return e, nil
}

// events returns tracefs' directory of tracepoints.
func (at places) events() (string, error) {
	err := fmt.Errorf("tracefs is not mounted: sudo mount -t tracefs tracefs %s", kernelPlaces.tracefs[0])
	for _, dir := range at.tracefs {
		dir = filepath.Join(dir, "events")
		f, e := os.Open(dir)
		if e == nil {
			f.Close()
			return dir, nil
		}
		if errors.Is(e, fs.ErrPermission) {
			err = fmt.Errorf("%w: tracepoints are for root, and for users who can read tracefs", e)
		}
	}
	if at.mount != nil {
		if dir, e := at.mount(); e == nil {
			return filepath.Join(dir, "events"), nil
		}
	}
	return "", err
}

// Access of a breakpoint (HW_BREAKPOINT_*).
var breakpointAccess = map[rune]uint32{'r': 1, 'w': 2, 'x': 4}

func parseBreakpoint(s string) (event, error) {
	bad := func(what string) (event, error) {
		return event{}, fmt.Errorf("event %q: %s: want mem:ADDR[/LEN][:rwx]", s, what)
	}
	parts := strings.Split(s, ":")
	if len(parts) > 4 {
		return bad("too many parts")
	}
	addr, length, hasLen := strings.Cut(parts[1], "/")
	e := event{typ: source.TypeBreakpoint, bpType: 3, config2: 4, each: true, name: strings.Join(parts[:min(len(parts), 3)], ":")}
	var err error
	if e.config1, err = strconv.ParseUint(addr, 0, 64); err != nil {
		return bad("no address")
	}
	if len(parts) > 2 {
		e.bpType = 0
		for _, c := range parts[2] {
			if breakpointAccess[c] == 0 {
				return bad("unknown access")
			}
			e.bpType |= breakpointAccess[c]
		}
		if e.bpType == 0 {
			return bad("no access")
		}
	}
	if e.bpType == 4 {
		e.config2 = 8 // sizeof(long), what the kernel wants of an instruction
	}
	if hasLen {
		if e.config2, err = strconv.ParseUint(length, 0, 64); err != nil || e.config2 == 0 || e.config2 > 8 {
			return bad("no length")
		}
	}
	if len(parts) > 3 {
		if e.mods, err = parseModifiers(parts[3]); err != nil {
			return event{}, fmt.Errorf("event %q: %w", s, err)
		}
	}
	return e, nil
}

// parsePMU reads PMU/TERMS/MODIFIERS.
func parsePMU(s, pmu, rest string, at places) (event, error) {
	terms, mods, ok := strings.Cut(rest, "/")
	if !ok {
		return event{}, fmt.Errorf("event %q: no second slash", s)
	}
	e := event{name: pmu + "/" + terms + "/"}
	if err := e.setPMU(pmu, terms, at); err != nil {
		return event{}, fmt.Errorf("event %q: %w", s, err)
	}
	if mods = strings.TrimPrefix(mods, ":"); mods != "" {
		var err error
		if e.mods, err = parseModifiers(mods); err != nil {
			return event{}, fmt.Errorf("event %q: %w", s, err)
		}
	}
	return e, nil
}

// setPMU sets what the terms of a unit's event say, by the unit's format/ and events/ in sysfs.
func (e *event) setPMU(pmu, terms string, at places) error {
	if !plainWord(pmu) {
		return fmt.Errorf("%q is not the name of a performance monitoring unit", pmu)
	}
	dir := filepath.Join(at.devices, pmu)
	b, err := os.ReadFile(filepath.Join(dir, "type"))
	if err != nil {
		var have []string
		if ents, err := os.ReadDir(at.devices); err == nil {
			for _, ent := range ents {
				have = append(have, ent.Name())
			}
		}
		return fmt.Errorf("no performance monitoring unit %q: this machine has %s", pmu, strings.Join(have, ", "))
	}
	typ, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil {
		return fmt.Errorf("the type of unit %q: %w", pmu, err)
	}
	e.typ = uint32(typ)
	return e.setTerms(dir, terms, 0)
}

func (e *event) setTerms(dir, terms string, depth int) error {
	for term := range strings.SplitSeq(terms, ",") {
		if term == "" {
			continue
		}
		name, text, hasValue := strings.Cut(term, "=")
		value := uint64(1)
		if hasValue {
			var err error
			if value, err = strconv.ParseUint(text, 0, 64); err != nil {
				return fmt.Errorf("term %q: no number", term)
			}
		}
		switch name {
		case "config":
			e.config = value
			continue
		case "config1":
			e.config1 = value
			continue
		case "config2":
			e.config2 = value
			continue
		case "name", "period", "freq":
			return fmt.Errorf("term %q: not supported", term)
		}
		if !plainWord(name) {
			return fmt.Errorf("term %q: unknown", term)
		}
		if format, err := os.ReadFile(filepath.Join(dir, "format", name)); err == nil {
			if err := e.setBits(strings.TrimSpace(string(format)), value); err != nil {
				return fmt.Errorf("term %q: %w", term, err)
			}
			continue
		}
		alias, err := os.ReadFile(filepath.Join(dir, "events", name))
		if err != nil || hasValue || depth > 0 {
			return fmt.Errorf("term %q: unknown to unit %q", term, filepath.Base(dir))
		}
		if err := e.setTerms(dir, strings.TrimSpace(string(alias)), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// setBits puts value where a format of sysfs says: "config:0-7,32-35".
func (e *event) setBits(format string, value uint64) error {
	field, ranges, ok := strings.Cut(format, ":")
	to := map[string]*uint64{"config": &e.config, "config1": &e.config1, "config2": &e.config2}[field]
	if !ok || to == nil {
		return fmt.Errorf("%w format %q", source.ErrUnsupported, format)
	}
	for r := range strings.SplitSeq(ranges, ",") {
		first, last, two := strings.Cut(r, "-")
		lo, err := strconv.ParseUint(first, 10, 6)
		hi := lo
		if err == nil && two {
			hi, err = strconv.ParseUint(last, 10, 6)
		}
		if err != nil || hi < lo {
			return fmt.Errorf("%w format %q", source.ErrMalformed, format)
		}
		mask := ^uint64(0) >> (63 - (hi - lo))
		*to = *to&^(mask<<lo) | value&mask<<lo
		if hi-lo == 63 {
			value = 0
		} else {
			value >>= hi - lo + 1
		}
	}
	if value != 0 {
		return fmt.Errorf("the number has more bits than %q", format)
	}
	return nil
}
