#include "textflag.h"

// func call(fn uintptr, s, mem unsafe.Pointer, arg uintptr) uintptr
//
// Calls fn(s, mem, arg) under the System V ABI, on the stack of the goroutine, which is known to have room for the frame
// declared here. Emitted code uses less than half of it: the largest rule has 21 results, 64 values of an expression,
// and four calls. The code calls nothing that is Go, keeps no pointer, and leaves R12 as it was.
TEXT ·call(SB), 0, $2048-40
	MOVQ fn+0(FP), AX
	MOVQ s+8(FP), DI
	MOVQ mem+16(FP), SI
	MOVQ arg+24(FP), DX
	MOVQ SP, R12
	LEAQ 2032(SP), SP
	ANDQ $~15, SP
	CALL AX
	MOVQ R12, SP
	MOVQ AX, ret+32(FP)
	RET

// func callFind(fn, pc uintptr) uintptr
//
// Calls fn(pc), a search, which uses eight bytes of stack.
TEXT ·callFind(SB), 0, $256-24
	MOVQ fn+0(FP), AX
	MOVQ pc+8(FP), DI
	MOVQ SP, R12
	LEAQ 240(SP), SP
	ANDQ $~15, SP
	CALL AX
	MOVQ R12, SP
	MOVQ AX, ret+16(FP)
	RET

// readSlice is what code of kind Callback calls where Verify runs it: int readSlice(unspool_slice *ctx, uint64_t addr,
// uint64_t *value), under the System V ABI. It reads as code of kind Slice does.
TEXT readSlice<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ SI, CX
	SUBQ 0(DI), CX
	MOVQ 8(DI), R8
	SUBQ CX, R8
	JCS  words
	CMPQ R8, $8
	JCS  words
	ADDQ 16(DI), CX
	MOVQ (CX), CX
	JMP  found

words:
	MOVQ 24(DI), R9
	MOVQ 32(DI), R8

next:
	SUBQ $1, R8
	JCS  none
	CMPQ 0(R9), SI
	JEQ  word
	ADDQ $24, R9
	JMP  next

word:
	MOVQ 8(R9), CX
	CMPQ 16(R9), $0
	JEQ  none

found:
	MOVQ CX, (DX)
	MOVL $1, AX
	RET

none:
	XORL AX, AX
	RET

// func readSlicePC() uintptr
TEXT ·readSlicePC(SB), NOSPLIT, $0-8
	LEAQ readSlice<>(SB), AX
	MOVQ AX, ret+0(FP)
	RET
