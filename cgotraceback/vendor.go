//go:build unspool_sources

package cgotraceback

// go mod vendor copies the directories of packages only, whatever their build tags: without this import, it would leave out the C.
import _ "github.com/unspool/unspool/runtime"
