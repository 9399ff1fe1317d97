	.text
keys:	.cfi_startproc
	.cfi_b_key_frame
	.cfi_negate_ra_state
	nop
	.cfi_def_cfa_offset 32
	.cfi_offset x29,-32
	.cfi_offset x30,-24
	nop
	.cfi_def_cfa x29,32
	nop
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa sp,0
	.cfi_negate_ra_state
	nop
	.cfi_endproc
offsets: .cfi_startproc
	nop
	.cfi_def_cfa sp,512
	.cfi_offset x29,-512
	.cfi_offset x30,-504
	nop
	.cfi_def_cfa_offset 100000
	nop
	.cfi_endproc
	.zero 64
outermost: .cfi_startproc
	nop
	.cfi_undefined x30
	nop
	.cfi_endproc
signal:	.cfi_startproc
	.cfi_signal_frame
	nop
	.cfi_endproc
pointer: .cfi_startproc
	.cfi_def_cfa sp,16
	.cfi_offset x29,-16
	nop
	.cfi_endproc
same:	.cfi_startproc
	nop
	.cfi_def_cfa sp,32
	.cfi_offset x29,-32
	.cfi_offset x30,-24
	nop
	.cfi_def_cfa sp,0
	.cfi_same_value x29
	.cfi_same_value x30
	nop
	.cfi_endproc
remembered: .cfi_startproc
	nop
	.cfi_def_cfa sp,32
	.cfi_offset x29,-32
	.cfi_offset x30,-24
	.cfi_remember_state
	nop
	.cfi_def_cfa sp,0
	.cfi_restore x29
	.cfi_restore x30
	nop
	.cfi_restore_state
	nop
	.cfi_endproc
