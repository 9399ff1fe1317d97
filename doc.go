// Package unspool compiles unwind tables and walks stacks with them. The code is in the packages
// below; ARCHITECTURE.md says which does what, and cmd/unspool is the program.
package unspool
