package compile

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	CallSites   []callSite `json:"call_sites"`
}

type callSite struct {
	Lo      string   `json:"lo"`
	Hi      string   `json:"hi"`
	Pad     string   `json:"pad,omitempty"` // "": exceptions pass through
	Actions []action `json:"actions,omitempty"`
}

type action struct {
	Kind  string   `json:"kind"`
	Types []string `json:"types,omitempty"`
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
		if len(all) == 0 && len(damage) == 0 {
			return fmt.Errorf("%s: %w", path, ErrNoExceptions)
		}
		bw := bufio.NewWriter(w)
		enc := json.NewEncoder(bw)
		enc.SetEscapeHTML(false)
		names := nameTargets(img, all)
		for _, x := range all {
			t := names.table(x)
			if !asJSON {
				t.writeText(bw)
			} else if err := enc.Encode(t); err != nil {
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
}

// nameTargets finds the names of the types and personality routines of all tables.
func nameTargets(img *module.Image, all []*format.Exceptions) *targets {
	t := &targets{img, map[arch.Vaddr]string{}, map[arch.Vaddr]string{}, map[arch.Vaddr]arch.Vaddr{}}
	slots := map[arch.Vaddr]bool{}
	add := func(v arch.Vaddr, indirect bool) {
		if t.at[v] = ""; indirect {
			slots[v] = true
			if b, ok := img.At(v, 8); ok && img.Is64() && img.Linked() {
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
			name = t.at[to]
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
		starts := t.img.Starts()
		defined := len(starts) == 0 || v < starts[len(starts)-1].Addr // what is not has no word that holds its address
		if indirect && defined {
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

// writeText writes a line for the function, and one for each call site: the calls, where their exceptions go on, and what is done there.
func (t *exceptionTable) writeText(w io.Writer) {
	fmt.Fprintf(w, "function %s %s  table %s  personality %s\n", t.Lo, t.Hi, t.Table, t.Personality)
	for _, s := range t.CallSites {
		if s.Pad == "" {
			fmt.Fprintf(w, "  %s %s  no pad\n", s.Lo, s.Hi)
			continue
		}
		fmt.Fprintf(w, "  %s %s  pad %s", s.Lo, s.Hi, s.Pad)
		for _, a := range s.Actions {
			fmt.Fprintf(w, "  %s", a.Kind)
			if len(a.Types) > 0 || a.Kind == format.Filter.String() {
				fmt.Fprintf(w, " %s", strings.Join(a.Types, ", "))
			}
		}
		fmt.Fprintln(w)
	}
}
