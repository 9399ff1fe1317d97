	.text
stack:	.cfi_startproc
	nopr
	.cfi_offset %r14,-48
	nopr
	.cfi_offset %r11,-72
	.cfi_def_cfa_offset 328
	nopr
	.cfi_def_cfa_register %r11
	nopr
	.cfi_restore %r11
	.cfi_restore %r14
	.cfi_def_cfa %r15,160
	nopr
	.cfi_endproc
registers: .cfi_startproc
	nopr
	.cfi_register %r14,%f0
	nopr
	.cfi_register %r11,%f2
	nopr
	.cfi_def_cfa_offset 100000
	nopr
	.cfi_endproc
pointer: .cfi_startproc
	.cfi_offset %r11,-72
	nopr
	.cfi_endproc
outermost: .cfi_startproc
	nopr
	.cfi_undefined %r14
	nopr
	.cfi_endproc
