#include "textflag.h"

// func call(fn uintptr, s, mem unsafe.Pointer, arg uintptr) uintptr
//
// Calls fn(s, mem, arg) under the procedure call standard (AAPCS64), on the stack of the goroutine, which is known to have room for the frame
// declared here. Emitted code uses less than two thirds of it: the largest rule has 43 results, 64 values of an expression, and one call. The code
// calls nothing that is Go, keeps no pointer, and leaves R19 and R28 as they were.
TEXT ·call(SB), 0, $2048-40
	MOVD fn+0(FP), R9
	MOVD s+8(FP), R0
	MOVD mem+16(FP), R1
	MOVD arg+24(FP), R2
	MOVD RSP, R19
	ADD  $2032, R19, R10
	AND  $~15, R10, R10
	MOVD R10, RSP
	CALL (R9)
	MOVD R19, RSP
	MOVD R0, ret+32(FP)
	RET

// func callFind(fn, pc uintptr) uintptr
//
// Calls fn(pc), a search, which uses no stack.
TEXT ·callFind(SB), 0, $256-24
	MOVD fn+0(FP), R9
	MOVD pc+8(FP), R0
	MOVD RSP, R19
	CALL (R9)
	MOVD R19, RSP
	MOVD R0, ret+16(FP)
	RET

// readSlice is what code of kind Callback calls where Verify runs it: int readSlice(unspool_slice *ctx, uint64_t addr,
// uint64_t *value), under AAPCS64. It reads as code of kind Slice does, and leaves nothing as it was that a function need not keep.
TEXT readSlice<>(SB), NOSPLIT|NOFRAME, $0-0
	LDP  0(R0), (R8, R9)
	SUB  R8, R1, R8
	CMP  R9, R8
	BHS  words
	SUB  R8, R9, R9
	CMP  $8, R9
	BLO  words
	MOVD 16(R0), R10
	ADD  R8, R10, R10
	MOVD (R10), R10
	B    found

words:
	MOVD 24(R0), R8
	MOVD 32(R0), R9

next:
	CBZ  R9, none
	SUB  $1, R9
	MOVD (R8), R10
	CMP  R10, R1
	BEQ  word
	ADD  $24, R8
	B    next

word:
	MOVD 8(R8), R10
	MOVD 16(R8), R9
	CBZ  R9, none

found:
	MOVD R10, (R2)
	MOVD $(1<<32 + 1), R0
	B    clobber

none:
	MOVD $(1<<32), R0

clobber:
	MOVD R0, R1
	MOVD R0, R2
	MOVD R0, R3
	MOVD R0, R4
	MOVD R0, R5
	MOVD R0, R6
	MOVD R0, R7
	MOVD R0, R8
	MOVD R0, R9
	MOVD R0, R10
	MOVD R0, R11
	MOVD R0, R12
	MOVD R0, R13
	MOVD R0, R14
	MOVD R0, R15
	MOVD R0, R16
	MOVD R0, R17
	RET

// func readSlicePC() uintptr
TEXT ·readSlicePC(SB), NOSPLIT, $0-8
	MOVD $readSlice<>(SB), R0
	MOVD R0, ret+0(FP)
	RET
