//go:build amd64 || arm64

package unwind

// fetch has the processor fetch a number of lines of 64 bytes, at least one, from p on. It waits for none, and no address faults.
//
//go:noescape
func fetch(p *byte, lines uint64)
