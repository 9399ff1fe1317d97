/* SPDX-License-Identifier: Apache-2.0 */
/* abi.c: names of registers and errors, which both drop-ins export. */
#include "abi.h"

US_API int _Ux86_64_is_fpreg(int n)
{
	(void)n;
	return 0;
}

US_API const char *_Ux86_64_regname(int n)
{
	static const char *const names[] = {
		"RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", "R8",
		"R9", "R10", "R11", "R12", "R13", "R14", "R15", "RIP",
	};

	return n >= 0 && n < UNW_NUM_REGS ? names[n] : "???";
}

US_API const char *_Ux86_64_strerror(int e)
{
	static const char *const names[] = {
		"no error", "unspecified (general) error", "out of memory", "bad register number",
		"attempt to write read-only register", "stop unwinding", "invalid IP", "bad frame",
		"unsupported operation or bad value", "unwind info has unsupported version", "no unwind info found",
	};

	return e <= 0 && e >= -UNW_ENOINFO ? names[-e] : "invalid error code";
}
