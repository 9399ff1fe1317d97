package report

import (
	"bufio"
	"io"
	"slices"
	"strconv"

	"github.com/unspool/unspool/profile"
)

// Speedscope writes a profile for speedscope (www.speedscope.app), by the schema in its npm package, file-format-schema.json:
// of type "sampled", with each stack once and its weight. There are no times, so of its views "left heavy" and "sandwich"
// are those that say something. As in a flame graph, the outermost frame is the thread's name, and the next "[truncated]"
// or "[broken]" for a stack that is not whole. The profile's name has the counts.
func Speedscope(w io.Writer, p *profile.Profile, o Options) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	type frame struct{ name, file string }
	var frames fxTable[frame]
	// A frame of the format is a function here, with the file in which it was first seen: it has no lines for single samples.
	ofFunc := make([]int32, len(p.Funcs))
	file := make([]uint32, len(p.Funcs))
	for i := range p.Locs {
		if l := &p.Locs[i]; file[l.Func] == 0 {
			file[l.Func] = l.File
		}
	}
	for i := range ofFunc {
		f := &p.Funcs[i]
		name := frame{name: f.Name, file: p.Modules[f.Module].Path}
		if file[i] != 0 {
			name.file = p.Files[file[i]]
		}
		ofFunc[i] = frames.id(name)
	}
	var b []byte
	samples, weights := []byte(nil), []byte(nil)
	all := uint64(0)
	for i := range p.Stacks {
		s := &p.Stacks[i]
		n := o.weight(s)
		if n == 0 {
			continue
		}
		if len(samples) > 0 {
			samples, weights = append(samples, ",\n"...), append(weights, ',')
		}
		comm := s.Comm
		if comm == "" {
			comm = profile.Unknown
		}
		samples = appendInt(append(samples, '['), frames.id(frame{name: comm}))
		if m := mark(s.Stop); m != "" && !p.Totals.NoStops {
			samples = appendInt(append(samples, ','), frames.id(frame{name: m}))
		}
		for _, l := range slices.Backward(s.Frames) {
			samples = appendInt(append(samples, ','), ofFunc[p.Locs[l].Func])
		}
		samples = append(samples, ']')
		weights = strconv.AppendUint(weights, n, 10)
		all += n
	}
	b = append(b, `{"$schema":"https://www.speedscope.app/file-format-schema.json","exporter":"unspool","name":`...)
	b = appendQuoted(b, title(p, &o))
	b = append(b, ",\n\"shared\":{\"frames\":["...)
	for i, f := range frames.rows {
		b = appendQuoted(append(comma(b, i), `{"name":`...), f.name)
		if f.file != "" {
			b = appendQuoted(append(b, `,"file":`...), f.file)
		}
		b = append(b, '}')
	}
	unit := "none"
	if o.unit(p) == "ns" {
		unit = "nanoseconds"
	}
	b = appendQuoted(append(b, "]},\n\"profiles\":[{\"type\":\"sampled\",\"name\":"...), headline(p))
	b = appendQuoted(append(b, `,"unit":`...), unit)
	b = strconv.AppendUint(append(b, `,"startValue":0,"endValue":`...), all, 10)
	bw.Write(append(b, ",\n\"samples\":["...))
	bw.Write(samples)
	bw.WriteString("],\n\"weights\":[")
	bw.Write(weights)
	bw.WriteString("]}]}\n")
	return bw.Flush()
}
