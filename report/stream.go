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
	namer  profile.Namer
	info   profile.Info
	totals profile.Totals
	tails  [][]byte // by location: what does not change from frame to frame; nil: not written yet
	ids    []uint32
	buf    []byte
	err    error
	format streamFormat
	opts   Options
}

// A streamFormat is what JSON and Perf differ in.
type streamFormat interface {
	tail(b []byte, f *frame) []byte
	sample(b []byte, st *Stream, s *profile.Sample, ids []uint32) []byte
	close(b []byte, totals *profile.Totals, info *profile.Info, o *Options) []byte
}

// A frame is what is written of a location.
type frame struct {
	name   string // as all reports have it
	named  bool
	module string
	kernel bool
	addr   uint64
	off    uint64
	start  uint64
	how    profile.How
}

// NewPerf returns a Stream of text as perf script prints it.
func NewPerf(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	return newStream(w, n, info, o, perfText{})
}

// NewJSON returns a Stream of one JSON object a sample.
func NewJSON(w io.Writer, n profile.Namer, info profile.Info, o Options) *Stream {
	return newStream(w, n, info, o, jsonLines{})
}

func newStream(w io.Writer, n profile.Namer, info profile.Info, o Options, f streamFormat) *Stream {
	return &Stream{w: w, locs: profile.NewLocations(), namer: n, info: info, opts: o, format: f, buf: make([]byte, 0, 1<<17)}
}

// Sample writes s. It keeps no part of it, and asks for the name of a location when it first sees it.
// After an error of the writer it does nothing but return that again.
func (st *Stream) Sample(s *profile.Sample) error {
	if st.err != nil {
		return st.err
	}
	st.totals.Count(s)
	st.ids = st.locs.Intern(s, st.ids[:0])
	for len(st.tails) < st.locs.Len() {
		id := uint32(len(st.tails))
		name, named := st.locs.Name(id, st.namer)
		l := st.locs.Loc(id)
		st.tails = append(st.tails, st.format.tail(nil, &frame{
			name: name.Func, named: named, module: name.Module, kernel: l.How == profile.HowKernel,
			addr: l.Addr, off: l.Off, start: name.Start, how: l.How,
		}))
	}
	st.buf = st.format.sample(st.buf, st, s, st.ids)
	if len(st.buf) >= 1<<16 {
		st.flush()
	}
	return st.err
}

// Totals returns the counts so far.
func (st *Stream) Totals() profile.Totals { return st.totals }

// Close ends the report with the counts, where its format has a place for them. What was lost is known
// only now.
func (st *Stream) Close(l profile.Loss) error {
	st.info.Loss = l
	st.buf = st.format.close(st.buf, &st.totals, &st.info, &st.opts)
	st.flush()
	return st.err
}

func (st *Stream) flush() {
	if st.err == nil {
		_, st.err = st.w.Write(st.buf)
	}
	st.buf = st.buf[:0]
}

// writeAll writes a profile's stacks, each once, by format f.
func writeAll(w io.Writer, p *profile.Profile, o Options, f streamFormat, stack func(b []byte, s *profile.Stack, tails [][]byte) []byte) error {
	tails := make([][]byte, len(p.Locs))
	for i := range p.Locs {
		l := &p.Locs[i]
		fn, m := &p.Funcs[l.Func], &p.Modules[l.Module]
		tails[i] = f.tail(nil, &frame{
			name: fn.Name, named: fn.Named, module: m.Path, kernel: m.Kernel,
			addr: l.Addr, off: l.Off, start: l.Start, how: l.How,
		})
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
	_, err := w.Write(f.close(b, &p.Totals, &p.Info, &o))
	return err
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
