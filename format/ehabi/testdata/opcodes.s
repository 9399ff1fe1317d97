@ Functions whose entries have all opcodes of EHABI32, section 10. Assembled and linked for both byte orders; TestGolden says how.
	.syntax unified
	.arch armv7-a
	.fpu neon
	.text

	.macro raw name, ops:vararg
	.globl \name
	.type \name, %function
\name:	.fnstart
	.unwind_raw 0, \ops
	bx lr
	.fnend
	.endm

leaf:	.fnstart
	bx lr
	.fnend
saves:	.fnstart
	.save {r4, r5, r6, lr}
	push {r4, r5, r6, lr}
	.pad #16
	sub sp, sp, #16
	bx lr
	.fnend
doubles: .fnstart
	.save {r4, lr}
	push {r4, lr}
	.vsave {d8-d11}
	vpush {d8-d11}
	bx lr
	.fnend
pointer: .fnstart
	.save {r4, r11, lr}
	push {r4, r11, lr}
	.setfp r11, sp, #4
	add r11, sp, #4
	.pad #1024
	sub sp, sp, #1024
	bx lr
	.fnend
arguments: .fnstart
	.pad #16
	sub sp, sp, #16
	.save {r4, r5, lr}
	push {r4, r5, lr}
	bx lr
	.fnend
nothing: .fnstart
	.cantunwind
	bx lr
	.fnend
handled: .fnstart
	.save {r4, r5, r6, r7, r8, lr}
	push {r4, r5, r6, r7, r8, lr}
	.pad #2048
	sub sp, sp, #2048
	bx lr
	.personality __gxx_personality_v0
	.handlerdata
	.long 0
	.fnend
model1:	.fnstart
	.personalityindex 1
	.save {r4, r9, lr}
	push {r4, r9, lr}
	bx lr
	.handlerdata
	.long 0
	.fnend
	.thumb
	.type narrow, %function
	.thumb_func
narrow:	.fnstart
	.save {r4, lr}
	push {r4, lr}
	bx lr
	.fnend
	.balign 4
	.arm

	raw down, 0x41
	raw up, 0x3f
	raw refuse, 0x80, 0x00
	raw masks, 0x88, 0x01
	raw counter, 0x8c, 0x0f
	raw stack, 0x8a, 0x01
	raw everything, 0xb1, 0x0f, 0x8f, 0xff
	raw twostacks, 0x82, 0x00, 0x01, 0x82, 0x00, 0x84, 0x00
	raw register, 0x9b, 0xa0
	raw popped, 0xab, 0x97, 0x84, 0x00
	raw link, 0xaf
	raw nolink, 0xa7
	raw finished, 0x01, 0xb0, 0x02
	raw low, 0xb1, 0x0a
	raw large, 0xb2, 0x80, 0x01
	raw fstmx, 0xb3, 0x81
	raw fstmx8, 0xb9
	raw authenticated, 0xb5, 0xb4, 0xa8
	raw iwmmx, 0xc1, 0xc6, 0x12, 0xc7, 0x05
	raw vpush16, 0xc8, 0x03
	raw vpush, 0xc9, 0x83
	raw vpush8, 0xd3
	raw spare9d, 0x9d
	raw spareb1, 0xb1, 0x10
	raw spareb6, 0xb6
	raw sparec7, 0xc7, 0x10
	raw spareca, 0xca
	raw sparee0, 0xe0
	raw beyond, 0xc8, 0xf1
	raw beyondx, 0xb3, 0xf1
	.globl __gxx_personality_v0
	.type __gxx_personality_v0, %function
__gxx_personality_v0:
	.fnstart
	.cantunwind
	bx lr
	.fnend
	.globl __aeabi_unwind_cpp_pr0, __aeabi_unwind_cpp_pr1
__aeabi_unwind_cpp_pr0:
__aeabi_unwind_cpp_pr1:
	bx lr
	.section .note.GNU-stack,"",%progbits
