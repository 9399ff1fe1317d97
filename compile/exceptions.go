package compile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
)

// An exceptionTable is a function with its exception table. Its JSON is part of the program's interface. Addresses are those of a linked file, in hex, or
// section+hex.
type exceptionTable struct {
	Lo          string     `json:"lo"`
	Hi          string     `json:"hi"`
	Table       string     `json:"table"` // its section and offset
	Size        uint64     `json:"size"`
	Personality string     `json:"personality"`
	CalledFor   []string   `json:"called_for,omitempty"` // Windows on x86-64 says when the handler is called
	PartOf      string     `json:"part_of,omitempty"`    // the function that a part has its handler from
	CallSites   []callSite `json:"call_sites"`
}

type callSite struct {
	Lo      string   `json:"lo"`
	Hi      string   `json:"hi"`
	Pad     string   `json:"pad,omitempty"` // "": exceptions pass through, or go on at the pads of actions
	Actions []action `json:"actions,omitempty"`
}

type action struct {
	Kind   string   `json:"kind"`
	Types  []string `json:"types,omitempty"`
	Filter string   `json:"filter,omitempty"` // of an __except: who decides
	Pad    string   `json:"pad,omitempty"`    // of Windows's C++: who is called
}

// ErrNoExceptions is the error of a file without exception tables.
var ErrNoExceptions = errors.New("no exception tables")

// WriteExceptions writes the exception tables of a file: as text, or in JSON, an object for each function. damage has what could not be read.
func WriteExceptions(w io.Writer, path string, asJSON bool) (damage []error, err error) {
	err = module.Guard(func() error {
		img, f, err := Open(path)
		if err != nil {
			return err
		}
		defer img.Close()
		var all []*format.Exceptions
		damage = f.Exceptions(func(x *format.Exceptions) bool { all = append(all, x); return true })
		var handlers []*format.Handler
		lsda := map[*format.Handler]*format.Exceptions{}
		damage = append(damage, f.WindowsHandlers(func(h *format.Handler, x *format.Exceptions) bool {
			if handlers = append(handlers, h); x != nil {
				lsda[h] = x
			}
			return true
		})...)
		if len(all) == 0 && len(handlers) == 0 && len(damage) == 0 {
			return fmt.Errorf("%s: %w", path, ErrNoExceptions)
		}
		bw := bufio.NewWriter(w)
		enc := json.NewEncoder(bw)
		enc.SetEscapeHTML(false)
		names := nameTargets(img, slices.AppendSeq(all[:len(all):len(all)], maps.Values(lsda)), handlers)
		write := func(t *exceptionTable) error {
			if asJSON {
				return enc.Encode(t)
			}
			t.writeText(bw)
			return nil
		}
		for _, x := range all {
			if err := write(names.table(x)); err != nil {
				return err
			}
		}
		for _, h := range handlers {
			if err := write(names.handler(h, lsda[h])); err != nil {
				return err
			}
		}
		return bw.Flush()
	})
	return damage, err
}

// targets are the names of what exception tables refer to.
type targets struct {
	img    *module.Image
	at     map[arch.Vaddr]string // of symbols
	kept   map[arch.Vaddr]string // of what the dynamic linker writes to an address
	rebase map[arch.Vaddr]arch.Vaddr

	undefined arch.Vaddr // from here on are the symbols that other files define
}

// nameTargets finds the names of the types and personality routines of all tables, and of all that Windows's handlers call.
func nameTargets(img *module.Image, all []*format.Exceptions, handlers []*format.Handler) *targets {
	t := &targets{img, map[arch.Vaddr]string{}, map[arch.Vaddr]string{}, map[arch.Vaddr]arch.Vaddr{}, ^arch.Vaddr(0)}
	if starts := img.Starts(); len(starts) > 0 {
		t.undefined = starts[len(starts)-1].Addr
	}
	slots := map[arch.Vaddr]bool{}
	add := func(v arch.Vaddr, indirect bool) {
		if t.at[v] = ""; indirect {
			slots[v] = true
			if b, ok := img.At(v, 8); ok && img.Is64() && img.Linked() {
				t.rebase[v] = arch.Vaddr(img.Order().Uint64(b))
			} else if b := img.Tail(v); len(b) >= 8 && img.Format() == "COFF" {
				t.rebase[v] = arch.Vaddr(img.Order().Uint64(b))
			}
		}
	}
	for _, x := range all {
		add(x.Personality, x.Indirect)
		for _, s := range x.CallSites {
			for a := s.Actions; a != nil; a = a.Next {
				for _, typ := range a.Types {
					add(typ.Addr, typ.Indirect)
				}
			}
		}
	}
	for _, h := range handlers {
		add(h.Addr, false)
		for _, s := range h.Scopes {
			for _, a := range s.Actions {
				add(a.Filter, false)
				add(a.Type, false)
			}
		}
	}
	img.Rebased(func(at, v uint64) {
		if slots[arch.Vaddr(at)] {
			t.rebase[arch.Vaddr(at)] = arch.Vaddr(v)
		}
	})
	for _, v := range t.rebase {
		t.at[v] = ""
	}
	if img.Linked() && img.Is64() && img.Order() == binary.LittleEndian {
		img.Bindings(func(b *module.Binding) bool {
			if slots[arch.Vaddr(b.At)] && b.Symbol > 0 {
				e := b.Table.At(b.Symbol)
				if n := b.Table.Names[min(uint64(e.Name), uint64(len(b.Table.Names))):]; len(n) > 0 {
					name, _, _ := strings.Cut(string(n[:min(len(n), 4096)]), "\x00")
					t.kept[arch.Vaddr(b.At)] = name
				}
			}
			return true
		})
	}
	img.Symbols(func(s module.Symbol) bool {
		if old, ok := t.at[s.Value]; ok && old == "" && s.Name != "" && s.Section.Defined() && (s.Kind != module.Unmarked || s.Name[0] != '$') { // $d and $x mark data and code
			t.at[s.Value] = strings.Clone(s.Name)
		}
		return true
	})
	return t
}

// name names what is at an address, or what the word there leads to; it is the address where there is no name.
func (t *targets) name(v arch.Vaddr, indirect bool) string {
	name := ""
	if indirect {
		name = t.kept[v]
		if to, ok := t.rebase[v]; ok && name == "" {
			if name = t.at[to]; name == "" {
				if symbol, off := t.img.Place(to); off == 0 && t.img.Tail(to) == nil {
					name = symbol // that another file defines
				}
			}
		}
	}
	if name == "" {
		if name = t.at[v]; indirect {
			name = strings.TrimPrefix(name, "DW.ref.") // where GCC and LLVM keep an address, in each object file
		}
	}
	if name == "" {
		section, off := t.img.Place(v)
		if name = section; off != 0 || section == "" {
			name = t.addr(v)
		}
		if indirect && v < t.undefined { // what is not defined has no word that holds its address
			name = "*" + name
		}
	}
	return printable.Marked(name)
}

func (t *targets) addr(v arch.Vaddr) string {
	section, off := t.img.Place(v)
	text := strconv.FormatUint(off, 16)
	if section != "" {
		text = printable.Marked(section) + "+" + text
	}
	return text
}

func (t *targets) table(x *format.Exceptions) *exceptionTable {
	out := &exceptionTable{Lo: t.addr(x.FDE.Lo), Hi: t.addr(x.FDE.Hi), Table: fmt.Sprintf("%s+%x", printable.Marked(x.Section), x.Off), Size: x.Size,
		Personality: "none", CallSites: []callSite{}}
	if x.Personality != 0 {
		out.Personality = t.name(x.Personality, x.Indirect)
	}
	for _, s := range x.CallSites {
		c := callSite{Lo: t.addr(s.Lo), Hi: t.addr(s.Hi)}
		if s.HasPad {
			c.Pad = t.addr(s.Pad)
		}
		for a := s.Actions; a != nil; a = a.Next {
			act := action{Kind: a.Kind.String()}
			for _, typ := range a.Types {
				if typ.Any {
					act.Types = append(act.Types, "...")
				} else {
					act.Types = append(act.Types, t.name(typ.Addr, typ.Indirect))
				}
			}
			c.Actions = append(c.Actions, act)
		}
		if s.HasPad && s.Actions == nil {
			c.Actions = []action{{Kind: format.Cleanup.String()}}
		}
		out.CallSites = append(out.CallSites, c)
	}
	return out
}

// handler is table for what Windows calls a handler for; x is the handler's exception table, if it has one.
func (t *targets) handler(h *format.Handler, x *format.Exceptions) *exceptionTable {
	out := &exceptionTable{Lo: t.addr(h.Lo), Hi: t.addr(h.Hi), Table: fmt.Sprintf("%s+%x", printable.Marked(h.Section), h.Off), Size: h.Size, CallSites: []callSite{}}
	if x != nil {
		out = t.table(x)
	}
	if out.Personality = printable.Marked(h.Name); h.Name == "" {
		out.Personality = t.name(h.Addr, false)
	}
	if h.Exception {
		out.CalledFor = append(out.CalledFor, "exceptions")
	}
	if h.Unwinding {
		out.CalledFor = append(out.CalledFor, "unwinding")
	}
	if h.Of != h.Lo {
		out.PartOf = t.addr(h.Of)
	}
	for i := range h.Scopes {
		s := &h.Scopes[i]
		c := callSite{Lo: t.addr(s.Lo), Hi: t.addr(s.Hi)}
		for _, a := range s.Actions {
			act := action{Kind: a.Kind.String()}
			switch a.Kind {
			case format.Except, format.Finally:
				c.Pad = t.addr(a.Pad)
				if a.Kind == format.Except {
					if act.Filter = "EXCEPTION_EXECUTE_HANDLER"; a.Filter != 0 {
						act.Filter = t.name(a.Filter, false)
					}
				}
			case format.CatchCxx:
				act.Pad, act.Types = t.addr(a.Pad), []string{"..."}
				if a.Name != "" {
					act.Types[0] = printable.Marked(a.Name)
				} else if a.Type != 0 {
					act.Types[0] = t.name(a.Type, false)
				}
			case format.CleanupCxx:
				act.Pad = t.addr(a.Pad)
			}
			c.Actions = append(c.Actions, act)
		}
		out.CallSites = append(out.CallSites, c)
	}
	return out
}

// writeText writes a line for the function, and one for each call site: the calls, where their exceptions go on, and what is done there.
func (t *exceptionTable) writeText(w io.Writer) {
	fmt.Fprintf(w, "function %s %s  table %s  personality %s", t.Lo, t.Hi, t.Table, t.Personality)
	if len(t.CalledFor) > 0 {
		fmt.Fprintf(w, "  for %s", strings.Join(t.CalledFor, ", "))
	}
	if t.PartOf != "" {
		fmt.Fprintf(w, "  part of %s", t.PartOf)
	}
	fmt.Fprintln(w)
	for _, s := range t.CallSites {
		fmt.Fprintf(w, "  %s %s", s.Lo, s.Hi)
		switch {
		case s.Pad != "":
			fmt.Fprintf(w, "  pad %s", s.Pad)
		case len(s.Actions) == 0:
			fmt.Fprint(w, "  no pad")
		}
		for _, a := range s.Actions {
			fmt.Fprintf(w, "  %s", a.Kind)
			if len(a.Types) > 0 || a.Kind == format.Filter.String() {
				fmt.Fprintf(w, " %s", strings.Join(a.Types, ", "))
			}
			if a.Filter != "" {
				fmt.Fprintf(w, " %s", a.Filter)
			}
			if a.Pad != "" {
				fmt.Fprintf(w, " at %s", a.Pad)
			}
		}
		fmt.Fprintln(w)
	}
}
