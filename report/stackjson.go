package report

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// What follows is documented in docs/STACK.md.

type jsonStacks struct {
	PID     int          `json:"pid"`
	Exe     string       `json:"exe"`
	Command []string     `json:"command"`
	Core    string       `json:"core,omitempty"`
	Machine string       `json:"machine"`
	Signal  *jsonSignal  `json:"signal"`
	Pause   int64        `json:"pause_ns"`
	Longest int64        `json:"longest_pause_ns"`
	Notes   []string     `json:"notes"`
	Threads []jsonThread `json:"threads"`
}

type jsonSignal struct {
	Number   int    `json:"number"`
	Name     string `json:"name"`
	Code     int    `json:"code"`
	CodeName string `json:"code_name,omitempty"`
	Addr     string `json:"addr,omitempty"`
}

type jsonThread struct {
	TID    int              `json:"tid"`
	Name   string           `json:"name"`
	Same   []int            `json:"same,omitempty"`
	Stop   string           `json:"stop"`
	Return string           `json:"return,omitempty"`
	Whole  bool             `json:"whole"`
	Error  string           `json:"error,omitempty"`
	Left   int              `json:"left_out,omitempty"`
	LeftAt int              `json:"left_out_at,omitempty"`
	Frames []jsonStackFrame `json:"frames"`
}

type jsonStackFrame struct {
	PC       string            `json:"pc"`
	Addr     string            `json:"addr"`
	How      string            `json:"how"`
	Module   string            `json:"module,omitempty"`
	BuildID  string            `json:"build_id,omitempty"`
	Offset   string            `json:"offset,omitempty"`
	Function string            `json:"function,omitempty"`
	Linkage  string            `json:"linkage,omitempty"`
	FuncOff  string            `json:"function_offset,omitempty"`
	Inlined  bool              `json:"inlined,omitempty"`
	File     string            `json:"file,omitempty"`
	Line     uint32            `json:"line,omitempty"`
	Column   uint32            `json:"column,omitempty"`
	Regs     map[string]string `json:"registers,omitempty"`
}

// stackJSON writes stacks as one object; docs/STACK.md says what its fields are.
func stackJSON(w io.Writer, s *stacks.Process) error {
	j := jsonStacks{
		PID: s.PID, Exe: s.Exe, Command: orEmpty(s.Command), Core: s.Core, Machine: s.Machine.Name, Pause: s.Pause.Nanoseconds(), Longest: s.Longest.Nanoseconds(),
		Notes: orEmpty(s.Notes), Threads: []jsonThread{},
	}
	if g := s.Signal; g != nil {
		j.Signal = &jsonSignal{Number: g.Number, Name: g.Name(), Code: g.Code, CodeName: g.CodeName()}
		if g.HasAddr {
			j.Signal.Addr = hexText(g.Addr)
		}
	}
	for i := range s.Threads {
		t := &s.Threads[i]
		out := jsonThread{TID: t.TID, Name: t.Name, Same: t.Same, Stop: t.Stop.String(), Whole: t.Err == nil && t.Stop == unwind.Outermost, Frames: []jsonStackFrame{}}
		if t.Err != nil {
			out.Error = t.Err.Error()
		}
		if t.Stop == unwind.BadReturn {
			out.Return = hexText(t.Return)
		}
		out.Left = t.Left
		for k := range t.Frames {
			if t.Left > 0 && k == t.LeftAt {
				out.LeftAt = len(out.Frames)
			}
			for _, l := range frameLines(&t.Frames[k]) {
				out.Frames = append(out.Frames, l.json(s))
			}
		}
		j.Threads = append(j.Threads, out)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	return enc.Encode(&j)
}

func (l *line) json(s *stacks.Process) jsonStackFrame {
	f := jsonStackFrame{
		PC: hexText(uint64(l.PC)), Addr: hexText(uint64(l.Addr())), How: l.How.String(), Module: modulePath(s, l.Frame),
		Function: l.fn, Inlined: l.inlined,
	}
	if l.linkage != l.fn {
		f.Linkage = l.linkage
	}
	if l.Mapping != nil {
		f.Offset = hexText(l.Mapping.FileOff(l.Addr()))
		if l.Mapping.Module != nil {
			f.BuildID = l.Mapping.Module.ID()
		}
	}
	if off, ok := l.offset(); ok {
		f.FuncOff = hexText(off)
	}
	if l.src != nil {
		f.File, f.Line, f.Column = l.src.File, l.src.Line, l.src.Column
	}
	if len(l.Regs) > 0 && !l.inlined {
		f.Regs = map[string]string{}
		for _, r := range l.Regs {
			f.Regs[r.Name] = hexText(r.Value)
		}
	}
	return f
}

func hexText(v uint64) string { return fmt.Sprintf("0x%x", v) }

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
