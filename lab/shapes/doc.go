// Package shapes walks programs whose chains of calls are known by construction: shapes, in testdata, compiled in many ways when the test
// runs, and walked live, from cores, from copies of stacks, in the kernel, and by ptrace. Each walk is whole and right, or permitted
// lists why not.
//
// The truth is a line in each shape's source. Names of functions come from the symbol table of the program before it was stripped,
// read here. gdb walks the same states: in each shape, it must agree with the truth at least once.
package shapes
