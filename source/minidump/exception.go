package minidump

import (
	"fmt"
	"slices"
)

// asked says that an exception's code stands for a wish: somebody wanted the dump of a process that ran on (Breakpad's MD_EXCEPTION_CODE_LIN_DUMP_REQUESTED
// and MD_EXCEPTION_CODE_WIN_SIMULATED, Crashpad's kSimulatedExceptionCode and kMachExceptionSimulated; 0 of writers that have none).
func asked(code uint32) bool {
	return slices.Contains([]uint32{0, 0xffffffff, 0x0517a7ed, 0x43507378}, code)
}

// named puts an exception (MINIDUMP_EXCEPTION_STREAM) into words.
func (f *File) named(b []byte) string {
	code, flags, params := le.Uint32(b[8:]), le.Uint32(b[12:]), min(le.Uint32(b[32:]), 15)
	names, what := ntStatus, ""
	switch f.os {
	case macOS, iOS:
		names = machException
		if code == excBadAccess {
			what = kernReturn[flags]
		}
	default:
		if (code == accessViolation || code == inPageError) && params >= 2 {
			if verb := accesses[le.Uint64(b[40:])]; verb != "" {
				what = fmt.Sprintf("%s %#x", verb, le.Uint64(b[48:]))
			}
		}
	}
	name := fmt.Sprintf("exception %#x", code)
	if n := names[code]; n != "" {
		name = fmt.Sprintf("%s (%#x)", n, code)
	}
	if what != "" {
		name += ", " + what + ","
	}
	return name
}

const (
	accessViolation = 0xc0000005
	inPageError     = 0xc0000006
	excBadAccess    = 1
)

// accesses are the first parameter of an access violation (EXCEPTION_RECORD).
var accesses = map[uint64]string{0: "reading", 1: "writing", 8: "executing"}

// ntStatus are the exceptions of Windows that end programs, and C++'s, CLR's and GCC's own (ntstatus.h).
var ntStatus = map[uint32]string{
	0x40000015: "STATUS_FATAL_APP_EXIT", 0x40010005: "DBG_CONTROL_C", 0x80000001: "EXCEPTION_GUARD_PAGE", 0x80000002: "EXCEPTION_DATATYPE_MISALIGNMENT",
	0x80000003: "EXCEPTION_BREAKPOINT", 0x80000004: "EXCEPTION_SINGLE_STEP", accessViolation: "EXCEPTION_ACCESS_VIOLATION", inPageError: "EXCEPTION_IN_PAGE_ERROR",
	0xc0000008: "EXCEPTION_INVALID_HANDLE", 0xc0000017: "STATUS_NO_MEMORY", 0xc000001d: "EXCEPTION_ILLEGAL_INSTRUCTION",
	0xc0000025: "EXCEPTION_NONCONTINUABLE_EXCEPTION", 0xc0000026: "EXCEPTION_INVALID_DISPOSITION", 0xc000008c: "EXCEPTION_ARRAY_BOUNDS_EXCEEDED",
	0xc000008d: "EXCEPTION_FLT_DENORMAL_OPERAND", 0xc000008e: "EXCEPTION_FLT_DIVIDE_BY_ZERO", 0xc000008f: "EXCEPTION_FLT_INEXACT_RESULT",
	0xc0000090: "EXCEPTION_FLT_INVALID_OPERATION", 0xc0000091: "EXCEPTION_FLT_OVERFLOW", 0xc0000092: "EXCEPTION_FLT_STACK_CHECK",
	0xc0000093: "EXCEPTION_FLT_UNDERFLOW", 0xc0000094: "EXCEPTION_INT_DIVIDE_BY_ZERO", 0xc0000095: "EXCEPTION_INT_OVERFLOW",
	0xc0000096: "EXCEPTION_PRIV_INSTRUCTION", 0xc00000fd: "EXCEPTION_STACK_OVERFLOW", 0xc0000194: "EXCEPTION_POSSIBLE_DEADLOCK",
	0xc0000374: "STATUS_HEAP_CORRUPTION", 0xc0000409: "STATUS_STACK_BUFFER_OVERRUN", 0xc0000417: "STATUS_INVALID_CRUNTIME_PARAMETER",
	0xc0000420: "STATUS_ASSERTION_FAILURE", 0xc0000602: "STATUS_FAIL_FAST_EXCEPTION", 0xe06d7363: "C++ exception", 0xe0434352: "CLR exception",
}

// machException are those of macOS (mach/exception_types.h), and kernReturn the codes of EXC_BAD_ACCESS (mach/kern_return.h).
var machException = map[uint32]string{
	excBadAccess: "EXC_BAD_ACCESS", 2: "EXC_BAD_INSTRUCTION", 3: "EXC_ARITHMETIC", 4: "EXC_EMULATION", 5: "EXC_SOFTWARE", 6: "EXC_BREAKPOINT",
	7: "EXC_SYSCALL", 8: "EXC_MACH_SYSCALL", 9: "EXC_RPC_ALERT", 10: "EXC_CRASH", 11: "EXC_RESOURCE", 12: "EXC_GUARD", 13: "EXC_CORPSE_NOTIFY",
}

var kernReturn = map[uint32]string{1: "KERN_INVALID_ADDRESS", 2: "KERN_PROTECTION_FAILURE", 50: "KERN_CODESIGN_ERROR"}
