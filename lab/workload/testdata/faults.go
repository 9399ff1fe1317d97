// Faults reads through a null pointer, and recovers.
package main

import "fmt"

//go:noinline
func inner(p *int) int { return *p + 1 }

//go:noinline
func outer(p *int) (n int) {
	defer func() { fmt.Println(recover()) }()
	return inner(p) + 2
}

func main() {
	outer(nil)
}
