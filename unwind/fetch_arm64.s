#include "textflag.h"

// func fetch(p *byte, lines uint64)
TEXT ·fetch(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD lines+8(FP), R1
loop:
	PRFM (R0), PLDL1KEEP
	ADD $64, R0
	SUBS $1, R1
	BNE loop
	RET
