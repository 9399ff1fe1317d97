package pe

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// packages are npm packages with images for Windows: by MSVC, by Rust, by Go, by clang; the small ones first.
var packages = []string{
	"@parcel/watcher-win32-x64@2.6.0",
	"@parcel/watcher-win32-arm64@2.6.0",
	"@rollup/rollup-win32-x64-msvc@4.67.4",
	"@rollup/rollup-win32-arm64-msvc@4.67.4",
	"@node-rs/argon2-win32-x64-msvc@2.2.1",
	"@node-rs/argon2-win32-arm64-msvc@2.2.1",
	"@node-rs/bcrypt-win32-x64-msvc@1.10.8",
	"@node-rs/bcrypt-win32-arm64-msvc@1.10.8",
	"@node-rs/crc32-win32-x64-msvc@1.10.8",
	"@node-rs/crc32-win32-arm64-msvc@1.10.8",
	"@node-rs/jieba-win32-x64-msvc@2.0.2",
	"@node-rs/jieba-win32-arm64-msvc@2.0.2",
	"@napi-rs/snappy-win32-x64-msvc@7.4.3",
	"@napi-rs/snappy-win32-arm64-msvc@7.4.3",
	"@cbor-extract/cbor-extract-win32-x64@2.2.2",
	"@lmdb/lmdb-win32-x64@3.5.6",
	"@msgpackr-extract/msgpackr-extract-win32-x64@3.0.4",
	"@unrs/resolver-binding-win32-x64-msvc@1.12.2",
	"@unrs/resolver-binding-win32-arm64-msvc@1.12.2",
	"@resvg/resvg-js-win32-x64-msvc@2.6.2",
	"@resvg/resvg-js-win32-arm64-msvc@2.6.2",
	"lightningcss-win32-x64-msvc@1.33.0",
	"lightningcss-win32-arm64-msvc@1.33.0",
	"@tailwindcss/oxide-win32-x64-msvc@4.3.3",
	"@tailwindcss/oxide-win32-arm64-msvc@4.3.3",
	"@oxc-parser/binding-win32-x64-msvc@0.154.0",
	"@oxc-parser/binding-win32-arm64-msvc@0.154.0",
	"@img/sharp-win32-x64@0.35.5",
	"@esbuild/win32-x64@0.28.2",
	"@esbuild/win32-arm64@0.28.2",
	"@swc/core-win32-x64-msvc@1.16.18",
	"@swc/core-win32-arm64-msvc@1.16.18",
	"@ast-grep/napi-win32-x64-msvc@0.51.1",
	"@biomejs/cli-win32-x64@2.5.15",
	"@biomejs/cli-win32-arm64@2.5.15",
}

// images returns the images of npm packages: four, and all in make full, where those of Debian's cross compiler join them.
func images(t testing.TB) (list []string) {
	for _, p := range packages[:oracle.Few(4, len(packages))] {
		list = append(list, below(t, oracle.Packed(t, p))...)
	}
	if oracle.Few(0, 1) > 0 {
		list = append(list, below(t, mingw(t, "gcc-mingw-w64-x86-64-win32-runtime", "libz-mingw-w64"))...)
	}
	return list
}

// mingw returns the directory of packages of Debian's cross compiler for Windows, unpacked.
func mingw(t testing.TB, packages ...string) string {
	t.Helper()
	return oracle.Debian(t, "bookworm", "amd64", "mingw", packages...)
}

// below returns the images in a directory.
func below(t testing.TB, dir string) []string {
	t.Helper()
	return oracle.Files(t, dir, func(p string) bool {
		return slices.Contains([]string{".dll", ".exe", ".node"}, strings.ToLower(filepath.Ext(p))) && !strings.Contains(p, "i686")
	})
}
