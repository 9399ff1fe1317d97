package native

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/native/arm64"
	"github.com/unspool/unspool/rows"
)

// A memory is what a call of code gets as its second argument, and all that this leads to: code for another machine may touch nothing else.
type memory struct {
	arg   unsafe.Pointer
	parts []arm64.Region
	read8 func(addr uint64) (uint64, bool) // of kind Callback, for code of another machine
}

// callbackAt is where code of another machine finds read8.
const callbackAt = 0xca110000

// add lets code read what lies at p.
func (m *memory) add(p unsafe.Pointer, n int) {
	if n > 0 {
		m.parts = append(m.parts, arm64.Region{Addr: uint64(uintptr(p)), Bytes: unsafe.Slice((*byte)(p), n)})
	}
}

// sliceMemory is memory of kind Slice.
func sliceMemory(s *slice, b []byte, words []word) *memory {
	m := &memory{arg: unsafe.Pointer(s)}
	m.add(unsafe.Pointer(s), int(unsafe.Sizeof(*s)))
	m.add(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	m.add(unsafe.Pointer(unsafe.SliceData(words)), len(words)*int(unsafe.Sizeof(word{})))
	return m
}

// callable says whether this program can call code for a machine directly.
func callable(m *arch.Machine) bool {
	return m.GoArch == runtime.GOARCH && runtime.GOOS == "linux" && targets[m].lower != nil && hostCalls
}

// call calls the code at an offset of the file, as fn(s, mem, arg). An error says what code for another machine, which is interpreted, must
// not do.
func (c *Code) call(at uint32, s *rows.State, mem *memory, arg uint64) (uint64, error) {
	if c.host {
		var p unsafe.Pointer
		if mem != nil {
			p = mem.arg
		}
		return uint64(call(c.base+uintptr(at), unsafe.Pointer(s), p, uintptr(arg))), nil
	}
	return c.interpret(at, s, mem, arg)
}

// A machine is what an interpreted call needs.
type machine struct {
	cpu   arm64.CPU
	stack [4 << 10]byte
}

var machines = sync.Pool{New: func() any { return new(machine) }}

// interpret is call for AArch64 on other machines. It also holds the code to the registers and the memory that it may touch.
func (c *Code) interpret(at uint32, s *rows.State, mem *memory, arg uint64) (uint64, error) {
	m := machines.Get().(*machine)
	defer machines.Put(m)
	cpu := &m.cpu
	regions := cpu.Regions[:0]
	*cpu = arm64.CPU{}
	const stack = 0x7fff0000
	regions = append(regions, arm64.Region{Addr: stack, Bytes: m.stack[:], Write: true})
	if s != nil {
		regions = append(regions, arm64.Region{Addr: uint64(uintptr(unsafe.Pointer(s))), Bytes: unsafe.Slice((*byte)(unsafe.Pointer(s)), unsafe.Sizeof(*s)), Write: true})
	}
	regions = append(regions, arm64.Region{Addr: uint64(c.base), Bytes: c.mem},
		arm64.Region{Addr: uint64(c.base) + uint64(c.in.TextLo), Bytes: c.mem[c.in.TextLo:c.in.TextHi], Code: true})
	if mem != nil {
		regions = append(regions, mem.parts...)
		cpu.X[1] = uint64(uintptr(mem.arg))
		cpu.Call = func(cpu *arm64.CPU, addr uint64) bool {
			out := cpu.Memory(cpu.X[2], 8, true)
			if addr != callbackAt || mem.read8 == nil || out == nil || cpu.X[31]&15 != 0 {
				return false
			}
			v, ok := mem.read8(cpu.X[1])
			for i := range arm64.Reg(18) { // what a function need not keep
				cpu.X[i] = ^uint64(i)
			}
			if cpu.X[0] = 1 << 32; ok { // the upper half of an int is anything
				le.PutUint64(out, v)
				cpu.X[0] |= 1
			}
			return true
		}
	}
	cpu.Regions = regions
	for i := range uint64(12) {
		cpu.X[18+i] = ^i << 32
	}
	kept := cpu.X
	cpu.X[0], cpu.X[2] = uint64(uintptr(unsafe.Pointer(s))), arg
	if s == nil {
		cpu.X[0] = arg
	}
	cpu.X[31] = stack + uint64(len(m.stack))
	err := cpu.Run(uint64(c.base) + uint64(at))
	out := cpu.X[0] & (1<<32 - 1)
	kept[31] = stack + uint64(len(m.stack))
	for i := 18; i < 32 && err == nil; i++ {
		if i != 30 && cpu.X[i] != kept[i] {
			err = fmt.Errorf("x%d was %#x and is %#x", i, kept[i], cpu.X[i])
		}
	}
	clear(regions) // what they lead to is not kept alive
	cpu.Call = nil
	runtime.KeepAlive(c)
	return out, err
}
