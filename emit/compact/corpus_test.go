package compact

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// corpusGlobs name the files that are measured by default: large and small, C, C++, Rust and assembly,
// executables and libraries. Those that a machine lacks are left out. At most four files match each.
var corpusGlobs = []string{
	"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libm.so.6",
	"/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1", "/usr/lib/x86_64-linux-gnu/libcrypto.so.*",
	"/usr/lib/x86_64-linux-gnu/libssl.so.*", "/usr/lib/x86_64-linux-gnu/libpython3*.so.1.0", "/usr/lib/x86_64-linux-gnu/libz.so.1",
	"/usr/lib/x86_64-linux-gnu/libdw.so.1", "/usr/lib/x86_64-linux-gnu/libelf.so.1", "/usr/lib/x86_64-linux-gnu/libglib-2.0.so.0",
	"/usr/lib/x86_64-linux-gnu/libgtk-3.so.0", "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0", "/usr/lib/x86_64-linux-gnu/libicu*.so.*[0-9]",
	"/usr/lib/x86_64-linux-gnu/libav*.so.*[0-9]", "/usr/lib/x86_64-linux-gnu/libx26*.so.*", "/usr/lib/x86_64-linux-gnu/librustc_driver-*.so",
	"/usr/lib/x86_64-linux-gnu/libstd-*.so", "/usr/lib/x86_64-linux-gnu/libnode.so.*", "/usr/lib/x86_64-linux-gnu/libX11.so.6",
	"/usr/lib/gcc/x86_64-linux-gnu/*/cc1plus", "/usr/libexec/gcc/x86_64-linux-gnu/*/cc1plus", "/usr/lib/gcc/x86_64-linux-gnu/*/lto1",
	"/usr/bin/bash", "/usr/bin/ls", "/usr/bin/gdb", "/usr/bin/git", "/usr/bin/perl", "/usr/bin/python3", "/usr/bin/perf_*", "/usr/bin/node",
	"/usr/bin/x86_64-linux-gnu-ld.bfd", "/usr/bin/x86_64-linux-gnu-as", "/usr/bin/openssl", "/usr/bin/ssh", "/usr/bin/tar", "/usr/bin/eu-*",
	"/usr/lib/aarch64-linux-gnu/libc.so.6", "/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6",
	"/usr/aarch64-linux-gnu/lib/libm.so.6",
}

// corpus returns the files to measure: the list's, or with UNSPOOL_CORPUS=all every binary of the machine.
func corpus(t testing.TB) []string {
	if os.Getenv("UNSPOOL_CORPUS") == "all" {
		return oracle.Binaries(t)
	}
	var files []string
	for _, g := range corpusGlobs {
		m, _ := filepath.Glob(g)
		files = append(files, m[:min(len(m), 4)]...)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(files, func(p string) bool {
		real, err := filepath.EvalSymlinks(p)
		dup := err != nil || seen[real]
		seen[real] = true
		return dup
	})
}

// TestCorpus emits, loads and verifies the tables of many files, and holds their total size against
// that of .eh_frame.
func TestCorpus(t *testing.T) {
	oracle.Long(t)
	var total Stats
	var ehFrame, files, refRows int
	var ratios, small []float64 // of all files; of those with 2 to 4 KiB of .eh_frame
	var tEmit, tLoad, tVerify time.Duration
	for _, path := range corpus(t) {
		ref, size := readELF(t, path)
		if len(ref.Rows) == 0 || ref.Machine.Numbered { // no tables are made for machines of which only a number is known
			continue
		}
		t0 := time.Now()
		b, err := Emit(ref)
		t1 := time.Now()
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		ct, err := Load(b)
		t2 := time.Now()
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if err := Verify(ct, ref, 1); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		tEmit, tLoad, tVerify = tEmit+t1.Sub(t0), tLoad+t2.Sub(t1), tVerify+time.Since(t2)
		s := ct.Stats()
		total.Rows += s.Rows
		total.Rules += s.Rules
		total.Wide += s.Wide
		total.Escapes += s.Escapes
		total.Spans += s.Spans
		total.Granules += s.Granules
		total.Bytes += s.Bytes
		total.HeaderSize += s.HeaderSize
		total.IndexSize += s.IndexSize
		total.RowsSize += s.RowsSize
		total.EscapeSize += s.EscapeSize
		total.RuleSize += s.RuleSize
		total.WideSize += s.WideSize
		ehFrame += size
		refRows += len(ref.Rows)
		files++
		ratio := float64(s.Bytes) / float64(size)
		ratios = append(ratios, ratio)
		if size >= 2<<10 && size < 4<<10 {
			small = append(small, ratio)
		}
		if s.Bytes > 1<<20 && !strings.Contains(path, "aarch64") || testing.Verbose() && os.Getenv("UNSPOOL_CORPUS") != "all" {
			t.Logf("%.3f %9d rows %5d rules %4d wide %6d escapes %3d spans  %8d bytes  %s", ratio, s.Rows, s.Rules, s.Wide, s.Escapes, s.Spans, s.Bytes, path)
		}
	}
	if files == 0 {
		oracle.Lacks(t, "binaries with .eh_frame")
	}
	slices.Sort(ratios)
	slices.Sort(small)
	all := float64(total.Bytes) / float64(ehFrame)
	share := func(n int) float64 { return 100 * float64(n) / float64(total.Bytes) }
	perRow := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(refRows) }
	t.Logf("%d files: %d bytes of .eh_frame, %d of tables: %.4f of it; median of the files %.4f, lowest %.3f, highest %.3f",
		files, ehFrame, total.Bytes, all, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	t.Logf("rows %.1f %%, index %.1f %%, escapes %.1f %%, rules %.1f %%, wide %.1f %%, headers %.1f %%; %.3f bytes a row; %+v", share(total.RowsSize),
		share(total.IndexSize), share(total.EscapeSize), share(total.RuleSize), share(total.WideSize), share(total.HeaderSize), float64(total.Bytes)/float64(total.Rows), total)
	t.Logf("a row: Emit %.1f ns, Load %.1f ns, Verify %.1f ns (%.1f million rows/s)", perRow(tEmit), perRow(tLoad), perRow(tVerify), 1e3/perRow(tVerify))
	if all > 0.75 {
		t.Errorf("tables are %.3f of .eh_frame, more than 0.75", all)
	}
	if os.Getenv("UNSPOOL_CORPUS") == "all" && os.Getenv("UNSPOOL_BINARIES") == "" { // of a machine's own files
		if all > 0.49 {
			t.Errorf("tables are %.4f of .eh_frame, more than 0.49", all)
		}
		// How many tiny files there are decides the median of all (docs/RATIONALE.md), so it is taken of files of one size.
		if len(small) == 0 {
			t.Error("no file has 2 to 4 KiB of .eh_frame")
		} else if median := small[len(small)/2]; median > 0.9 {
			t.Errorf("of %d files with 2 to 4 KiB of .eh_frame, the median table is %.4f of it, more than 0.90", len(small), median)
		} else {
			t.Logf("of %d files with 2 to 4 KiB of .eh_frame, the median is %.4f", len(small), median)
		}
	}
}
