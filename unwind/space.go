package unwind

import (
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Module is the code of one file, shared by all address spaces that map it. Its content is loaded at
// the first use.
type Module struct {
	Path    string // as the process sees it: "/usr/lib/libc.so.6", "[vdso]"
	BuildID string // hex, as recorded; may be empty

	load func(*Module) *Code
	once sync.Once
	code *Code
}

// Code is what walking needs of a module. Its fields do not change.
type Code struct {
	Machine *arch.Machine
	Stepper rows.Stepper // nil: no unwind information
	Err     error        // why there is none, or why it is not whole

	// Vaddr translates an offset in the file to its link-time address.
	Vaddr func(off uint64) (arch.Vaddr, bool)

	// Terminal are the ranges of code that have no caller but may lack a rule that says so: the
	// entry point of an executable, goexit.
	Terminal []Range

	// PLT are procedure linkage tables; Lazy ones push before they jump.
	PLT []PLTRange
}

// A Range is [Lo, Hi) at link time.
type Range struct{ Lo, Hi arch.Vaddr }

// A PLTRange is a procedure linkage table.
type PLTRange struct {
	Range
	Lazy bool
}

// NewModule returns a module whose content load finds. load is called once at most, and may return nil
// for a file that cannot be read.
func NewModule(path, buildID string, load func(*Module) *Code) *Module {
	return &Module{Path: path, BuildID: buildID, load: load}
}

// Code loads the module on the first call. It returns nil if there is nothing to load.
func (m *Module) Code() *Code {
	m.once.Do(func() {
		if m.load != nil {
			m.code = m.load(m)
		}
	})
	return m.code
}

// A Mapping is a piece of a module in an address space.
type Mapping struct {
	Lo, Hi arch.Addr
	Off    uint64 // offset in the file of the byte at Lo
	Module *Module
}

// FileOff returns the offset in the module's file of address a.
func (m *Mapping) FileOff(a arch.Addr) uint64 { return m.Off + uint64(a-m.Lo) }

// Vaddr returns the link-time address of a. ok is false if the file has no such address or cannot be
// read.
func (m *Mapping) Vaddr(a arch.Addr) (v arch.Vaddr, ok bool) {
	c := m.Module.Code()
	if c == nil || c.Vaddr == nil {
		return 0, false
	}
	return c.Vaddr(m.FileOff(a))
}
