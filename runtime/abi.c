/* SPDX-License-Identifier: Apache-2.0 */
/* abi.c: names of registers and errors, which both drop-ins export. */
#include "abi.h"

US_API int U(is_fpreg)(int n)
{
	return n >= 64 && n < 96 && UNW_PC == 32; /* AArch64 has v0 to v31 there */
}

US_API const char *U(regname)(int n)
{
#ifdef __x86_64__
	static const char *const names[] = {
		"RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", "R8",
		"R9", "R10", "R11", "R12", "R13", "R14", "R15", "RIP",
	};

	return n >= 0 && n < UNW_NUM_REGS ? names[n] : "???";
#else
	static const char *const names[] = {
		"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "ip0", "ip1", "x18",
		"x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "fp", "lr", "sp", "pc", "pstate",
	};
	static const char *const vectors[] = {
		"v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18",
		"v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "fpsr", "fpcr",
	};

	if (n >= 64 && n < 98)
		return vectors[n - 64];
	return n >= 0 && n < 34 ? names[n] : "???";
#endif
}

US_API const char *U(strerror)(int e)
{
	static const char *const names[] = {
		"no error", "unspecified (general) error", "out of memory", "bad register number",
		"attempt to write read-only register", "stop unwinding", "invalid IP", "bad frame",
		"unsupported operation or bad value", "unwind info has unsupported version", "no unwind info found",
	};

	return e <= 0 && e >= -UNW_ENOINFO ? names[-e] : "invalid error code";
}
