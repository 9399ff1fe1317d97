# Records of Windows with handlers of all kinds, for x86-64: known ones, others, damaged ones, and parts of a function.
	.text
# Functions of 16 bytes each.
.macro fn name
\name:
	.fill 16, 1, 0x90
.endm
fn scopes
fn guarded
fn termination
fn unknown
fn four
fn short
fn backwards
fn states
fn circle
fn noexcept
fn whole
fn part
fn plain
fn target
	.section .pdata,"dr"
.macro entry name
	.long \name@IMGREL, \name@IMGREL+16, x_\name@IMGREL
.endm
	entry scopes
	entry guarded
	entry termination
	entry unknown
	entry four
	entry short
	entry backwards
	entry states
	entry circle
	entry noexcept
	entry whole
	entry part
	entry plain
	.section .xdata,"dr"
	.p2align 2
# Of version 1, with flags and a push of rbx: UNWIND_INFO, and the handler's address.
.macro info name, flags, handler
	.p2align 2
x_\name:
	.byte 1 | \flags << 3, 1, 1, 0
	.byte 1, 0x30, 0, 0
	.long \handler@IMGREL
.endm
	info scopes, 3, __C_specific_handler
	.long 3
	.long scopes@IMGREL+2, scopes@IMGREL+6, 1, scopes@IMGREL+12
	.long scopes@IMGREL+3, scopes@IMGREL+5, target@IMGREL, scopes@IMGREL+13
	.long scopes@IMGREL+3, scopes@IMGREL+5, target@IMGREL, 0
	info guarded, 1, __GSHandlerCheck_SEH
	.long 1
	.long guarded@IMGREL, guarded@IMGREL+8, 1, guarded@IMGREL+12
	.long 0x21 # the guard is 0x20 above the stack pointer
	info termination, 2, __GSHandlerCheck
	.long 0x30
	info unknown, 1, target
	.long 1, 2, 3
	info four, 3, __CxxFrameHandler4
	.long target@IMGREL
	info short, 1, __C_specific_handler
	.long 0x1000
	info backwards, 1, __C_specific_handler
	.long 1
	.long backwards@IMGREL+8, backwards@IMGREL, 1, backwards@IMGREL+12
	info states, 3, __CxxFrameHandler3
	.long f_states@IMGREL
	info circle, 3, __CxxFrameHandler3
	.long f_circle@IMGREL
	info noexcept, 3, __CxxFrameHandler3
	.long f_noexcept@IMGREL
	info whole, 1, __C_specific_handler
	.long 2
	.long whole@IMGREL, whole@IMGREL+8, 1, whole@IMGREL+12
	.long part@IMGREL, part@IMGREL+8, 1, part@IMGREL+12
	.p2align 2
x_part:
	.byte 0x21, 0, 0, 0
	entry whole
x_plain:
	.byte 1, 0, 0, 0
	.p2align 2
f_states:
	.long 0x19930522, 2, u_states@IMGREL, 1, t_states@IMGREL, 3, i_states@IMGREL, 0, 0, 1
u_states:
	.long -1, target@IMGREL, 0, target@IMGREL+4
t_states:
	.long 0, 1, 1, 2, h_states@IMGREL
h_states:
	.long 0, type@IMGREL, 0, target@IMGREL+8, 0
	.long 0x40, 0, 0, target@IMGREL+9, 0
i_states:
	.long states@IMGREL, -1, states@IMGREL+4, 1, states@IMGREL+8, 0
f_circle:
	.long 0x19930522, 2, u_circle@IMGREL, 0, 0, 1, i_circle@IMGREL, 0, 0, 1
u_circle:
	.long -1, 0, 1, target@IMGREL
i_circle:
	.long circle@IMGREL, 1
f_noexcept:
	.long 0x19930522, 0, 0, 0, 0, 2, i_noexcept@IMGREL, 0, 0, 5
i_noexcept:
	.long noexcept@IMGREL+4, 0, noexcept@IMGREL+8, -1
	.data
type:
	.quad 0, 0
	.asciz ".?AVerror@@"
