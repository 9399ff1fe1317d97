package shadow

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/printable"
)

// Wrong returns the findings that are not listed as known.
func (r *Result) Wrong() []*Finding {
	return slices.DeleteFunc(slices.Clone(r.Findings), func(f *Finding) bool { return f.Known != nil })
}

// How says how the command ended: "exit status 3".
func (r *Result) How() string {
	if r.Cut {
		return "was ended here: unspool was interrupted"
	}
	if r.Exit.Signaled() {
		return "was ended by signal " + unix.SignalName(r.Exit.Signal())
	}
	return "ended with status " + strconv.Itoa(r.Exit.ExitStatus())
}

// WriteText writes the findings, a line for each that is known, and counts by module.
func (r *Result) WriteText(to io.Writer) error {
	buf := bufio.NewWriter(to)
	w := printable.Writer{W: buf} // a line at a time: names of files and functions are the command's
	for _, f := range r.Findings {
		if f.Known == nil {
			f.writeText(w)
		}
	}
	for _, f := range r.Findings {
		if f.Known != nil {
			fmt.Fprintf(w, "known: %s: %s: %s (docs/FINDINGS.md, %s)\n", f.Module, f.place(), strings.Join(f.What(), " "), f.Known.Name)
		}
	}
	fmt.Fprintf(w, "%13s %13s %13s %13s %6s  module\n", "instructions", "compared", "without row", "truth unknown", "wrong")
	for _, m := range r.Modules {
		fmt.Fprintf(w, "%13d %13d %13d %13d %6d  %s\n", m.Steps, m.Compared, m.NoInfo, m.Unknown, m.Wrong, m.Path)
	}
	known := len(r.Findings) - len(r.Wrong())
	fmt.Fprintf(w, "%d instructions of %s in %s, %d compared: %s, %d of them known. The command %s.\n",
		r.Steps, number(r.Threads, "thread", "threads"), number(r.Processes, "process", "processes"), r.Compared,
		number(len(r.Findings), "wrong row", "wrong rows"), known, r.How())
	if r.Stopped {
		fmt.Fprintf(w, "After %d instructions the command ran on by itself.\n", r.Steps)
	}
	if r.Foreign {
		fmt.Fprintln(w, "32-bit code of some process was not compared.")
	}
	for _, err := range r.Errors {
		fmt.Fprintf(w, "without tables: %v\n", err)
	}
	return buf.Flush()
}

// place names where the finding is: "main+0x12", or an address where there is no name.
func (f *Finding) place() string {
	if f.Function == "" {
		return fmt.Sprintf("%#x", uint64(f.Addr))
	}
	return fmt.Sprintf("%s+%#x", f.Function, uint64(f.Addr-f.Start))
}

func (f *Finding) writeText(w io.Writer) {
	fmt.Fprintf(w, "%s: %s, %#x: wrong %s, %d times, first in thread %d\n", f.Module, f.place(), uint64(f.Addr), strings.Join(f.What(), " "), f.Times, f.Thread)
	if f.Ours {
		fmt.Fprintln(w, "  an error of unspool: the unwind information differs from the table")
	}
	fmt.Fprintf(w, "  the row    %x-%x  %s\n", uint64(f.Lo), uint64(f.Hi), f.Row)
	fmt.Fprintf(w, "  should be  %s\n", f.Should)
	if f.Outcome != "" {
		fmt.Fprintf(w, "  the row gives no caller: %s\n", f.Outcome)
	}
	for _, d := range f.Wrong {
		fmt.Fprintf(w, "  %-4s is %#x, not %#x\n", d.Register, d.Want, d.Got)
	}
	for _, l := range f.Code {
		mark := ' '
		if l.Addr == f.Addr {
			mark = '>'
		}
		fmt.Fprintf(w, "  %c %x  %s\n", mark, uint64(l.Addr), l.Text)
	}
	fmt.Fprintln(w)
}

// The JSON form is part of the program's interface.
type (
	jsonResult struct {
		Instructions uint64        `json:"instructions"`
		Compared     uint64        `json:"compared"`
		Threads      int           `json:"threads"`
		Processes    int           `json:"processes"`
		Exit         int           `json:"exit"` // -1 where a signal ended it
		Signal       string        `json:"signal,omitempty"`
		RanOn        bool          `json:"ran_on"`      // after the limit of steps
		Interrupted  bool          `json:"interrupted"` // before the command had ended
		Modules      []jsonModule  `json:"modules"`
		Findings     []jsonFinding `json:"findings"`
		Errors       []string      `json:"errors"`
	}
	jsonModule struct {
		Path         string `json:"path"`
		Instructions uint64 `json:"instructions"`
		Compared     uint64 `json:"compared"`
		WithoutRow   uint64 `json:"without_row"`
		Unknown      uint64 `json:"truth_unknown"`
		Wrong        int    `json:"wrong_rows"`
	}
	jsonFinding struct {
		Module   string      `json:"module"`
		Function string      `json:"function"`
		Addr     string      `json:"addr"`
		Lo       string      `json:"lo"`
		Hi       string      `json:"hi"`
		Row      string      `json:"row"`
		Should   string      `json:"should"`
		Outcome  string      `json:"outcome,omitempty"`
		Wrong    []jsonWrong `json:"wrong"`
		Times    uint64      `json:"times"`
		Thread   int         `json:"thread"`
		Ours     bool        `json:"ours"`
		Known    string      `json:"known,omitempty"`
		Code     []jsonLine  `json:"code"`
	}
	jsonWrong struct {
		Register string `json:"register"`
		Got      string `json:"got"`
		Want     string `json:"want"`
	}
	jsonLine struct {
		Addr string `json:"addr"`
		Text string `json:"text"`
	}
)

// WriteJSON writes one object.
func (r *Result) WriteJSON(w io.Writer) error {
	hex := func(v uint64) string { return fmt.Sprintf("%#x", v) }
	at := func(v arch.Vaddr) string { return hex(uint64(v)) }
	out := jsonResult{Instructions: r.Steps, Compared: r.Compared, Threads: r.Threads, Processes: r.Processes, Exit: r.Exit.ExitStatus(),
		RanOn: r.Stopped, Interrupted: r.Cut, Modules: []jsonModule{}, Findings: []jsonFinding{}, Errors: []string{}}
	if r.Exit.Signaled() {
		out.Signal = unix.SignalName(r.Exit.Signal())
	}
	for _, m := range r.Modules {
		out.Modules = append(out.Modules, jsonModule{m.Path, m.Steps, m.Compared, m.NoInfo, m.Unknown, m.Wrong})
	}
	for _, f := range r.Findings {
		j := jsonFinding{Module: f.Module, Function: f.Function, Addr: at(f.Addr), Lo: at(f.Lo), Hi: at(f.Hi), Row: f.Row, Should: f.Should,
			Outcome: f.Outcome, Times: f.Times, Thread: f.Thread, Ours: f.Ours, Code: []jsonLine{}}
		if f.Known != nil {
			j.Known = f.Known.Name
		}
		for _, d := range f.Wrong {
			j.Wrong = append(j.Wrong, jsonWrong{d.Register, hex(d.Got), hex(d.Want)})
		}
		for _, l := range f.Code {
			j.Code = append(j.Code, jsonLine{at(l.Addr), l.Text})
		}
		out.Findings = append(out.Findings, j)
	}
	for _, err := range r.Errors {
		out.Errors = append(out.Errors, err.Error())
	}
	return json.NewEncoder(w).Encode(out)
}

func number(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}
