package unspool

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// claims are the figures of README outside its table, which lab.TestReadme holds equal to docs/results. Each has a source: a file, and an
// expression that must match in it; or none, if the figure is part of a name.
var claims = []struct {
	text    string // in README, with spaces for line breaks
	sources [][2]string
}{
	{"at most 2 GiB of compiled tables", [][2]string{{"store/disk.go", `maxKept = int64\(2 << 30\)`}}},
	{"512 MiB of names", [][2]string{{"names/kept.go", `maxKeptFiles += 256 << 20`}, {"names/answers.go", `maxAnswersAll += 256 << 20`}}},
	{"768 MiB of debug information", [][2]string{{"symbol/debuginfo/expanded.go", `maxExpandedAll = 512 << 20`}, {"symbol/debuginfo/cache.go", `maxCacheAll int64 = 256 << 20`}}},
	{"As root on Linux 5.10 or later, the kernel walks", [][2]string{{"doctor/probes.go", `walkKernel = "Linux 5\.10 or later`}}},
	{"up to 1,024 frames deep", [][2]string{{"source/ebpf/c/walk.h", `#define MAX_FRAMES 1024\n`}}},
	{"four of root's capabilities in effect: CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH",
		[][2]string{{"internal/caps/caps.go", `Recording = Set\(1<<unix\.CAP_BPF \| 1<<unix\.CAP_PERFMON \| 1<<unix\.CAP_SYS_PTRACE \| 1<<unix\.CAP_DAC_READ_SEARCH\)`}}},
	{"unspool reads DWARF 2 to 5", [][2]string{{"docs/results/README.md", `with DWARF 2 to 5, in all forms`}}},
	{"SFrame, versions 1 to 3", [][2]string{{"ARCHITECTURE.md", "`\\.sframe` of versions 1 to 3"}}},
	{"ORC, of Linux 4.14 to 7.2", [][2]string{{"format/orc/layout.go", `name: "4\.14 to 4\.18"`}, {"docs/FINDINGS.md", `reads every entry of Debian's kernels 5\.10, 6\.1, 6\.12 and 7\.2`}}},
	{"A stack copy has at most 64 KiB", [][2]string{{"source/perfevent/perfevent.go", `MaxStackSize += 65528`}}},
	{"boots Linux 5.10, 6.1, 6.12 and Debian's newest", [][2]string{{"lab/shapes/machines_test.go", `(?s)"bullseye", "arm64".*"bookworm", "arm64".*"trixie", "arm64".*"sid", "arm64"`}}},
	{"some 560 packages of two Debian releases", [][2]string{{"Makefile", `some 560 packages of two suites`}}},
	{"executes Debian 13's programs there", [][2]string{{"lab/vm/execution_test.go", `trixie`}}},
	{"RISC-V 64, LoongArch 64", nil},
	{"Apache-2.0", nil},
}

var (
	fences = regexp.MustCompile("(?s)```.*?```|<!-- make results.*?<!-- the table ends -->|\\]\\([^)]*\\)")
	spaces = regexp.MustCompile(`\s+`)
	figure = regexp.MustCompile(`(?:^|[ (|])\d[\d.,]*`)
)

// TestClaims: each figure in README has a source that still has it, and each claim is still made.
func TestClaims(t *testing.T) {
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	text := spaces.ReplaceAllString(fences.ReplaceAllString(read("README.md"), " "), " ")
	for _, c := range claims {
		if !strings.Contains(text, c.text) {
			t.Errorf("README.md does not claim %q", c.text)
		}
		text = strings.ReplaceAll(text, c.text, "")
		for _, s := range c.sources {
			if !regexp.MustCompile(s[1]).MatchString(read(s[0])) {
				t.Errorf("README.md claims %q, but %s has no %s", c.text, s[0], s[1])
			}
		}
	}
	for _, at := range figure.FindAllStringIndex(text, -1) {
		t.Errorf("README.md has a figure without a source in claims: …%s…", text[max(0, at[0]-40):min(len(text), at[1]+40)])
	}
}
