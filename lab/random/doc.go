// Package random makes programs from seeds, compiles them in random ways, and executes them step by step: each row of their unwind tables is
// compared with the truth that package shadow keeps. A wrong row is permitted with a reason, or fails the test.
//
// A seed gives the same program, compiler and flags on every machine. Programs come from csmith, and from a generator here, for C, C++ and
// Rust. The generator has what changes a stack: alloca, aligned and variable frames, exceptions, signals, tail calls, nested functions, longjmp,
// foreign conventions, cold and naked functions. Each is a feature, which reduce leaves out for as long as the row stays wrong.
//
// The same execution judges ways to walk (ways_test.go): at each instruction every way's chain of callers is compared with the shadow stack.
package random
