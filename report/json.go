package report

import (
	"io"
	"strconv"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// jsonLines is one object a sample, or a stack, and a line:
//
//	{"pid":1,"tid":1,"comm":"cc1","time":4918072454123,"count":1,"stop":"outermost","frames":[
//	  {"ip":"0x55d0c8401172","off":"0x1172","sym":"main","module":"/usr/bin/cc1","how":"cfi"}]}
//
// Frames go from the innermost to the outermost. A sym in brackets is no symbol. Where the debug information says it,
// a frame has its "file", "line" and "column", and a call that was inlined has "inlined":true and the ip of the frame
// that follows. Where several events were recorded, each object has its "event" too.
type jsonLines struct{ tails }

func (f *jsonLines) location(frames []frame) { f.add(frames, f.tail) }

// JSON writes the stacks of p, one object each, with the number of samples that had it as "count" and
// without "time".
func JSON(w io.Writer, p *profile.Profile, o Options) error {
	f := &jsonLines{}
	return writeAll(w, p, o, f, func(b []byte, s *profile.Stack, tails [][]byte) []byte {
		b = f.head(b, s.PID, s.TID, s.Comm)
		stop := s.Stop.String()
		if p.Totals.NoStops {
			stop = "unknown"
		}
		b = f.mid(b, s.Count, stop, &p.Info, int(s.Event))
		for i, id := range s.Frames {
			b = f.frame(b, i, p.Locs[id].Addr, tails[id])
		}
		return append(b, "]}\n"...)
	})
}

func (f *jsonLines) sample(b []byte, info *profile.Info, s *profile.Sample, ids []uint32) []byte {
	b = f.head(b, s.PID, s.TID, s.Comm)
	b = append(b, `,"time":`...)
	b = strconv.AppendUint(b, s.Time, 10)
	stop := s.Stop
	if !s.HasUser && len(s.User) == 0 {
		stop = unwind.NoUserStack
	}
	b = f.mid(b, 1, stop.String(), info, s.Event)
	for i, id := range ids {
		addr := s.Addr(i)
		for k, tail := range f.tails[id] {
			b = f.frame(b, i+k, addr, tail)
		}
	}
	return append(b, "]}\n"...)
}

func (jsonLines) head(b []byte, pid, tid int32, comm string) []byte {
	b = strconv.AppendInt(append(b, `{"pid":`...), int64(pid), 10)
	b = strconv.AppendInt(append(b, `,"tid":`...), int64(tid), 10)
	return appendQuoted(append(b, `,"comm":`...), comm)
}

func (jsonLines) mid(b []byte, count uint64, stop string, info *profile.Info, event int) []byte {
	if len(info.Events) > 1 && event >= 0 && event < len(info.Events) {
		b = appendQuoted(append(b, `,"event":`...), info.Events[event].Name)
	}
	b = strconv.AppendUint(append(b, `,"count":`...), count, 10)
	b = append(append(append(b, `,"stop":"`...), stop...), '"')
	return append(b, `,"frames":[`...)
}

func (jsonLines) frame(b []byte, i int, addr uint64, tail []byte) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	b = appendHex(append(b, `{"ip":"0x`...), addr)
	return append(b, tail...)
}

func (jsonLines) tail(b []byte, f *frame) []byte {
	b = appendHex(append(b, `","off":"0x`...), f.off)
	b = appendQuoted(append(b, `","sym":`...), f.name)
	b = appendQuoted(append(b, `,"module":`...), f.module)
	b = append(append(append(b, `,"how":"`...), f.how.String()...), '"')
	if f.inlined {
		b = append(b, `,"inlined":true`...)
	}
	if f.file != "" {
		b = appendQuoted(append(b, `,"file":`...), f.file)
	}
	if f.line > 0 {
		b = strconv.AppendUint(append(b, `,"line":`...), uint64(f.line), 10)
	}
	if f.column > 0 {
		b = strconv.AppendUint(append(b, `,"column":`...), uint64(f.column), 10)
	}
	return append(b, '}')
}

func (jsonLines) close(b []byte, end *ending) []byte {
	t := end.totals
	if !end.opts.Summary {
		return b
	}
	b = append(b, `{"summary":{`...)
	field := func(name string, n uint64) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = strconv.AppendUint(append(appendQuoted(b, name), ':'), n, 10)
	}
	field("samples", t.Samples)
	if !t.NoStops {
		field("whole", t.Whole())
		field("truncated", t.Truncated())
		field("broken", t.Broken())
		field("no-user-stack", t.NoUser())
	}
	field("lost", end.info.Loss.Samples)
	b = append(b, `,"stops":{`...)
	for s, n := range t.Stops {
		if n > 0 && !t.NoStops {
			field(unwind.Stop(s).String(), n)
		}
	}
	b = append(b, `},"hows":{`...)
	for h, n := range t.Hows {
		if n > 0 {
			field(profile.How(h).String(), n)
		}
	}
	return append(b, "}}}\n"...)
}
