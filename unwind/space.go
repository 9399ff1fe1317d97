package unwind

import (
	"cmp"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A Module is the code of one file, shared by all address spaces that map it. Its content is loaded at
// the first use.
type Module struct {
	Path    string // as the process sees it: "/usr/lib/libc.so.6", "[vdso]"
	BuildID string // hex, as recorded; or what stands for one: "", module.Inode, module.Another

	// PID is the process in whose memory the code lies, where that is no file's: code that it made itself.
	// Offsets in such a module are addresses. 0: a file.
	PID int32

	// VDSO says that it is the code that the kernel gives each process.
	VDSO bool

	load    func(*Module) *Code
	loading sync.Mutex
	nothing bool // under loading: there is nothing to load
	code    atomic.Pointer[Code]
	used    atomic.Bool // Code was called since Unload was
	process atomic.Int32
}

// ID returns the build ID, "" where BuildID stands for one.
func (m *Module) ID() string {
	if module.IsBuildID(m.BuildID) {
		return m.BuildID
	}
	return ""
}

// Mapped tells m of a process that has mapped it. Code may be found through that where no path of this machine's leads to the file.
func (m *Module) Mapped(pid int32) { m.process.Store(pid) }

// Process returns the PID that Mapped was last called with; 0 if it was not.
func (m *Module) Process() int32 { return m.process.Load() }

// Code has the parts of a module that a walk needs. Its fields do not change.
type Code struct {
	Machine *arch.Machine
	Stepper rows.Stepper // nil: no unwind information
	Err     error        // why there is none, or why it is not whole

	// Made finds the rule of code that the process makes while it runs, as it was at a time (Snapshot.Time). Stepper applies it, and its Find
	// is not asked. nil: the code stays as it is.
	Made func(v arch.Vaddr, time uint64) (id uint32, ok bool)

	// Vaddr translates an offset in the file to its link-time address.
	Vaddr func(off uint64) (arch.Vaddr, bool)

	// Text copies the file's code from link-time address v on, and returns the number of bytes copied. nil: the code is not at hand.
	Text func(v arch.Vaddr, to []byte) int

	// Segments are the executable parts of the file, for which Vaddr adds the same to each offset.
	Segments []Segment

	// Terminal are the ranges of code that have no caller but may lack a rule that says so: the
	// entry point of an executable, goexit.
	Terminal []Range

	// Injected are functions that a signal's handler makes look as if the interrupted code had called them: Go's sigpanic. Their
	// caller's PC is exact.
	Injected []Range

	// Moved is code that has another stack pointer than its rules say: Go's, while it calls the vDSO on a bigger stack.
	Moved []Moved

	// Forks is code right behind a system call that makes a thread. The call returns twice: in the new thread with 0, and nobody has called
	// that thread. Rules there hold for the thread that has made it.
	Forks []Range

	// PLT are procedure linkage tables; Lazy ones push before they jump.
	PLT []PLTRange
}

// A Segment is [Off, Off+Size) in a file, and where that is at link time.
type Segment struct {
	Off, Size uint64
	Vaddr     arch.Vaddr
}

// A Range is [Lo, Hi) at link time.
type Range struct{ Lo, Hi arch.Vaddr }

// Moved is code in which a register replaces the stack pointer in the rules.
type Moved struct {
	Range
	SP arch.Reg
}

// A PLTRange is a procedure linkage table.
type PLTRange struct {
	Range
	Lazy bool // it has a first entry, and others that push and jump there
}

// NewModule returns a module whose content load finds. load is called at the first use, and again after Unload; it may
// return nil for what has no content, and is not asked again then.
func NewModule(path, buildID string, load func(*Module) *Code) *Module {
	return &Module{Path: path, BuildID: buildID, load: load}
}

// Code loads the module on the first call. It returns nil if there is nothing to load.
func (m *Module) Code() *Code {
	if c := m.code.Load(); c != nil {
		if !m.used.Load() {
			m.used.Store(true)
		}
		return c
	}
	m.loading.Lock()
	defer m.loading.Unlock()
	c := m.code.Load()
	if c == nil && m.load != nil && !m.nothing {
		c = m.load(m)
		m.code.Store(c)
		m.nothing = c == nil
	}
	return c
}

// Unload forgets what Code has loaded, if that is c and was not asked for since it was loaded or Unload was called last: the next call of Code
// loads it again. Whoever has c may use it on. It says whether it has forgotten c.
func (m *Module) Unload(c *Code) bool { return !m.used.Swap(false) && m.code.CompareAndSwap(c, nil) }

// Loaded returns the Code loaded so far, or nil.
func (m *Module) Loaded() *Code { return m.code.Load() }

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

// lost says that the mapping is the vDSO's, and the vDSO not at hand.
func (m *Mapping) lost() bool { return m.Module.VDSO && m.Module.Code() == nil }

// A Space is the executable mappings of a process at one moment. It is immutable and safe to share;
// walkers recognise it by its identity.
type Space struct {
	id   uint64
	maps []Mapping // sorted, disjoint
}

var lastSpace atomic.Uint64

// NewSpace returns the Space of maps, laid over each other in their order.
func NewSpace(maps ...Mapping) *Space {
	s := &Space{id: lastSpace.Add(1)}
	if slices.IsSortedFunc(maps, func(a, b Mapping) int { return cmp.Compare(a.Lo, b.Hi) }) && !slices.ContainsFunc(maps, func(m Mapping) bool { return m.Lo >= m.Hi }) {
		s.maps = slices.Clone(maps) // laying out many one by one takes the square of their number
		return s
	}
	for _, m := range maps {
		s.maps = lay(s.maps, m.Lo, m.Hi, &m)
	}
	return s
}

// Overlay returns s with maps laid over it, each over those before; one without a Module only hides. It takes time by the sum of both
// lengths where maps are few, while laying one after the other takes that for each.
func (s *Space) Overlay(maps []Mapping) *Space {
	var over []Mapping
	for i := range maps {
		if maps[i].Lo < maps[i].Hi {
			over = put(over, maps[i])
		}
	}
	if len(over) == 0 {
		return s
	}
	out := make([]Mapping, 0, len(s.maps)+len(over)+1)
	base := s.maps
	var rest Mapping // of the mapping before base that sticks out above what has been laid
	for i := range over {
		o := &over[i]
		for rest.Lo < rest.Hi || len(base) > 0 {
			m := rest
			if m.Lo >= m.Hi {
				if base[0].Lo >= o.Hi {
					break
				}
				m, base = base[0], base[1:]
			} else if m.Lo >= o.Hi {
				break
			}
			rest = Mapping{}
			if m.Lo < o.Lo {
				left := m
				left.Hi = min(m.Hi, o.Lo)
				out = append(out, left)
			}
			if m.Hi > o.Hi {
				rest = above(m, o.Hi)
				break
			}
		}
		if o.Module != nil {
			out = append(out, *o)
		}
	}
	if rest.Lo < rest.Hi {
		out = append(out, rest)
	}
	return &Space{id: lastSpace.Add(1), maps: append(out, base...)}
}

// put lays m into maps, in place where there is room.
func put(maps []Mapping, m Mapping) []Mapping {
	i := sort.Search(len(maps), func(i int) bool { return maps[i].Hi > m.Lo })
	j := sort.Search(len(maps), func(j int) bool { return maps[j].Lo >= m.Hi })
	var pieces [3]Mapping
	p := pieces[:0]
	if i < j && maps[i].Lo < m.Lo {
		left := maps[i]
		left.Hi = m.Lo
		p = append(p, left)
	}
	p = append(p, m)
	if i < j && maps[j-1].Hi > m.Hi {
		p = append(p, above(maps[j-1], m.Hi))
	}
	return slices.Replace(maps, i, max(i, j), p...)
}

// above returns the part of m from an address on.
func above(m Mapping, lo arch.Addr) Mapping {
	m.Off += uint64(lo - m.Lo)
	m.Lo = lo
	return m
}

// With returns s with m laid over whatever was there.
func (s *Space) With(m Mapping) *Space {
	return &Space{id: lastSpace.Add(1), maps: lay(s.maps, m.Lo, m.Hi, &m)}
}

// Without returns s without [lo, hi): s itself where nothing was mapped there.
func (s *Space) Without(lo, hi arch.Addr) *Space {
	if !s.Overlaps(lo, hi) {
		return s
	}
	return &Space{id: lastSpace.Add(1), maps: lay(s.maps, lo, hi, nil)}
}

// Overlaps says whether anything is mapped in [lo, hi).
func (s *Space) Overlaps(lo, hi arch.Addr) bool {
	i := sort.Search(len(s.maps), func(i int) bool { return s.maps[i].Hi > lo })
	return i < len(s.maps) && lo < hi && s.maps[i].Lo < hi
}

// lay returns a copy of maps in which [lo, hi) is m, or nothing where m is nil.
func lay(maps []Mapping, lo, hi arch.Addr, m *Mapping) []Mapping {
	if lo >= hi {
		return maps
	}
	out := make([]Mapping, 0, len(maps)+2)
	i := 0
	for ; i < len(maps) && maps[i].Lo < lo; i++ {
		left := maps[i]
		left.Hi = min(left.Hi, lo)
		out = append(out, left)
	}
	if m != nil {
		out = append(out, *m)
	}
	if i > 0 {
		i-- // it may stick out above hi
	}
	for ; i < len(maps); i++ {
		if maps[i].Hi <= hi {
			continue
		}
		right := maps[i]
		if right.Lo < hi {
			right.Off += uint64(hi - right.Lo)
			right.Lo = hi
		}
		out = append(out, right)
	}
	return out
}

// Find returns the mapping that contains a, or nil. It does not allocate.
func (s *Space) Find(a arch.Addr) *Mapping {
	lo, hi := 0, len(s.maps)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.maps[mid].Lo <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo > 0 && a < s.maps[lo-1].Hi {
		return &s.maps[lo-1]
	}
	return nil
}

// end returns where the highest mapping ends.
func (s *Space) end() uint64 {
	if len(s.maps) == 0 {
		return 0
	}
	return uint64(s.maps[len(s.maps)-1].Hi)
}

// AddressBits returns the fewest bits of an address, of those that m's kernels use, that hold all mappings; 0 where no return address is signed.
func (s *Space) AddressBits(m *arch.Machine) (bits int) {
	for i, n := range m.AddressBits {
		if i == 0 || s.end() <= 1<<n {
			bits = n
		}
	}
	return bits
}

// Mappings returns the mappings, sorted and disjoint. The slice must not be changed.
func (s *Space) Mappings() []Mapping { return s.maps }
