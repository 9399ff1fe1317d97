package stacks

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// A Signal is the kernel's description of a signal.
type Signal source.Signal

// A codeText is the name and meaning of an si_code (include/uapi/asm-generic/siginfo.h; sigaction(2)).
type codeText struct{ name, text string }

var anyCode = map[int]codeText{
	0:    {"SI_USER", "sent by kill"},
	-1:   {"SI_QUEUE", "sent by sigqueue"},
	-2:   {"SI_TIMER", "a timer expired"},
	-3:   {"SI_MESGQ", "a message queue changed"},
	-4:   {"SI_ASYNCIO", "asynchronous I/O completed"},
	-6:   {"SI_TKILL", "sent by tkill"},
	0x80: {"SI_KERNEL", "sent by the kernel"},
}

var codes = map[syscall.Signal]map[int]codeText{
	unix.SIGILL: {
		1: {"ILL_ILLOPC", "illegal opcode"}, 2: {"ILL_ILLOPN", "illegal operand"}, 3: {"ILL_ILLADR", "illegal addressing mode"}, 4: {"ILL_ILLTRP", "illegal trap"},
		5: {"ILL_PRVOPC", "privileged opcode"}, 6: {"ILL_PRVREG", "privileged register"}, 7: {"ILL_COPROC", "coprocessor error"}, 8: {"ILL_BADSTK", "internal stack error"},
	},
	unix.SIGFPE: {
		1: {"FPE_INTDIV", "integer divided by zero"}, 2: {"FPE_INTOVF", "integer overflow"}, 3: {"FPE_FLTDIV", "floating point divided by zero"}, 4: {"FPE_FLTOVF", "floating point overflow"},
		5: {"FPE_FLTUND", "floating point underflow"}, 6: {"FPE_FLTRES", "floating point inexact result"}, 7: {"FPE_FLTINV", "floating point invalid operation"}, 8: {"FPE_FLTSUB", "subscript out of range"},
	},
	unix.SIGSEGV: {
		1: {"SEGV_MAPERR", "address not mapped"}, 2: {"SEGV_ACCERR", "no permission for the address"}, 3: {"SEGV_BNDERR", "bounds check"}, 4: {"SEGV_PKUERR", "protection key"},
		10: {"SEGV_CPERR", "control protection"},
	},
	unix.SIGBUS: {
		1: {"BUS_ADRALN", "address not aligned"}, 2: {"BUS_ADRERR", "no such physical address"}, 3: {"BUS_OBJERR", "hardware error"},
		4: {"BUS_MCEERR_AR", "memory error, action required"}, 5: {"BUS_MCEERR_AO", "memory error, action optional"},
	},
	unix.SIGTRAP: {1: {"TRAP_BRKPT", "breakpoint"}, 2: {"TRAP_TRACE", "trace trap"}, 3: {"TRAP_BRANCH", "branch taken"}, 4: {"TRAP_HWBKPT", "hardware breakpoint"}},
	unix.SIGSYS:  {1: {"SYS_SECCOMP", "forbidden by seccomp"}},
}

// Name returns "SIGSEGV".
func (s *Signal) Name() string {
	if n := unix.SignalName(syscall.Signal(s.Number)); n != "" {
		return n
	}
	return fmt.Sprintf("signal %d", s.Number)
}

func (s *Signal) code() codeText {
	if c, ok := codes[syscall.Signal(s.Number)][s.Code]; ok {
		return c
	}
	return anyCode[s.Code]
}

// CodeName returns "SEGV_MAPERR"; "" for a code that is not known.
func (s *Signal) CodeName() string { return s.code().name }

// String returns "SIGSEGV: address not mapped (SEGV_MAPERR), address 0x10".
func (s *Signal) String() string {
	out := s.Name()
	if c := s.code(); c.name != "" {
		out += fmt.Sprintf(": %s (%s)", c.text, c.name)
	} else {
		out += fmt.Sprintf(": code %d", s.Code)
	}
	if s.HasAddr {
		out += fmt.Sprintf(", address 0x%x", s.Addr)
	}
	return out
}
