	.text
signal:	.cfi_startproc
	.cfi_signal_frame
	nop
	.cfi_undefined rip
	nop
	.cfi_endproc
outermost: .cfi_startproc
	.cfi_undefined rip
	nop
	.cfi_endproc
offsets: .cfi_startproc
	nop
	.cfi_def_cfa rsp,2000
	nop
	.cfi_offset rbp,-200
	nop
	.cfi_def_cfa rbp,2000000
	nop
	.cfi_def_cfa rsp,8
	.cfi_restore rbp
	nop
	.cfi_endproc
	.zero 40
drap:	.cfi_startproc
	nop
	.cfi_def_cfa r10,0
	nop
	.cfi_escape 0x10,6,2,0x76,0
	nop
	.cfi_escape 0xf,3,0x76,0x78,6
	nop
	.cfi_def_cfa rsp,8
	nop
	.cfi_endproc
deep:	.cfi_startproc
	.cfi_def_cfa r13,100000
	.cfi_escape 0x10,6,4,0x7c,0x80,0x80,2
	nop
	.cfi_endproc
