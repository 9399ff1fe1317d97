package report

import (
	"cmp"
	"io"
	"slices"
	"strconv"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Speedscope writes a profile for speedscope (www.speedscope.app), by the schema in its npm package, file-format-schema.json: one of type
// "sampled" for each thread. A profile has no times: the samples of a thread stand one after the other, as they do not in a Stream of
// NewSpeedscope. As in a flame graph, the outermost frame is the thread's name, and the next "[truncated]" or "[broken]" for a stack
// that is not whole. The name of all has the counts.
func Speedscope(w io.Writer, p *profile.Profile, o Options) error {
	f := newSpeedscope(&o)
	locs := make([]int32, len(p.Locs))
	for i := range p.Locs {
		fr := frameOf(p, &p.Locs[i])
		locs[i] = f.frame(&fr)
	}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		f.begin(s.Comm, s.Stop, p.Totals.NoStops)
		for _, l := range slices.Backward(s.Frames) {
			f.stack = appendInt(append(f.stack, ','), locs[l])
		}
		f.end(s.PID, s.TID, s.Comm, 0, o.weight(s))
	}
	o.Title = title(p, &o)
	_, err := w.Write(f.close(nil, &ending{&p.Totals, &p.Info, &o, func(b []byte) []byte { return b }}))
	return err
}

// A speedscope collects what the format has before the samples, and the samples.
type speedscope struct {
	opts   *Options
	timed  bool
	frames fxTable[ssFrame]
	files  map[string]int // of functions, by name and module: the frame in which one was first seen
	locs   [][]int32      // of a Stream's locations: the frame, then the calls inlined in it, outermost first
	stacks fxTable[string]
	stack  []byte // scratch: the text of one

	threads []*ssThread
	ids     map[[2]int32]*ssThread
}

type ssFrame struct{ name, file string }

type ssThread struct {
	pid, tid int32
	comm     string
	samples  []ssSample
	weight   uint64
}

type ssSample struct {
	at     uint64 // ns
	weight uint64 // in a Stream: the period
	stack  int32
}

func newSpeedscope(o *Options) *speedscope {
	return &speedscope{opts: o, files: map[string]int{}, ids: map[[2]int32]*ssThread{}}
}

// frame returns the number of a frame: one for each function, with the file in which it was first seen. The format has no lines for single
// samples.
func (f *speedscope) frame(fr *frame) int32 {
	key := fr.module + "\x00" + fr.name
	id, ok := f.files[key]
	switch {
	case !ok:
		id = len(f.frames.rows)
		f.frames.rows = append(f.frames.rows, ssFrame{fr.name, cmp.Or(fr.file, fr.module)})
		f.files[key] = id
	case fr.file != "" && f.frames.rows[id].file == fr.module:
		f.frames.rows[id].file = fr.file
	}
	return int32(id)
}

// plain returns the number of a frame that is no function.
func (f *speedscope) plain(name string) int32 { return f.frame(&frame{name: name}) }

// begin begins the text of a stack.
func (f *speedscope) begin(comm string, stop unwind.Stop, noStops bool) {
	f.stack = appendInt(append(f.stack[:0], '['), f.plain(cmp.Or(comm, profile.Unknown)))
	if m := profile.Mark(stop); m != "" && !noStops {
		f.stack = appendInt(append(f.stack, ','), f.plain(m))
	}
}

// end enters the stack as a sample.
func (f *speedscope) end(pid, tid int32, comm string, at, weight uint64) {
	k := [2]int32{pid, tid}
	t := f.ids[k]
	if t == nil {
		t = &ssThread{pid: pid, tid: tid}
		f.ids[k] = t
		f.threads = append(f.threads, t)
	}
	t.comm = comm
	if f.timed || weight > 0 {
		t.samples = append(t.samples, ssSample{at, weight, f.stacks.id(string(append(f.stack, ']')))})
	}
}

func (f *speedscope) location(frames []frame) {
	var ids []int32
	for i := range slices.Backward(frames) {
		ids = append(ids, f.frame(&frames[i]))
	}
	f.locs = append(f.locs, ids)
}

func (f *speedscope) sample(b []byte, _ *profile.Info, s *profile.Sample, ids []uint32) []byte {
	stop := s.Stop
	if !s.HasUser && len(s.User) == 0 {
		stop = unwind.NoUserStack
	}
	f.begin(s.Comm, stop, false)
	for _, id := range slices.Backward(ids) {
		for _, frame := range f.locs[id] {
			f.stack = appendInt(append(f.stack, ','), frame)
		}
	}
	f.end(s.PID, s.TID, s.Comm, s.Time, s.Period)
	return b
}

// weigh sets the weights of samples. With times they are ns: a wait's length, else the time from one sample to the next, the same for all;
// unit is theirs.
func (f *speedscope) weigh(info *profile.Info, totals *profile.Totals) (unit string) {
	clock := f.opts.By == Periods && len(info.Events) == 1 && info.Events[0].Unit == "nanoseconds"
	step := uint64(fxInterval(info, totals))
	for _, t := range f.threads {
		for i := range t.samples {
			s := &t.samples[i]
			if f.timed && !clock {
				s.weight = step
			}
			t.weight += s.weight
		}
	}
	if f.timed || clock {
		return "nanoseconds"
	}
	return "none"
}

func (f *speedscope) close(b []byte, end *ending) []byte {
	info := end.info
	unit := f.weigh(info, end.totals)
	slices.SortStableFunc(f.threads, func(a, b *ssThread) int { return cmp.Or(cmp.Compare(a.pid, b.pid), cmp.Compare(a.tid, b.tid)) })
	first, active := ^uint64(0), 0
	for i, t := range f.threads {
		for _, s := range t.samples {
			first = min(first, s.at-min(s.weight, s.at))
		}
		if t.weight > f.threads[active].weight {
			active = i
		}
	}
	b = append(b, `{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"unspool","name":`...)
	b = appendQuoted(b, cmp.Or(end.opts.Title, info.Command, "unspool")+" · "+info.Title(end.totals.Summary(info.Loss)))
	b = strconv.AppendInt(append(b, ",\n\"activeProfileIndex\":"...), int64(active), 10)
	b = append(b, ",\n\"shared\":{\"frames\":["...)
	for i, fr := range f.frames.rows {
		b = appendQuoted(append(comma(b, i), `{"name":`...), fr.name)
		if fr.file != "" {
			b = appendQuoted(append(b, `,"file":`...), fr.file)
		}
		b = end.flush(append(b, '}'))
	}
	b = append(b, "]},\n\"profiles\":["...)
	n := 0
	for _, t := range f.threads {
		if t.weight == 0 && !f.timed {
			continue
		}
		b = f.appendThread(comma(b, n), t, unit, first, end.flush)
		n++
	}
	return append(b, "]}\n"...)
}

// appendThread writes the samples of a thread. Where there were none for some time, there is one of no frame for as long; what is less than
// half a sample is left out.
func (f *speedscope) appendThread(b []byte, t *ssThread, unit string, first uint64, flush func([]byte) []byte) []byte {
	name := cmp.Or(t.comm, profile.Unknown)
	if t.pid != 0 || t.tid != 0 {
		name += " (" + strconv.Itoa(int(t.pid)) + "/" + strconv.Itoa(int(t.tid)) + ")"
	}
	var out []ssSample // stack -1: a gap
	start, at := uint64(0), uint64(0)
	for i, s := range t.samples {
		begin := s.at - min(s.weight, s.at) - first
		switch {
		case !f.timed:
		case i == 0:
			start, at = begin, begin
		case begin > at && begin-at > s.weight/2:
			out = append(out, ssSample{weight: begin - at, stack: -1})
			at = begin
		}
		out = append(out, s)
		at += s.weight
	}
	b = appendQuoted(append(b, `{"type":"sampled","name":`...), name)
	b = appendQuoted(append(b, `,"unit":`...), unit)
	b = strconv.AppendUint(append(b, `,"startValue":`...), start, 10)
	b = strconv.AppendUint(append(b, `,"endValue":`...), at, 10)
	b = append(b, ",\n\"samples\":["...)
	for i, s := range out {
		if b = comma(b, i); s.stack < 0 {
			b = append(b, "[]"...)
		} else {
			b = append(b, f.stacks.rows[s.stack]...)
		}
		b = flush(b)
	}
	b = append(b, "],\n\"weights\":["...)
	for i, s := range out {
		if i > 0 {
			b = append(b, ',')
		}
		b = flush(strconv.AppendUint(b, s.weight, 10))
	}
	return append(b, "]}"...)
}
