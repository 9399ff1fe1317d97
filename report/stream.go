package report

import (
	"io"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/unspool/unspool/profile"
)

// A Stream writes samples one after the other. It is not safe for concurrent use.
type Stream struct {
	w      io.Writer
	locs   *profile.Locations
	known  int               // locations that format knows
	bare   []bool            // of them, those without names
	silent map[uint32]uint64 // what samples in them weigh
	namer  profile.Namer
	info   profile.Info
	totals profile.Totals
	ids    []uint32
	buf    []byte
	err    error
	format streamFormat
	opts   Options
}

// A streamFormat is what streams differ in.
type streamFormat interface {
	// location tells of the next location: the calls that were inlined there, innermost first, and the frame.
	location(frames []frame)
	sample(b []byte, info *profile.Info, s *profile.Sample, ids []uint32) []byte
	close(b []byte, end *ending) []byte
}

// An ending is what is known after the last sample.
type ending struct {
	totals *profile.Totals
	info   *profile.Info
	opts   *Options
	flush  func([]byte) []byte // writes what is not small any more
}

// tails is the part of a text format that does not change from sample to sample, by location and frame.
type tails [][][]byte

func (t *tails) add(frames []frame, tail func([]byte, *frame) []byte) {
	var list [][]byte
	for i := range frames {
		list = append(list, tail(nil, &frames[i]))
	}
	*t = append(*t, list)
}

// A frame is what is written of a location.
type frame struct {
	name    string // as all reports have it
	named   bool
	module  string
	buildID string
	kernel  bool
	addr    uint64
	off     uint64
	start   uint64
	how     profile.How

	inlined      bool
	file         string // "": not known
	line, column uint32 // 0: not known
}

// NewPerf returns a Stream of text as perf script prints it.
func NewPerf(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	return newStream(w, n, info, o, &perfText{})
}

// NewFirefox returns a Stream of a profile for the Firefox Profiler; see Firefox. Its samples have their times. Until it
// is closed, it keeps about 20 bytes for each.
func NewFirefox(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	return newStream(w, n, info, o, newFirefox(&o))
}

// NewSpeedscope returns a Stream of profiles for speedscope, one for each thread; see Speedscope. Its samples stand where their times are, in
// ns: its "time order" is that. Until it is closed, it keeps 24 bytes for each.
func NewSpeedscope(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	f := newSpeedscope(&o)
	f.timed = true
	return newStream(w, n, info, o, f)
}

// NewJSON returns a Stream of one JSON object a sample.
func NewJSON(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	return newStream(w, n, info, o, &jsonLines{})
}

func newStream(w io.Writer, n profile.Namer, info profile.Info, o Options, f streamFormat) *Stream {
	return &Stream{w: w, locs: profile.NewLocations(), silent: map[uint32]uint64{}, namer: n, info: info, opts: o, format: f, buf: make([]byte, 0, 1<<17)}
}

// Sample writes s. It keeps no part of it, and asks for the name of a location when it first sees it. After an error of the writer, it only
// returns this error again.
func (st *Stream) Sample(s *profile.Sample) error {
	if st.err != nil {
		return st.err
	}
	st.totals.Count(s)
	st.ids = st.locs.Intern(s, st.ids[:0])
	for ; st.known < st.locs.Len(); st.known++ {
		frames := st.frames(uint32(st.known))
		st.format.location(frames)
		st.bare = append(st.bare, !frames[len(frames)-1].named)
	}
	st.tally(s.Period)
	st.buf = st.flush(st.format.sample(st.buf, &st.info, s, st.ids))
	return st.err
}

// frames returns what is written of a location: the calls that were inlined there, innermost first, and the frame.
func (st *Stream) frames(id uint32) []frame {
	name, named := st.locs.Name(id, st.namer)
	l := st.locs.Loc(id)
	f := frame{
		name: name.Func, named: named, module: name.Module, buildID: st.locs.Module(id).BuildID, kernel: l.How == profile.HowKernel,
		addr: l.Addr, off: l.Off, start: name.Start, how: l.How,
	}
	if f.kernel {
		f.off = l.Addr // not the key that it has
	}
	var out []frame
	for i := range name.Source {
		s, in := &name.Source[i], f
		in.file, in.line, in.column = s.File, s.Line, s.Column
		if i < len(name.Source)-1 {
			in.name, in.named, in.inlined = s.Name(), s.Func != "", true
			in.start = 0
		}
		out = append(out, in)
	}
	if out == nil {
		out = []frame{f}
	}
	return out
}

// tally adds the weight of the sample of st.ids to its location's, if that has no name: in waits, of the innermost outside of the kernel.
func (st *Stream) tally(period uint64) {
	at := 0
	for st.info.Waits() && at+1 < len(st.ids) && st.locs.Loc(st.ids[at]).How == profile.HowKernel {
		at++
	}
	if at < len(st.ids) && st.bare[st.ids[at]] {
		st.silent[st.ids[at]] += period
	}
}

// Nameless returns the modules that had samples in places without names, and what those weigh in each.
func (st *Stream) Nameless() (mods []profile.Module, weights []uint64) {
	at := map[profile.Module]int{}
	for id, w := range st.silent {
		m := *st.locs.Module(id)
		i, ok := at[m]
		if !ok {
			i = len(mods)
			at[m], mods, weights = i, append(mods, m), append(weights, 0)
		}
		weights[i] += w
	}
	return mods, weights
}

// Totals returns the counts so far.
func (st *Stream) Totals() profile.Totals { return st.totals }

// Close ends the report with the counts, where its format has a place for them. What was lost is known
// only now.
func (st *Stream) Close(l profile.Loss) error {
	st.info.Loss = l
	st.write(st.format.close(st.buf, &ending{&st.totals, &st.info, &st.opts, st.flush}))
	return st.err
}

// flush writes b if there is much of it, and returns what is left.
func (st *Stream) flush(b []byte) []byte {
	if len(b) < 1<<16 {
		return b
	}
	st.write(b)
	return b[:0]
}

func (st *Stream) write(b []byte) {
	if st.err == nil {
		_, st.err = st.w.Write(b)
	}
}

// writeAll writes a profile's stacks, each once, in a format of text.
func writeAll(w io.Writer, p *profile.Profile, o Options, f interface {
	streamFormat
	tail([]byte, *frame) []byte
}, stack func(b []byte, s *profile.Stack, tails [][]byte) []byte) error {
	tails := make([][]byte, len(p.Locs))
	for i := range p.Locs {
		fr := frameOf(p, &p.Locs[i])
		tails[i] = f.tail(nil, &fr)
	}
	var b []byte
	for i := range p.Stacks {
		b = stack(b, &p.Stacks[i], tails)
		if len(b) >= 1<<16 {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	_, err := w.Write(f.close(b, &ending{&p.Totals, &p.Info, &o, nil}))
	return err
}

// frameOf returns what is written of a location of p.
func frameOf(p *profile.Profile, l *profile.Loc) frame {
	fn, m := &p.Funcs[l.Func], &p.Modules[l.Module]
	return frame{
		name: fn.Name, named: fn.Named, module: m.Path, buildID: m.BuildID, kernel: m.Kernel,
		addr: l.Addr, off: l.Off, start: l.Start, how: l.How,
		inlined: l.Inlined, file: p.File(l), line: l.Line, column: l.Column,
	}
}

func appendHex(b []byte, n uint64) []byte { return strconv.AppendUint(b, n, 16) }

// appendQuoted appends s as a JSON string (RFC 8259, section 7). Bytes that are not UTF-8 become U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		size := 1
		if c >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRuneInString(s[i:])
			// U+2028 and U+2029 end lines in some readers.
			if (r != utf8.RuneError || size > 1) && r != '\u2028' && r != '\u2029' {
				i += size
				continue
			}
		}
		b = append(b, s[from:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case size == 3:
			b = append(b, `\u202`...)
			b = append(b, hex[s[i+2]&15])
		default:
			b = append(b, `\ufffd`...)
		}
		i += size
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// clampInt64 returns n, or the greatest int64.
func clampInt64(n uint64) int64 { return int64(min(n, math.MaxInt64)) }
