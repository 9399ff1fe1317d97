package ebpf

import (
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// kernelStack is the size of a task's stack in the kernel, in bytes (THREAD_SIZE in arch/*/include/asm), without KASAN. It has a page at least.
const kernelStack = 16 << 10

// adapt makes the specification one for this kernel. What a kernel has is tried: distributions bring features to older ones. What cannot be
// tried counts as missing.
func adapt(spec *ebpf.CollectionSpec) error {
	has := map[string]bool{
		"has_task":    features.HaveProgramHelper(ebpf.PerfEvent, asm.FnGetCurrentTaskBtf) == nil,
		"has_regs":    features.HaveProgramHelper(ebpf.PerfEvent, asm.FnTaskPtRegs) == nil,
		"has_cmpxchg": accepts(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, Instructions: exchange}),
		"has_state":   switchHasState(),
	}
	for name, yes := range has {
		v := uint32(0)
		if yes {
			v = 1
		}
		if err := spec.Variables[name].Set(v); err != nil {
			return err
		}
	}
	if err := spec.Variables["kernel_stack"].Set(uint32(max(kernelStack, os.Getpagesize()))); err != nil {
		return err
	}
	if !has["has_cmpxchg"] {
		for _, p := range spec.Programs {
			withoutExchange(p.Instructions)
		}
	}
	return nil
}

const noPrealloc = 1 // BPF_F_NO_PREALLOC

// exchange is the shortest program that compares and exchanges.
var exchange = asm.Instructions{
	asm.Mov.Imm(asm.R0, 0),
	asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
	{OpCode: asm.CmpXchg.OpCode(asm.DWord), Dst: asm.RFP, Src: asm.R0, Offset: -8, Constant: int64(asm.CmpXchg >> 8)},
	asm.Return(),
}

// withoutExchange takes such instructions out, which the program does not come to where has_cmpxchg is 0: a kernel that does not know them
// refuses them wherever they are.
func withoutExchange(all asm.Instructions) {
	for i := range all {
		if op := all[i].OpCode; op.Class() == asm.StXClass && op.Mode() == asm.AtomicMode && op.AtomicOp() == asm.CmpXchg {
			nop := asm.Mov.Reg(asm.R0, asm.R0)
			nop.Metadata = all[i].Metadata
			all[i] = nop
		}
	}
}

// accepts says whether the kernel loads a program.
func accepts(spec *ebpf.ProgramSpec) bool {
	spec.License = "GPL"
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return false
	}
	p.Close()
	return true
}

// growingHashes says whether programs of perf events may use hashes whose entries are allocated when they are needed: since Linux 6.1.
func growingHashes() bool {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1, Flags: noPrealloc})
	if err != nil {
		return false
	}
	defer m.Close()
	return accepts(&ebpf.ProgramSpec{Type: ebpf.PerfEvent, Instructions: asm.Instructions{
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.StoreImm(asm.R2, 0, 0, asm.Word),
		asm.FnMapLookupElem.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}})
}

// switchHasState says whether the tracepoint sched_switch has the state of the thread that stops running: its fourth argument.
func switchHasState() bool {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var f *btf.Typedef
	if err := kernel.TypeByName("btf_trace_sched_switch", &f); err != nil {
		return false
	}
	p, ok := f.Type.(*btf.Pointer)
	if !ok {
		return false
	}
	proto, ok := p.Target.(*btf.FuncProto)
	return ok && len(proto.Params) > 4 // before them, the tracepoint's data
}

// canCopyOthers says whether an iterator over all threads can copy their stacks.
func canCopyOthers() bool {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var helpers *btf.Enum
	if err := kernel.TypeByName("bpf_func_id", &helpers); err != nil {
		return false
	}
	return slices.ContainsFunc(helpers.Values, func(v btf.EnumValue) bool { return v.Name == "BPF_FUNC_copy_from_user_task" })
}

// unlockMemory lifts the limit of locked memory where the kernel holds maps against it: before Linux 5.11. A command that is recorded there
// has no such limit either.
func unlockMemory() error {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was); err != nil || was.Cur == unix.RLIM_INFINITY {
		return err
	}
	// With a limit of 0, such a kernel has no room for any map.
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Max: was.Max}); err != nil {
		return err
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err == nil {
		m.Close()
		return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was)
	}
	if unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}) != nil {
		return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was) // who may not lift it may not load programs, as a rule; loading says so
	}
	return nil
}
