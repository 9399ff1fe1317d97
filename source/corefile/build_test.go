package corefile

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/unspool/unspool/arch"
)

// A core is a core file to be built.
type core struct {
	machine *arch.Machine
	threads []coreThread
	signal  int
	code    int32
	addr    uint64
	files   []fileRange
	auxv    []uint64
	mem     []coreMemory
	psargs  string
	tail    bool // notes after memory, as gcore writes them
}

type coreThread struct {
	tid    int
	pc, sp uint64
	signs  uint64 // of AArch64, NT_ARM_PAC_MASK
}

type coreMemory struct {
	lo, size uint64
	b        []byte
	flags    uint32
}

func put(b []byte, v ...any) []byte {
	for _, x := range v {
		b, _ = binary.Append(b, le, x)
	}
	return b
}

func note(b []byte, typ uint32, desc []byte) []byte {
	return noteOf(b, "CORE\x00\x00\x00\x00", 5, typ, desc)
}

// noteOf appends a note of a name that is filled up to a multiple of four.
func noteOf(b []byte, name string, size int, typ uint32, desc []byte) []byte {
	b = put(b, uint32(size), uint32(len(desc)), typ)
	b = append(b, name...)
	b = append(b, desc...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

const regsAt = 112 // of struct elf_prstatus, in 64-bit cores

// notes returns the notes in the kernel's order.
func (c *core) notes() (b []byte) {
	slots := c.machine.UserRegs.Slots
	for i, t := range c.threads {
		d := make([]byte, regsAt+8*len(slots)+56)
		le.PutUint32(d[32:], uint32(t.tid))
		if i == 0 {
			le.PutUint16(d[12:], uint16(c.signal))
		}
		for j, s := range slots {
			switch s {
			case c.machine.Slot(c.machine.SP):
				le.PutUint64(d[regsAt+8*j:], t.sp)
			case pcSlot(c.machine):
				le.PutUint64(d[regsAt+8*j:], t.pc)
			default:
				le.PutUint64(d[regsAt+8*j:], uint64(j)+1000)
			}
		}
		b = note(b, ntPRSTATUS, d)
		if i > 0 {
			b = c.signs(b, t)
			continue
		}
		ps := make([]byte, 136)
		le.PutUint32(ps[24:], uint32(t.tid))
		copy(ps[40:], "program")
		copy(ps[56:], c.psargs)
		b = note(b, ntPRPSINFO, ps)
		if c.signal != 0 {
			si := put(nil, int32(c.signal), int32(0), c.code, int32(0), c.addr)
			b = note(b, ntSIGINFO, append(si, make([]byte, 104)...))
		}
		b = note(b, ntAUXV, put(nil, c.auxv))
		var names []string
		f := put(nil, uint64(len(c.files)), uint64(page))
		for _, r := range c.files {
			f = put(f, r.lo, r.hi, r.off/page)
			names = append(names, r.path)
		}
		b = note(b, ntFILE, append(f, strings.Join(append(names, ""), "\x00")...))
		b = c.signs(b, t)
	}
	return b
}

// signs appends what the kernel says of a thread's signatures.
func (c *core) signs(b []byte, t coreThread) []byte {
	if t.signs == 0 {
		return b
	}
	return noteOf(b, "LINUX\x00\x00\x00", 6, 0x406, put(nil, uint64(0), t.signs)) // NT_ARM_PAC_MASK
}

// build returns the file.
func (c *core) build() []byte {
	const ehsize, phsize = 64, 56
	notes := c.notes()
	n := 1 + len(c.mem)
	at := uint64(ehsize + n*phsize)
	noteOff := at
	if !c.tail {
		at += uint64(len(notes))
	}
	at = (at + page - 1) &^ (page - 1)
	b := []byte("\x7fELF\x02\x01\x01")
	b = append(b, make([]byte, 9)...)
	b = put(b, uint16(4), c.machine.ELF, uint32(1), uint64(0), uint64(ehsize), uint64(0), uint32(0), uint16(ehsize), uint16(phsize), uint16(n), uint16(0), uint16(0), uint16(0))
	var loads, data []byte
	for _, m := range c.mem {
		loads = put(loads, uint32(1), m.flags, at+uint64(len(data)), m.lo, uint64(0), uint64(len(m.b)), m.size, uint64(page))
		data = append(data, m.b...)
	}
	if c.tail {
		noteOff = at + uint64(len(data))
	}
	b = put(b, uint32(4), uint32(0), noteOff, uint64(0), uint64(0), uint64(len(notes)), uint64(0), uint64(4))
	b = append(b, loads...)
	if !c.tail {
		b = append(b, notes...)
	}
	b = append(b, make([]byte, int(at)-len(b))...)
	b = append(b, data...)
	if c.tail {
		b = append(b, notes...)
	}
	return b
}

// sampled is the machine of sample's cores.
var sampled = arch.AMD64

// sample returns a small core: two threads, a stack that is there, and one of which half is.
func sample() *core {
	return &core{
		machine: sampled, signal: 11, code: 1, addr: 0x10, psargs: "/bin/program -x ",
		threads: []coreThread{{tid: 12, pc: 0x401010, sp: 0x7ff010}, {tid: 10, pc: 0x401020, sp: 0x8ff010}, {tid: 11, pc: 0x401030, sp: 0x7ff020}},
		auxv:    []uint64{atPHDR, 0x400040, 0, 0},
		files:   []fileRange{{lo: 0x400000, hi: 0x401000, path: "/nonexistent/program"}, {lo: 0x401000, hi: 0x402000, off: 0x1000, path: "/nonexistent/program"}},
		mem: []coreMemory{
			{0x400000, 0x1000, bytes.Repeat([]byte{7}, 0x1000), 4},
			{0x401000, 0x1000, nil, 5},
			{0x7ff000, 0x1000, bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 0x200), 6},
			{0x8ff000, 0x1000, bytes.Repeat([]byte{9}, 0x800), 6},
		},
	}
}

// elfHead returns a file of size bytes with n program headers of a type; what they describe lies at its end.
func elfHead(n int, typ uint32, size int) []byte {
	h := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	h = put(h, uint16(3), uint16(arch.EM_X86_64), uint32(1), uint64(0), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(n), uint16(0), uint16(0), uint16(0))
	for range n {
		h = put(h, typ, uint32(5), uint64(size), uint64(0), uint64(0), uint64(0), uint64(0), uint64(8))
	}
	return append(h, make([]byte, size-len(h))...)
}

// aliased returns a core in which n files, or n parts of one, were mapped, for all of which the same bytes are there.
func aliased(n int, head []byte, path func(i int) string) []byte {
	c := sample()
	c.mem, c.files = []coreMemory{{0, 1, head, 5}}, nil
	size := uint64(len(head))
	for i := range uint64(n) {
		c.files = append(c.files, fileRange{lo: (i + 1) * size, hi: (i + 2) * size, path: path(int(i))})
	}
	b := c.build()
	phs := bytes.Clone(b[64 : 64+56])
	for _, r := range c.files {
		phs = put(phs, uint32(1), uint32(5), le.Uint64(b[64+56+8:]), r.lo, uint64(0), size, size, uint64(page))
	}
	le.PutUint64(b[32:], uint64(len(b)))
	le.PutUint16(b[56:], uint16(1+n))
	return append(b, phs...)
}
