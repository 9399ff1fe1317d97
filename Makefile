# The commands a developer needs. CONTRIBUTING.md says when.

GO ?= go
FUZZTIME ?= 10s
RECORDINGS ?= recordings

# Tests count what they compile: they do not look at what this machine has compiled for all users.
export UNSPOOL_TABLES =

# All that is compiled names no place (-trimpath): so clones at other places find it in Go's cache, and each target finds what another one,
# or .ci/run, has compiled.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(GOFLAGS))

# Build the program. Without cgo, whose threads would keep the capabilities that a recording gives up. Developers profile it, and annotate its
# source: it names where that is.
unspool: $(shell git ls-files '*.go' '*.s' '*.o' '*.js' '*.css' '*.html' go.mod go.sum)
	CGO_ENABLED=0 $(GO) build -trimpath=false -o unspool ./cmd/unspool

# Manual pages, in man/.
.PHONY: man
man: unspool
	./unspool man man

# The drop-in for libunwind, and its installation for unspool run and LD_LIBRARY_PATH.
.PHONY: runtime install-runtime
runtime:
	$(MAKE) -C runtime
install-runtime:
	$(MAKE) -C runtime install $(if $(PREFIX),PREFIX=$(PREFIX))

# The packages with files for some machines only: the others are the same on each, and make lint vets them for both.
MACHINES = $$({ git grep -lE '^//go:build .*(amd64|arm64)' -- '*.go'; git ls-files '*_amd64.go' '*_arm64.go' '*_amd64_test.go' '*_arm64_test.go'; } | xargs -n1 dirname | sort -u | sed 's,^,./,')

# What a change must pass before anything longer is run: formatting, vet for both machines, and the tests that take neither long nor
# the whole machine (-short). Half a minute on two cores, when what has not changed is in Go's cache: but not what opens files of the clone,
# as targets of fuzzing do.
.PHONY: check
check:
	test -z "$$(gofmt -l . | tee -a /dev/stderr)"
	$(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet $(MACHINES)
	@others="$(others)" && $(GO) run ./internal/testlog $(GO) test -short -skip '^Fuzz' -vet=off $(TESTFLAGS) ./cmd/unspool $$others

# The packages whose tests take long, longest first: the others, which are short, fill the gaps.
LONGEST = lab cmd/unspool runtime/test lab/shapes source/perfevent emit/csource source/perfdata source/ebpf source/tracer shadow lab/random source/live
others = $$($(GO) list $(LONGEST:%=./%) >/dev/null && $(GO) list ./... | \
	grep -vxE "$$($(GO) list -m)/($(subst $() ,|,$(filter-out emit/csource source/perfdata,$(LONGEST))))")

# All tests, as many packages at once as there are processors: a test judges only what it has started. A test whose judge is not installed is
# skipped and names it, and the last line counts what is lacking; UNSPOOL_REQUIRE_JUDGES=1 makes that a failure.
.PHONY: test
test:
	@others="$(others)" && $(GO) run ./internal/testlog $(GO) test -timeout 45m $(TESTFLAGS) $(LONGEST:%=./%) $$others

# What is too long for every commit: longer fuzzing, all benchmarks once, tests that only measure (oracle.Full), all shapes, more instructions
# executed, the corpus. Two hours on two cores.
.PHONY: full
full:
	$(MAKE) fuzz FUZZTIME=30s
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 60m ./...
	UNSPOOL_FULL=1 $(GO) test -count=1 -timeout 2h -run '^(TestArmEhElf|TestArmEhShadow|TestBeside|TestDocker|TestDwPerf|TestEhFigures|TestEhLanguages|TestEhSanitizers|TestEhSuites|TestExecuteMingw|TestHeapFigures|TestImageRuns|TestInsidePerf|TestKilled|TestLlvmFigures|TestParca|TestParcaNames|TestResultsEvaluation|TestScale|TestSideBySide|TestSize|TestSmall|TestSmallMachine|TestSteps|TestSuites|TestSynthetic|TestUnanswered|TestWalkSpeed|TestWine)$$' \
		./agent/containers ./agent/debuginfo ./cmd/unspool ./emit/csource ./format/pe ./internal/release ./lab ./lab/fleet ./lab/vm ./runtime/test ./source/ebpf ./source/minidump
	UNSPOOL_FULL=1 $(GO) test -count=1 -timeout 60m ./format/sframe ./emit/sframe
	UNSPOOL_FULL=1 $(GO) test -count=1 -timeout 60m -run '^TestForeign$$' ./source/corefile
	UNSPOOL_CORPUS=all $(GO) test -count=1 -timeout 60m -run '^TestFiles$$' ./emit/csource
	$(MAKE) shapes
	UNSPOOL_EXECUTION_STEPS=10000000 $(GO) test -count=1 -timeout 4h -run TestExecution -v ./lab
	$(MAKE) corpus

# The agent, for SOAK, beside processes, namespaces and libraries that come and go, and an engine that does not always take profiles.
SOAK ?= 2h
.PHONY: soak
soak:
	UNSPOOL_SOAK=$(SOAK) $(GO) test -count=1 -v -timeout 0 -run '^TestSoak$$' ./cmd/unspool

# What agents send of several programs, and AGENTS of them, each INTERVAL seconds, against one collector. As root, half an hour; docs/FLEET.md has the
# figures. With UNSPOOL_FLEET_REQUESTS=FILE, what was recorded is kept there, and taken from there.
AGENTS ?= 10000
INTERVAL ?= 120
.PHONY: fleet
fleet:
	UNSPOOL_FULL=1 UNSPOOL_REQUIRE_JUDGES=1 UNSPOOL_FLEET_AGENTS=$(AGENTS) UNSPOOL_FLEET_INTERVAL=$(INTERVAL) \
		$(GO) test -count=1 -v -timeout 0 -run '^TestScale$$' ./lab/fleet

# Programs walked in virtual machines with other kernels, which it fetches from Debian: 5.10, 6.1, 6.12 and the newest, for x86-64 and for
# AArch64; cores and recordings of AArch64's 6.12, read here; and 300,000 instructions of AArch64's programs, executed step by step.
.PHONY: vms
vms:
	UNSPOOL_MACHINES=all $(GO) test -count=1 -v -timeout 60m -run '^(TestMachines|TestClock|TestForeign|TestExecution|TestStrict|TestGCS|TestKernels)$$' ./lab/shapes ./cmd/unspool ./lab/vm ./agent/otelctx

# A release of what is committed, in RELEASE: for each machine a tar archive and a Debian package, and their SHA-256 sums. All is built twice, at
# different places, the second time with an empty cache, and must be equal; then dpkg installs the packages in virtual machines of Debian, which
# it fetches, and lab/vm/install_test.go runs what they contain. Takes five minutes on two cores.
RELEASE ?= release
.PHONY: release
release:
	$(GO) run ./internal/release $(RELEASE)
	UNSPOOL_RELEASE=$(abspath $(RELEASE)) UNSPOOL_REQUIRE_JUDGES=1 $(GO) test -count=1 -v -timeout 3h -run '^TestInstall$$' ./lab/vm

# An image for containers, in IMAGE, an OCI archive for linux/amd64 and linux/arm64: podman load -i, or skopeo copy oci-archive:FILE to a registry.
# No daemon and no network take part.
IMAGE ?= unspool.oci.tar
.PHONY: image
image:
	$(GO) run ./internal/release -image $(IMAGE)

# Install every judge on Debian.
.PHONY: judges
judges:
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$(cat .ci/judges)
	npm install --prefix "$${XDG_CACHE_HOME:-$$HOME/.cache}/unspool-judges" --ignore-scripts --no-audit --no-fund $$(cat .ci/npm)

# Formatting, vet for both machines, a build for the other, staticcheck.
.PHONY: lint
lint:
	test -z "$$(gofmt -l . | tee -a /dev/stderr)"
	$(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...
	GOARCH=arm64 CGO_ENABLED=0 $(GO) build ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

# Every fuzz target for FUZZTIME each.
.PHONY: fuzz
fuzz:
	@.ci/fuzz $(FUZZTIME)

# The benchmarks, with the peers in the same run.
.PHONY: bench
bench:
	$(GO) test -run '^$$' -bench . -timeout 60m ./...

# Rows of every ELF executable and shared object of this machine against llvm-dwarfdump, and the compiled tables,
# machine code and C of all of them against the reference. Takes ten minutes on two cores.
.PHONY: corpus
corpus:
	UNSPOOL_CORPUS=all $(GO) test -timeout 4h -run 'Corpus|Judge' -v ./format/dwarf ./emit/compact ./emit/native ./emit/csource
	$(GO) run ./cmd/unspool verify /usr/bin /usr/sbin /usr/lib /usr/libexec

# The same for AArch64: the files of some 560 packages of two suites of Debian, which it fetches, in CORPUS. Takes five minutes on two cores.
CORPUS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/unspool-corpus
.PHONY: corpus-arm64
corpus-arm64: unspool
	lab/corpus.sh arm64 $(CORPUS)/arm64 trixie bash systemd openssh-server perl python3 git gdb strace g++ vim ripgrep restic libc++1 \
		libomp5 postgresql nginx libgtk-4-1 libqt6widgets6
	lab/corpus.sh arm64 $(CORPUS)/arm64 bookworm bash perl python3 curl git openssh-server systemd ffmpeg fd-find fzf libc++1 libomp5
	UNSPOOL_BINARIES=$(CORPUS)/arm64 UNSPOOL_CORPUS=all $(GO) test -count=1 -timeout 4h -run 'JudgeCorpus|^TestCorpus' -v ./format/dwarf ./emit/compact
	./unspool verify $(CORPUS)/arm64

# Recordings of 104,000 samples of a compiler, and others, in RECORDINGS.
$(RECORDINGS):
	lab/record.sh full $(RECORDINGS)

# Measure everything, with the peers in the same run, and write docs/results, and the table of README.md.
# Takes half an hour on two cores that have nothing else to do.
.PHONY: results
results: $(RECORDINGS)
	UNSPOOL_RECORDINGS=$(abspath $(RECORDINGS)) $(GO) test -count=1 -timeout 4h -run '^TestResults' -v ./lab -update
	$(GO) test -count=1 -run '^(TestReadme|TestDocuments)$$' ./lab -update

# The OpenTelemetry profiler and record beside each other on a machine that compiles: what a sample costs in the kernel, and its process. OTEL is the
# path of a built profiler, or its whole command. As root, a minute.
.PHONY: otel
otel:
	@test -n "$(OTEL)" || { echo "make otel lacks OTEL=PATH, a built OpenTelemetry eBPF profiler:" \
		"make agent in github.com/open-telemetry/opentelemetry-ebpf-profiler" >&2; exit 2; }
	UNSPOOL_OTEL="$(abspath $(firstword $(OTEL))) $(wordlist 2,$(words $(OTEL)),$(OTEL))" UNSPOOL_REQUIRE_JUDGES=1 $(GO) test -count=1 -v -run '^TestOtel$$' ./lab

# Programs whose chains of calls are known by construction, compiled in 37 ways and walked live, from cores, from copies, in the kernel
# and by ptrace: every walk is whole and right, or permitted with a reason. Half an hour on two cores.
.PHONY: shapes
shapes:
	UNSPOOL_SHAPES=all UNSPOOL_REQUIRE_JUDGES=1 $(GO) test -count=1 -timeout 4h -v ./lab/shapes

# Execute some forty programs step by step, EXECUTION_STEPS instructions in all, compare at each instruction what the tables recover
# with the truth, and write docs/results/execution.md. A million instructions take half a minute on a core.
EXECUTION_STEPS ?= 100000000
.PHONY: execution
execution:
	UNSPOOL_EXECUTION_STEPS=$(EXECUTION_STEPS) $(GO) test -count=1 -timeout 12h -run TestExecution -v ./lab -update

# Execute RANDOM_PROGRAMS programs made from seeds, from RANDOM_SEED on, step by step: RANDOM_STEPS instructions of each at most, for RANDOM_SECONDS
# at most. Outcomes are in RANDOM_OUTCOMES; a second run goes on where the first has stopped. A hundred million
# instructions, of which two idle cores do sixty thousand a second, compilers included.
# RANDOM_ONE=seed go test -run TestReduce -v ./lab/random makes one of them again, and reduces it; RANDOM_DIR keeps it.
RANDOM_PROGRAMS ?= 1500
RANDOM_SEED ?= 1
RANDOM_STEPS ?= 130000
RANDOM_SECONDS ?= 14400
RANDOM_OUTCOMES ?= random.jsonl
.PHONY: random
random:
	RANDOM_PROGRAMS=$(RANDOM_PROGRAMS) RANDOM_SEED=$(RANDOM_SEED) RANDOM_STEPS=$(RANDOM_STEPS) RANDOM_SECONDS=$(RANDOM_SECONDS) \
		RANDOM_OUTCOMES=$(abspath $(RANDOM_OUTCOMES)) $(GO) test -count=1 -timeout 24h -run '^TestRandomLong$$' -v ./lab/random

# Compare ways to walk stacks on executed programs, WALKING_STEPS instructions of each at most, and what frame pointers cost, by WALKING_ROUNDS rounds.
# Writes docs/results/walking.json, its picture, and the tables of docs/WALKING.md. Half an hour on two cores.
WALKING_STEPS ?= 300000
WALKING_ROUNDS ?= 11
.PHONY: walking
walking:
	UNSPOOL_WALKING=$(WALKING_STEPS) UNSPOOL_WALKING_ROUNDS=$(WALKING_ROUNDS) $(GO) test -count=1 -timeout 4h -run '^TestResults' -v ./lab/random
	$(GO) test -count=1 -run '^TestWalkingDocument$$' ./lab/random -update
