// Package shapes walks programs whose chains of calls are known by construction. These shapes are in testdata. The test compiles them in
// many ways, and walks them live, from cores, from copies of stacks, in the kernel, and by ptrace. Each walk is whole and right, or the
// list permitted has the reason. TestMachines walks some shapes under other kernels, for x86-64 and for AArch64, in virtual machines.
//
// The truth is a line in each shape's source. Names of functions come from the symbol table of the program before it was stripped; this
// package reads it. gdb walks the same states, and must agree with the truth at least once in each shape.
package shapes
