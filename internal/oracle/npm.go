package oracle

import (
	"os"
	"path/filepath"
	"testing"
)

// NPM returns the directory of an npm package that .ci/run has installed, from the list in .ci/npm: it is in
// unspool-judges/node_modules of the user's cache.
func NPM(t testing.TB, name string) string {
	t.Helper()
	Need(t, "node")
	cache, err := os.UserCacheDir()
	if err != nil {
		Lacks(t, "a cache directory: "+err.Error())
	}
	dir := filepath.Join(cache, "unspool-judges", "node_modules", name)
	if _, err := os.Stat(filepath.Join(dir, "package.json")); err != nil {
		Lacks(t, "npm package "+name+" (make judges)")
	}
	return dir
}
