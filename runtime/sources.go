//go:build unspool_sources

// Package runtime has no Go: it is where cgotraceback finds its C, also in a directory that go mod vendor has made.
package runtime
