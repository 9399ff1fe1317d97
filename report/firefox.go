package report

import (
	"cmp"
	"encoding/hex"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Firefox writes a profile for the Firefox Profiler (profiler.firefox.com), in version 60 of its processed format, the first
// whose threads share their tables; see docs-developer/CHANGELOG-formats.md and src/types/profile.ts there. A profile has
// no times: the samples of each thread stand one after the other, as they do not in a Stream of NewFirefox.
//
// As in a flame graph, a stack that is not whole begins with a frame "[truncated]" or "[broken]". The counts are in the
// profile's information.
func Firefox(w io.Writer, p *profile.Profile, o Options) error {
	f := newFirefox(&o)
	type numbered struct{ depth, id int32 }
	ids := make([]numbered, len(p.Locs)) // of the frame for a location at that depth of inlined calls; 0: none yet
	step := uint64(fxInterval(&p.Info, &p.Totals))
	for i := range p.Stacks {
		s := &p.Stacks[i]
		mk := ""
		if !p.Totals.NoStops {
			mk = profile.Mark(s.Stop)
		}
		at, depth, outer := f.root(mk), int32(0), int32(-1)
		for _, l := range slices.Backward(s.Frames) {
			if depth++; !p.Locs[l].Inlined || outer < 0 {
				depth = 0
			}
			n := &ids[l]
			if n.id == 0 || n.depth != depth {
				fr := frameOf(p, &p.Locs[l])
				*n = numbered{depth, f.frame(&fr, depth, outer) + 1}
			}
			if depth == 0 {
				outer = n.id - 1
			}
			at = f.down(at, n.id-1)
		}
		t := f.thread(s.PID, s.TID, s.Comm)
		t.add(t.end, at, o.weight(s))
		t.end += step * s.Count
	}
	end := &ending{&p.Totals, &p.Info, &o, func(b []byte) []byte { return b }}
	_, err := w.Write(f.close(nil, end))
	return err
}

// A firefox collects the tables of the format. Each has its columns side by side; here they are rows.
type firefox struct {
	opts *Options
	locs [][]int32 // of a Stream's locations: the frame, then the calls inlined in it, outermost first

	strings   fxTable[string]
	libs      fxTable[fxLib]
	sources   fxTable[int32] // strings
	natives   fxTable[fxNative]
	funcs     fxTable[fxFunc]
	fileOf    map[int32]int32 // by function: the source that was seen first; -1: none
	frames    fxTable[fxFrame]
	stacks    fxTable[fxStack]
	threads   []*fxThread
	threadIDs map[[2]int32]*fxThread
	base      uint64 // time of the first sample
}

// An fxTable numbers distinct rows.
type fxTable[T comparable] struct {
	rows []T
	ids  map[T]int32
}

func (t *fxTable[T]) id(row T) int32 {
	id, ok := t.ids[row]
	if !ok {
		if t.ids == nil {
			t.ids = map[T]int32{}
		}
		id = int32(len(t.rows))
		t.ids[row] = id
		t.rows = append(t.rows, row)
	}
	return id
}

type (
	fxLib    struct{ path, buildID string }
	fxNative struct {
		lib  int32
		addr uint64
		name int32
	}
	fxFunc  struct{ name, lib int32 } // lib -1: none
	fxFrame struct {
		fn, native, depth, category int32 // native -1: none
		addr                        int64 // in the library's file; -1: not known
		line, column                uint32
	}
	fxStack struct{ prefix, frame int32 } // prefix -1: outermost
)

// Categories of frames, as fxCategories has them.
const (
	fxOther = iota
	fxUser
	fxKernel
)

const fxCategories = `[{"name":"Other","color":"grey","subcategories":["Other"]},{"name":"User","color":"yellow","subcategories":["Other"]},` +
	`{"name":"Kernel","color":"orange","subcategories":["Other"]}]`

// An fxThread has the samples of a thread.
type fxThread struct {
	pid, tid int32
	comm     string
	end      uint64 // ns; of the last sample or, where there are no times, after it
	times    []uint64
	stacks   []int32 // -1: none
	weights  []uint64

	last []uint32 // the locations of the sample before, outermost first, and their nodes
	at   []int32
	root int32
}

func newFirefox(o *Options) *firefox {
	return &firefox{opts: o, fileOf: map[int32]int32{}, threadIDs: map[[2]int32]*fxThread{}}
}

func (f *firefox) thread(pid, tid int32, comm string) *fxThread {
	k := [2]int32{pid, tid}
	t := f.threadIDs[k]
	if t == nil {
		t = &fxThread{pid: pid, tid: tid, root: -2}
		f.threadIDs[k] = t
		f.threads = append(f.threads, t)
	}
	t.comm = comm
	return t
}

func (t *fxThread) add(time uint64, stack int32, weight uint64) {
	t.times, t.stacks, t.weights = append(t.times, time), append(t.stacks, stack), append(t.weights, weight)
}

// root returns the stack that has nothing but a mark; -1 where there is none.
func (f *firefox) root(mark string) int32 {
	if mark == "" {
		return -1
	}
	fn := f.funcs.id(fxFunc{f.strings.id(mark), -1})
	f.setFile(fn, "")
	return f.down(-1, f.frames.id(fxFrame{fn: fn, native: -1, category: fxOther, addr: -1}))
}

func (f *firefox) down(at, frame int32) int32 { return f.stacks.id(fxStack{at, frame}) }

func (f *firefox) setFile(fn int32, file string) {
	if at, ok := f.fileOf[fn]; !ok || at < 0 && file != "" {
		at = -1
		if file != "" {
			at = f.sources.id(f.strings.id(file))
		}
		f.fileOf[fn] = at
	}
}

// frame returns the number of a frame, or of the depth-th call that is inlined in the frame outer, whose symbol it has.
func (f *firefox) frame(fr *frame, depth, outer int32) int32 {
	out := fxFrame{native: -1, depth: depth, category: fxUser, addr: -1, line: fr.line, column: fr.column}
	if fr.kernel {
		out.category = fxKernel
	}
	lib := int32(-1)
	if fr.module != "" {
		lib = f.libs.id(fxLib{fr.module, fr.buildID})
		if fr.off < 1<<31 { // else it is an absolute address, which the format has no place for
			out.addr = int64(fr.off)
		}
	}
	name := f.strings.id(fr.name)
	out.fn = f.funcs.id(fxFunc{name, lib})
	f.setFile(out.fn, fr.file)
	switch {
	case depth > 0:
		out.native = f.frames.rows[outer].native
	case out.addr >= 0 && fr.named && fr.start != 0:
		out.native = f.natives.id(fxNative{lib, fr.start, name})
	}
	return f.frames.id(out)
}

func (f *firefox) location(frames []frame) {
	var ids []int32
	for i := range frames {
		ids = append(ids, f.frame(&frames[len(frames)-1-i], int32(i), append(ids, -1)[0]))
	}
	f.locs = append(f.locs, ids)
}

func (f *firefox) sample(b []byte, info *profile.Info, s *profile.Sample, ids []uint32) []byte {
	if len(f.threads) == 0 {
		f.base = s.Time
	}
	stop := s.Stop
	if !s.HasUser && len(s.User) == 0 {
		stop = unwind.NoUserStack
	}
	t := f.thread(s.PID, s.TID, s.Comm)
	root := f.root(profile.Mark(stop))
	if root != t.root {
		t.root, t.last, t.at = root, t.last[:0], t.at[:0]
	}
	// The outer frames are mostly those of the sample before.
	n, same := len(ids), 0
	for same < n && same < len(t.last) && t.last[same] == ids[n-1-same] {
		same++
	}
	t.last, t.at = t.last[:same], t.at[:same]
	at := root
	if same > 0 {
		at = t.at[same-1]
	}
	for _, id := range slices.Backward(ids[:n-same]) {
		for _, frame := range f.locs[id] {
			at = f.down(at, frame)
		}
		t.last, t.at = append(t.last, id), append(t.at, at)
	}
	weight := uint64(1)
	if f.opts.By == Periods {
		weight = s.Period
	}
	t.end = max(t.end, s.Time-min(f.base, s.Time))
	t.add(t.end, at, weight)
	return b
}

// fxInterval is how far samples are apart, in ns.
func fxInterval(info *profile.Info, t *profile.Totals) time.Duration {
	n := max(t.Samples, 1)
	switch {
	case len(info.Events) == 1 && info.Events[0].Unit == "nanoseconds" && t.Period >= n:
		return time.Duration(clampInt64(t.Period / n))
	case info.Duration > 0:
		return max(info.Duration/time.Duration(n), 1)
	}
	return time.Millisecond
}

func (f *firefox) close(b []byte, end *ending) []byte {
	info, o := end.info, f.opts
	interval := uint64(fxInterval(info, end.totals))
	last := uint64(0) // the last sample takes an interval, too
	for _, t := range f.threads {
		last = max(last, t.end+interval)
	}
	b = append(b, `{"meta":{"preprocessedProfileVersion":60,"version":32,"processType":0,"stackwalk":1,"symbolicated":true,"usesOnlyOneStackType":true,`...)
	b = append(b, `"sourceCodeIsNotOnSearchfox":true,"markerSchema":[],"sampleUnits":{"time":"ms","eventDelay":"ms","threadCPUDelta":"ns"},`...)
	b = appendMillis(append(b, `"interval":`...), interval)
	start := uint64(0)
	if !info.Start.IsZero() {
		start = uint64(max(info.Start.UnixNano(), 0))
	}
	b = appendMillis(append(b, `,"startTime":`...), start)
	b = appendMillis(append(b, `,"profilingStartTime":0,"profilingEndTime":`...), last)
	b = appendQuoted(append(b, `,"product":`...), cmp.Or(o.Title, info.Command, "unspool"))
	b = append(append(b, `,"importedFrom":"unspool","categories":`...), fxCategories...)
	if info.Host != "" {
		b = appendQuoted(append(b, `,"device":`...), info.Host)
	}
	b = appendQuoted(append(b, `,"extra":[{"label":"Stacks","entries":[{"label":"Samples","format":"string","value":`...), end.totals.Summary(info.Loss))
	b = append(b, `}]}]},`...)

	b = append(b, "\n\"libs\":["...)
	for i, l := range f.libs.rows {
		m := profile.Module{Path: l.path}
		b = comma(b, i)
		b = appendQuoted(append(b, `{"arch":"","name":`...), m.Base())
		b = appendQuoted(append(b, `,"path":`...), l.path)
		b = appendQuoted(append(b, `,"debugName":`...), m.Base())
		b = appendQuoted(append(b, `,"debugPath":`...), l.path)
		b = appendQuoted(append(b, `,"breakpadId":`...), breakpadID(l.buildID))
		b = append(b, `,"codeId":`...)
		if l.buildID == "" {
			b = append(b, "null}"...)
		} else {
			b = append(appendQuoted(b, l.buildID), '}')
		}
	}
	b = end.flush(append(b, "],\n\"shared\":{"...))
	b = f.tables(b, end.flush)

	b = append(b, "},\n\"threads\":["...)
	names := map[int32]string{} // of processes
	for _, t := range f.threads {
		if names[t.pid] == "" || t.pid == t.tid {
			names[t.pid] = t.comm
		}
	}
	slices.SortStableFunc(f.threads, func(a, b *fxThread) int { return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid)) })
	for i, t := range f.threads {
		b = f.appendThread(comma(b, i), t, names[t.pid], weightType(info, o), end.flush)
	}
	return append(b, "]}\n"...)
}

// weightType says what weights are: "samples", or milliseconds.
func weightType(info *profile.Info, o *Options) string {
	if o.By == Periods && len(info.Events) == 1 && info.Events[0].Unit == "nanoseconds" {
		return "tracing-ms"
	}
	return "samples"
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ",\n"...)
	}
	return b
}

// column appends a column of a table: "key":[…],
func column[T any](b []byte, flush func([]byte) []byte, key string, rows []T, value func([]byte, T) []byte) []byte {
	b = append(append(append(b, '"'), key...), `":[`...)
	for i, r := range rows {
		if i > 0 {
			b = append(b, ',')
		}
		b = flush(value(b, r))
	}
	return append(b, "],\n"...)
}

// length appends the last member of a table and ends it.
func length(b []byte, n int) []byte {
	return append(strconv.AppendInt(append(b, `"length":`...), int64(n), 10), '}')
}

func appendInt[T int32 | int64 | uint32](b []byte, n T) []byte {
	return strconv.AppendInt(b, int64(n), 10)
}

// orNull appends n, or null if that is less than least.
func orNull[T int32 | int64 | uint32](b []byte, n, least T) []byte {
	if n < least {
		return append(b, "null"...)
	}
	return appendInt(b, n)
}

func literal[T any](s string) func([]byte, T) []byte {
	return func(b []byte, _ T) []byte { return append(b, s...) }
}

// tables appends the tables that all threads share.
func (f *firefox) tables(b []byte, flush func([]byte) []byte) []byte {
	open := func(name string) { b = append(append(append(b, '"'), name...), `":{`...) }
	next := func(n int) { b = append(length(b, n), ",\n"...) }

	// Resources are the libraries; their names are strings like all others.
	var libNames []int32
	for _, l := range f.libs.rows {
		libNames = append(libNames, f.strings.id((&profile.Module{Path: l.path}).Base()))
	}
	b = column(b, flush, "stringArray", f.strings.rows, appendQuoted)

	open("sources")
	b = column(b, flush, "uuid", f.sources.rows, literal[int32]("null"))
	b = column(b, flush, "filename", f.sources.rows, appendInt)
	next(len(f.sources.rows))

	open("resourceTable")
	lib := int32(-1)
	b = column(b, flush, "lib", libNames, func(b []byte, _ int32) []byte { lib++; return appendInt(b, lib) })
	b = column(b, flush, "name", libNames, appendInt)
	b = column(b, flush, "host", libNames, literal[int32]("null"))
	b = column(b, flush, "type", libNames, literal[int32]("1"))
	next(len(libNames))

	open("nativeSymbols")
	b = column(b, flush, "libIndex", f.natives.rows, func(b []byte, n fxNative) []byte { return appendInt(b, n.lib) })
	b = column(b, flush, "address", f.natives.rows, func(b []byte, n fxNative) []byte { return strconv.AppendUint(b, n.addr, 10) })
	b = column(b, flush, "name", f.natives.rows, func(b []byte, n fxNative) []byte { return appendInt(b, n.name) })
	b = column(b, flush, "functionSize", f.natives.rows, literal[fxNative]("null"))
	next(len(f.natives.rows))

	open("funcTable")
	files := make([]int32, len(f.funcs.rows))
	for i := range files {
		files[i] = f.fileOf[int32(i)]
	}
	b = column(b, flush, "name", f.funcs.rows, func(b []byte, n fxFunc) []byte { return appendInt(b, n.name) })
	b = column(b, flush, "isJS", f.funcs.rows, literal[fxFunc]("false"))
	b = column(b, flush, "relevantForJS", f.funcs.rows, literal[fxFunc]("false"))
	b = column(b, flush, "resource", f.funcs.rows, func(b []byte, n fxFunc) []byte { return appendInt(b, n.lib) })
	b = column(b, flush, "source", files, func(b []byte, n int32) []byte { return orNull(b, n, 0) })
	b = column(b, flush, "lineNumber", files, literal[int32]("null"))
	b = column(b, flush, "columnNumber", files, literal[int32]("null"))
	next(len(files))

	open("frameTable")
	of := func(key string, value func([]byte, fxFrame) []byte) { b = column(b, flush, key, f.frames.rows, value) }
	of("address", func(b []byte, n fxFrame) []byte { return appendInt(b, n.addr) })
	of("inlineDepth", func(b []byte, n fxFrame) []byte { return appendInt(b, n.depth) })
	of("category", func(b []byte, n fxFrame) []byte { return appendInt(b, n.category) })
	of("subcategory", literal[fxFrame]("0"))
	of("func", func(b []byte, n fxFrame) []byte { return appendInt(b, n.fn) })
	of("nativeSymbol", func(b []byte, n fxFrame) []byte { return orNull(b, n.native, 0) })
	of("innerWindowID", literal[fxFrame]("0"))
	of("line", func(b []byte, n fxFrame) []byte { return orNull(b, n.line, 1) })
	of("column", func(b []byte, n fxFrame) []byte { return orNull(b, n.column, 1) })
	next(len(f.frames.rows))

	open("stackTable")
	b = column(b, flush, "frame", f.stacks.rows, func(b []byte, n fxStack) []byte { return appendInt(b, n.frame) })
	b = column(b, flush, "prefix", f.stacks.rows, func(b []byte, n fxStack) []byte { return orNull(b, n.prefix, 0) })
	return length(b, len(f.stacks.rows))
}

func (f *firefox) appendThread(b []byte, t *fxThread, process, weightType string, flush func([]byte) []byte) []byte {
	b = appendQuoted(append(b, `{"processType":"default","processStartupTime":0,"processShutdownTime":null,"registerTime":0,"unregisterTime":null,"pausedRanges":[],"name":`...), cmp.Or(t.comm, profile.Unknown))
	b = appendQuoted(append(b, `,"processName":`...), cmp.Or(process, profile.Unknown))
	b = strconv.AppendBool(append(b, `,"isMainThread":`...), t.pid == t.tid)
	b = append(strconv.AppendInt(append(b, `,"pid":"`...), int64(t.pid), 10), '"')
	b = strconv.AppendInt(append(b, `,"tid":`...), int64(t.tid), 10)
	b = append(b, `,"markers":{"data":[],"name":[],"startTime":[],"endTime":[],"phase":[],"category":[],"length":0},"samples":{`...)
	b = column(b, flush, "stack", t.stacks, func(b []byte, n int32) []byte { return orNull(b, n, 0) })
	b = column(b, flush, "time", t.times, appendMillis)
	if one := func(n uint64) bool { return n == 1 }; weightType == "samples" && !slices.ContainsFunc(t.weights, func(n uint64) bool { return !one(n) }) {
		b = append(b, "\"weight\":null,\n"...)
	} else {
		b = column(b, flush, "weight", t.weights, func(b []byte, n uint64) []byte {
			if weightType == "samples" {
				return strconv.AppendUint(b, n, 10)
			}
			return appendMillis(b, n)
		})
	}
	b = appendQuoted(append(b, `"weightType":`...), weightType)
	return append(length(append(b, ','), len(t.times)), '}')
}

// appendMillis appends ns as milliseconds, exactly.
func appendMillis(b []byte, ns uint64) []byte {
	b = strconv.AppendUint(b, ns/1e6, 10)
	if frac := ns % 1e6; frac > 0 {
		digits := strconv.AppendUint(nil, 1e6+frac, 10)
		digits[0] = '.'
		b = append(b, strings.TrimRight(string(digits), "0")...)
	}
	return b
}

// breakpadID is a build ID as symbol servers know it: its first 16 bytes as a GUID, whose first three parts are little-endian
// numbers, and an age of 0.
func breakpadID(buildID string) string {
	id, err := hex.DecodeString(buildID)
	if err != nil || len(id) == 0 {
		return ""
	}
	g := make([]byte, 16)
	copy(g, id)
	slices.Reverse(g[:4])
	slices.Reverse(g[4:6])
	slices.Reverse(g[6:8])
	return strings.ToUpper(hex.EncodeToString(g)) + "0"
}
