package arch

// A Context says where a thread's context in a minidump (CONTEXT of winnt.h, MDRawContext of Breakpad) has registers.
type Context struct {
	Regs    []Reg    // registers of the machine's words
	At      []uint64 // where each of them is, in bytes
	Flags   uint64   // where ContextFlags are, in bytes
	CPUs    []uint32 // the machine's bit of them; some writers have another
	Control []Reg    // the registers of CONTEXT_CONTROL; CONTEXT_INTEGER has the others
}

var (
	i386Context = Context{
		Regs: regs(9), At: []uint64{0xb0, 0xac, 0xa8, 0xa4, 0xc4, 0xb4, 0xa0, 0x9c, 0xb8},
		CPUs: []uint32{0x10000}, Control: []Reg{4, 5, 8}, // esp, ebp, eip
	}
	armContext = Context{
		Regs: regs(16), At: words(4, 4, 16),
		CPUs: []uint32{0x200000, 0x40000000}, Control: []Reg{13, 14, 15}, // sp, lr, pc
	}
	arm64Context = Context{
		Regs: regs(33), At: words(8, 8, 33), // x0 to x30, sp, pc
		CPUs: []uint32{0x400000, 0x80000000}, Control: []Reg{29, 30, 31, 32}, // fp, lr, sp, pc
	}
	amd64Context = Context{
		Regs: regs(17), At: append([]uint64{0x78, 0x88, 0x80, 0x90, 0xa8, 0xb0, 0xa0, 0x98}, append(words(0xb8, 8, 8), 0xf8)...),
		Flags: 0x30, CPUs: []uint32{0x100000}, Control: []Reg{7, 16}, // rsp, rip
	}
)

// regs are the first n registers.
func regs(n Reg) (out []Reg) {
	for r := range n {
		out = append(out, r)
	}
	return out
}

// words are n offsets, step bytes apart.
func words(from, step uint64, n int) (out []uint64) {
	for i := range n {
		out = append(out, from+uint64(i)*step)
	}
	return out
}
