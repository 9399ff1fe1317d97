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

// documented are figures of other documents, each with its sources. Documents have more figures than these.
var documented = []struct {
	document, text string
	sources        [][2]string
}{
	{"docs/FLEET.md", "profiles the whole machine at 19 Hz", [][2]string{{"agent/daemon/defaults.go", `Frequency = 19`}}},
	{"docs/FLEET.md", "sends profiles every 10 seconds", [][2]string{{"cmd/unspool/agent.go", `"interval", "10s"`}}},
	{"docs/FLEET.md", "`other` beyond 512 places", [][2]string{{"agent/agent.go", `maxGroups += 512 `}}},
	{"docs/FLEET.md", "again after 5 seconds, then after twice as long each time, up to 10 minutes",
		[][2]string{{"agent/otelctx/reader.go", `soonest += 5 \* time\.Second`}, {"agent/otelctx/reader.go", `latest += 10 \* time\.Minute`}}},
	{"docs/FLEET.md", "At most 256 bytes of a value are used. A context of more than 128 attributes or 64 KiB is not used.",
		[][2]string{{"agent/otelctx/otelctx.go", `maxValue += 256 `}, {"agent/otelctx/otelctx.go", `maxAttributes = 128\n`}, {"agent/otelctx/otelctx.go", `maxPayload += 64 << 10 `}}},
	{"docs/FLEET.md", "costs 20 ms once in 10 seconds, and one of eight threads",
		[][2]string{{"agent/otelctx/reader.go", `patience += 20 \* time\.Millisecond`}, {"agent/otelctx/reader.go", `grudge += 10 \* time\.Second`}, {"agent/otelctx/reader.go", `maxStuck += 8 `}}},
	{"docs/FLEET.md", "for each output, 16 MiB by default", [][2]string{{"agent/queue.go", `DefaultQueue = 16 << 20`}, {"cmd/unspool/agent.go", `"queue", "16M"`}}},
	{"docs/FLEET.md", "tried again after at most a second, then after at most twice as long, up to two minutes",
		[][2]string{{"agent/queue.go", `leastPause = time\.Second `}, {"agent/queue.go", `mostPause += 2 \* time\.Minute`}}},
	{"docs/FLEET.md", "An engine may ask for up to an hour", [][2]string{{"agent/export/client.go", `maxAfter += time\.Hour`}}},
	{"docs/FLEET.md", "at most 5 seconds between two requests", [][2]string{{"agent/queue.go", `mostGap += 5 \* time\.Second`}}},
	{"docs/FLEET.md", "for at most two seconds", [][2]string{{"agent/daemon/daemon.go", `lastWords += 2 \* time\.Second`}}},
	{"docs/FLEET.md", "`size` bytes (1G), up to an age of `age` (168h)", [][2]string{{"agent/files/files.go", `DefaultSize = 1 << 30`}, {"agent/files/files.go", `DefaultAge += 7 \* 24 \* time\.Hour`}}},
	{"docs/FLEET.md", "at most once in 10 seconds", [][2]string{{"agent/files/files.go", `every = 10 \* time\.Second`}}},
	{"docs/FLEET.md", "Of a full ring, a 64th goes at once", [][2]string{{"agent/files/files.go", `most-r\.size/64`}}},
	{"docs/FLEET.md", "count after ten minutes at most", [][2]string{{"agent/files/files.go", `recount = 10 \* time\.Minute`}}},
	{"docs/FLEET.md", "5 to 6 seconds after the last request at the earliest, and three times a minute at most",
		[][2]string{{"agent/kubelet/kubelet.go", `least += 5 \* time\.Second`}, {"agent/kubelet/kubelet.go", `rand\.N\(d / 5\)`}, {"agent/kubelet/kubelet.go", `maxTries = 3 `}}},
	{"docs/FLEET.md", "read (32 MiB; 4 MiB for a pod) and kept (16,384 pods and containers, with names of at most 512 bytes)",
		[][2]string{{"agent/kubelet/decode.go", `maxAnswer = 32 << 20`}, {"agent/kubelet/decode.go", `maxPod += 4 << 20`}, {"agent/kubelet/kubelet.go", `maxKnown = 1 << 14 `}, {"agent/kubelet/decode.go", `maxName += 512\b`}}},
	{"docs/FLEET.md", "Tests hold that value to at most 4", [][2]string{{"cmd/unspool/deploy_test.go", `--threshold=40`}}},
	{"docs/FLEET.md", "the third quarter", [][2]string{{"cmd/unspool/soak_test.go", `end > 1\.05\*float64\(quarters\[2\]\) && end > 1\.05\*float64\(quarters\[1\]\)`}}},
	{"docs/FLEET.md", "a collector, release 0.159", [][2]string{{"tools/collector/go.mod", `otelcol v0\.159\.0`}}},
	{"docs/HEAP.md", "a sample each 512 KiB of allocated memory", [][2]string{{"record/heap/heap.go", `DefaultPeriod = 512 << 10`}}},
	{"docs/HEAP.md", "at most 255 frames", [][2]string{{"runtime/heap.h", `HEAP_FRAMES = 255\b`}}},
	{"docs/HEAP.md", "a filter of 32 KiB", [][2]string{{"runtime/heap.h", `HEAP_FILTER_BITS = 15 `}}},
	{"docs/HEAP.md", "up to 64 of its frees", [][2]string{{"runtime/heap_table.c", `DEFERRED = 64\b`}}},
	{"docs/HEAP.md", "in some of eight runs at most", [][2]string{{"runtime/test/heap_test.go", `len\(ours\) < 8 `}}},
	{"docs/STACK.md", "its innermost 4,096 frames, its outermost 64", [][2]string{{"stacks/stacks.go", `Inner = unwind\.DefaultDepth\n\tOuter = 64\n`}, {"unwind/walk.go", `DefaultDepth = 4096\n`}}},
	{"docs/STACK.md", "Once more than 1,048,576 frames are shown, the other threads show their innermost 64",
		[][2]string{{"stacks/stacks.go", `maxFrames += 1 << 20`}, {"stacks/stacks.go", `shortDepth = 64\n`}}},
	{"docs/STACK.md", "`start`, `cfi`, `signal`, `plt`, `fp`, `sigreturn`, `call`, `sync`: how", [][2]string{{"unwind/types.go", `"start", "cfi", "signal", "plt", "fp", "sigreturn", "call", "sync"\}`}}},
	{"docs/STACK.md", "`outermost` (whole), `no-info`, `bad-cfa`, `truncated`, `bad-memory`, `bad-return`, `depth-limit`, `no-user-stack`",
		[][2]string{{"unwind/types.go", `"outermost", "no-info", "bad-cfa", "truncated", "bad-memory", "bad-return", "depth-limit", "no-user-stack"\}`}}},
	{"docs/STACK.md", "changes while it is read three times", [][2]string{{"source/libgcc/libgcc.go", `maxTries += 3 `}}},
	{"docs/TABLE.md", "spans 32 steps, low bytes 9 steps (or 32 of eight bytes), escapes 13 steps, saves 64 steps",
		[][2]string{{"runtime/unspool_table.h", `i < 32 && lo < hi`}, {"runtime/unspool_table.h", `i <= UNSPOOL_GRANULE_BITS && `}, {"runtime/unspool_table.h", `i <= UNSPOOL_ESCAPE_BITS && `},
			{"runtime/unspool_table.h", `UNSPOOL_GRANULE_BITS = 8,`}, {"runtime/unspool_table.h", `UNSPOOL_ESCAPE_BITS = 12,`}, {"runtime/unspool_table.h", `UNSPOOL_MAX_SAVES = 64,`}}},
	{"docs/EH_ELF.md", "or does 4,096 operations", [][2]string{{"rows/expr.go", `maxExprSteps = 4096\n`}}},
	{"docs/EH_ELF.md", "the file must be regular, and at most 1 GiB", [][2]string{{"emit/native/native.go", `maxSize = 1 << 30\n`}, {"runtime/eh_elf_file.h", `st\.st_size > 1 << 30\)`}}},
	{"docs/EH_ELF.md", "4,096 by default", [][2]string{{"runtime/eh_elf.h", `eh_elf_begin sets 4096 `}}},
	{"docs/SEMANTICS.md", "The stack holds 64 values, and an expression ends after 4,096 operations", [][2]string{{"rows/expr.go", `maxExprStack = 64\n\tmaxExprSteps = 4096\n`}}},
	{"docs/SEMANTICS.md", "A walk may step down 64 times", [][2]string{{"arch/limits.go", `MaxMoves += 64 `}}},
	{"docs/SEMANTICS.md", "each step up of more than 4,096 bytes", [][2]string{{"arch/limits.go", `MaxPiece += 4 << 10 `}}},
	{"docs/SEMANTICS.md", "at most 24 bytes before", [][2]string{{"arch/limits.go", `MaxAfterSyscall = 24 `}}},
	{"docs/SEMANTICS.md", "(`uc_flags` up to 7,", [][2]string{{"arch/limits.go", `MaxFlags += 7 `}}},
	{"docs/SEMANTICS.md", "It may be at most 1 MiB behind the beginning", [][2]string{{"arch/limits.go", `MaxFunction += 1 << 20 `}}},
	{"docs/SEMANTICS.md", "a straight way of at most 64 instructions", [][2]string{{"arch/edge.go", `MaxEdge = 256\n`}}},
	{"docs/SEMANTICS.md", "128 bytes on x86-64, none on AArch64", [][2]string{{"arch/amd64.go", `RedZone: +128,`}}},
	{"docs/SEMANTICS.md", "the fewest of 52, 48, 47 and 39", [][2]string{{"arch/arm64.go", `AddressBits: \[\]int\{52, 48, 47, 39\}`}}},
	{"docs/DROPIN.md", "goes down more than 64 times", [][2]string{{"runtime/core.c", `m->n >= UNSPOOL_MAX_MOVES`}, {"runtime/machine.h", `UNSPOOL_MAX_MOVES = 64,`}}},
	{"docs/DROPIN.md", "at most four, of fewer than 128 modules each",
		[][2]string{{"runtime/dw_report.c", `MAX_IDLE = 4, MAX_REPORTED = 128 `}, {"runtime/dw_report.c", `p->n_reported == MAX_REPORTED\)\n`}}},
	{"docs/DROPIN.md", "covers at most 64 KiB of a procedure", [][2]string{{"runtime/local.c", `pc - fde\.lo < 1 << 16;`}}},
	{"docs/DROPIN.md", "for a procedure of more than 64 KiB", [][2]string{{"runtime/space.c", `MAX_PROCEDURE = 1 << 16 `}}},
	{"ARCHITECTURE.md", "One `module.Budget` of 128 MiB", [][2]string{{"module/budget.go", `DefaultBudget = 128 << 20`}}},
	{"ARCHITECTURE.md", "at most 4,096 of them are mapped", [][2]string{{"store/shared.go", `maxMaps += 4 << 10`}}},
	{"ARCHITECTURE.md", "the last 1,024 others (1,536 until the oldest of them go)", [][2]string{{"source/ebpf/room.go", `maxIdle = 1 << 10`}, {"source/ebpf/room.go", `t\.idle > maxIdle\+maxIdle/2`}}},
	{"ARCHITECTURE.md", "A test lets 10,000 programs come and go", [][2]string{{"names/churn_test.go", `programs, workers := 10_000`}}},
	{"ARCHITECTURE.md", "at most 2 GiB of tables (`store/disk.go`), 512 MiB of names and 768 MiB of debug information",
		[][2]string{{"store/disk.go", `maxKept = int64\(2 << 30\)`}, {"names/kept.go", `maxKeptFiles += 256 << 20`}, {"names/answers.go", `maxAnswersAll += 256 << 20`},
			{"symbol/debuginfo/expanded.go", `maxExpandedAll = 512 << 20`}, {"symbol/debuginfo/cache.go", `maxCacheAll int64 = 256 << 20`}}},
	{"ARCHITECTURE.md", "keep three capabilities from the start", [][2]string{{"cmd/unspool/drop.go", `parsing = caps\.Set\(1<<unix\.CAP_DAC_READ_SEARCH \| 1<<unix\.CAP_SYS_PTRACE \| 1<<unix\.CAP_SYSLOG\)`}}},
	{"ARCHITECTURE.md", "a process that stalls the reader costs 20 ms once in 10 s", [][2]string{{"agent/otelctx/reader.go", `patience += 20 \* time\.Millisecond`}, {"agent/otelctx/reader.go", `grudge += 10 \* time\.Second`}}},
	{"docs/RATIONALE.md", "4,096 files, and 8 GiB, bound the mappings", [][2]string{{"store/shared.go", `maxMaps += 4 << 10`}, {"store/shared.go", `maxMapBytes = 8 << 30`}}},
	{"docs/RATIONALE.md", "has room for 16,384 answers", [][2]string{{"source/ebpf/c/walk.h", `#define CACHE_BITS 13\n`}, {"source/ebpf/c/walk.h", `e\[1 << CACHE_BITS\]\[2\]`}}},
	{"docs/RATIONALE.md", "after one second, then two, four, up to a minute", [][2]string{{"source/perfevent/again.go", `maxTrial += time\.Minute`}}},
	{"docs/RATIONALE.md", "Why copies of 32 KiB by default?", [][2]string{{"source/perfevent/plan.go", `defaultStack += 32 << 10`}}},
	{"docs/RATIONALE.md", "While 12 MB of copies wait", [][2]string{{"source/perfevent/drain.go", `shrinkCopies = 12 << 20`}}},
	{"docs/RATIONALE.md", "from 48 MB on, a sample has its registers only", [][2]string{{"source/perfevent/queue.go", `part\(64<<20, 64\)`}, {"source/perfevent/queue.go", `m\.none = int64\(m\.backlog\) / 4 \* 3`}}},
	{"docs/RATIONALE.md", "so windows have 8 MiB", [][2]string{{"source/perfdata/input.go", `windowSize = 8 << 20`}}},
	{"docs/RATIONALE.md", "Why is garbage not collected below 64 MB in a report?", [][2]string{{"internal/cli/memory.go", `lateCollection = 64 << 20`}}},
	{"docs/RATIONALE.md", "when the heap has grown by a quarter", [][2]string{{"internal/cli/memory.go", `often = 25`}}},
	{"docs/RATIONALE.md", "reads for 5 ms at a time, one process for 20 ms at most", [][2]string{{"source/perfevent/again.go", `sliceTime += 5 \* time\.Millisecond`}, {"source/perfevent/again.go", `oneTime += 20 \* time\.Millisecond`}}},
	{"docs/RATIONALE.md", "The budget counts the first 64 KiB and a quarter of the rest", [][2]string{{"module/budget.go", `smallFile = 64 << 10`}}},
	{"docs/RATIONALE.md", "used in the last ten seconds", [][2]string{{"module/budget.go", `recent = 10 \* time\.Second`}}},
	{"docs/RATIONALE.md", "a walk waits 50 ms for the end", [][2]string{{"modules/made.go", `patience += 50 \* time\.Millisecond`}}},
	{"docs/RATIONALE.md", "down to every 10 seconds", [][2]string{{"modules/made.go", `longWait += 10 \* time\.Second`}}},
	{"docs/RATIONALE.md", "Verifiers permit 512 bytes in a chain of calls", [][2]string{{"source/ebpf/locals_test.go", `maxLocals += 512`}, {"source/ebpf/locals_test.go", `maxChain += 8`}}},
	{"docs/RATIONALE.md", "a state for machine code has 1,072 bytes", [][2]string{{"runtime/eh_elf_file.h", `sizeof\(struct unspool_state\) == 1072`}}},
	{"docs/GLOSSARY.md", "256 units of text, of 1, 2 or 4 bytes", [][2]string{{"docs/TABLE.md", "the largest of 1, 2 and 4 that divides all addresses"}}},
	{"docs/FINDINGS.md", "compiled in random ways by gcc 11 and 12, clang 14, 19 and 22", [][2]string{{"lab/random/plan_test.go", `"gcc-12", "gcc-12", "gcc-11", "clang-14", "clang-19", "clang-19", "clang-22"}`}}},
	{"docs/WALKING.md", "Every fifth instruction was walked", [][2]string{{"docs/results/walking.json", `"Every": 5,`}}},
	{"docs/RATIONALE.md", "libc takes 0.53 of `.eh_frame`, libstdc++ 0.42",
		[][2]string{{"docs/results/evaluation.md", `Here, all registers(?s:.*?)libc\.so\.6 (\|[^|]*){5}\|[^|]*\(0\.53 ×`}, {"docs/results/evaluation.md", `Here, all registers(?s:.*?)libstdc\+\+\.so\.6 (\|[^|]*){5}\|[^|]*\(0\.42 ×`}}},
}

var (
	fences = regexp.MustCompile("(?s)```.*?```|<!-- make results.*?<!-- the table ends -->|\\]\\([^)]*\\)")
	spaces = regexp.MustCompile(`\s+`)
	figure = regexp.MustCompile(`(?:^|[ (|])\d[\d.,]*`)
)

// TestClaims: each figure in README has a source that still has it, and each claim is still made.
func TestClaims(t *testing.T) {
	text := spaces.ReplaceAllString(fences.ReplaceAllString(contents(t, "README.md"), " "), " ")
	for _, c := range claims {
		claimed(t, "README.md", text, c.text, c.sources)
		text = strings.ReplaceAll(text, c.text, "")
	}
	for _, at := range figure.FindAllStringIndex(text, -1) {
		t.Errorf("README.md has a figure without a source in claims: …%s…", text[max(0, at[0]-40):min(len(text), at[1]+40)])
	}
}

// TestDocumented: each of the documented figures is still in its document, and its sources still have it.
func TestDocumented(t *testing.T) {
	for _, c := range documented {
		claimed(t, c.document, spaces.ReplaceAllString(contents(t, c.document), " "), c.text, c.sources)
	}
}

func contents(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// claimed says whether a document's text has a claim, and the claim's sources still have it.
func claimed(t *testing.T, document, text, claim string, sources [][2]string) {
	t.Helper()
	if !strings.Contains(text, claim) {
		t.Errorf("%s does not claim %q", document, claim)
	}
	for _, s := range sources {
		if !regexp.MustCompile(s[1]).MatchString(contents(t, s[0])) {
			t.Errorf("%s claims %q, but %s has no %s", document, claim, s[0], s[1])
		}
	}
}
