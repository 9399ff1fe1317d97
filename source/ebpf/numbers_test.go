package ebpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/unspool/unspool/source/usdt"
	"github.com/unspool/unspool/unwind"
)

// numbersOf returns the constants that C source defines, as macros and in enumerations, by their names. What refers to anything but numbers and
// constants above it is left out.
func numbersOf(src string) map[string]int64 {
	out := map[string]int64{}
	pkg := types.NewPackage("c", "c")
	define := func(name, value string) {
		value = regexp.MustCompile(`(?i)\b(0x[0-9a-f]+|\d+)u?l{0,2}\b`).ReplaceAllString(value, "$1")
		v, err := types.Eval(token.NewFileSet(), pkg, token.NoPos, value)
		if err != nil || v.Value == nil || v.Value.Kind() != constant.Int {
			return
		}
		pkg.Scope().Insert(types.NewConst(token.NoPos, pkg, name, types.Typ[types.UntypedInt], v.Value))
		if n, ok := constant.Int64Val(v.Value); ok {
			out[name] = n
		}
	}
	src = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(src, "")
	for _, m := range regexp.MustCompile(`(?m)^#define (\w+) (.*)$|\benum \{([^}]*)\}`).FindAllStringSubmatch(src, -1) {
		if m[1] != "" {
			define(m[1], strings.TrimSpace(m[2]))
			continue
		}
		last := "-1"
		for part := range strings.SplitSeq(m[3], ",") {
			name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
			if name = strings.TrimSpace(name); name == "" {
				continue
			}
			if !ok {
				value = last + " + 1"
			}
			define(name, strings.TrimSpace(value))
			last = name
		}
	}
	return out
}

// TestSharedNumbers: the kernel's program and Go agree on what is written in both, constants and sizes of structures.
func TestSharedNumbers(t *testing.T) {
	if got := numbersOf("#define A (1 << 3) /* eight */\n#define B 0x10ull\nenum { C, D = A, /* F, */ E };\n#define F (u32)B\n#define G (A + B)"); fmt.Sprint(got) != "map[A:8 B:16 C:0 D:8 E:9 G:24]" {
		t.Fatalf("numbersOf has %v", got)
	}
	paths, err := filepath.Glob("c/*.[hc]")
	if err != nil || len(paths) < 10 {
		t.Fatalf("C source: %q, %v", paths, err)
	}
	var src strings.Builder
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		src.Write(b)
	}
	got := numbersOf(src.String())
	for name, want := range map[string]int64{
		"SAMPLE_NEW": sampleNew, "SAMPLE_SEEN": sampleSeen, "SAMPLE_STACK": sampleStack, "SAMPLE_COPY": sampleCopy,
		"CUT_BEGIN": cutBegin, "OF_WAKER": ofWaker, "NO_WAKER": noWaker, "OF_WAIT": ofWait, "WEIGHTED": weighted, "FREED": freed, "SIZED": sized,
		"MAX_FRAMES": maxUser - numRegs, "MAX_KERNEL": maxKernel, "HOW_SHIFT": howShift, "HOW_EXACT": howExact >> howShift,
		"MAX_TABLES": maxTables, "MAX_PROBES": maxProbes, "VALUE_BYTES": valueBytes, "NUM_RANGES_BITS": numRangesBits, "RANGES": blockRanges,
		"SIZE_FIRST": sizeFirst, "SIZE_SECOND": sizeSecond, "SIZE_PRODUCT": sizeProduct, "SIZE_OUT": sizeOut, "FREES": frees, "DRAWS": numDraws,
		"IS_CONSTANT": int64(usdt.Constant), "IS_REGISTER": int64(usdt.Register), "IS_MEMORY": int64(usdt.Memory), "NO_REGISTER": noRegister,
		"RING_FULL": ringFull, "NESTED": nested, "FORGOTTEN": forgotten, "COPIED": copied, "TOO_MANY": tooMany, "OUTSIDE": outside, "NUM_COUNTERS": numCounters,
		"RANGE_CODE": int64(Code), "RANGE_TERMINAL": int64(Terminal), "RANGE_PLT": int64(PLT), "RANGE_LAZY": int64(LazyPLT),
		"RANGE_INJECTED": int64(Injected), "RANGE_MOVED": int64(Moved), "RANGE_FORKS": int64(Forks),
		"HOW_START": int64(unwind.HowStart), "HOW_CFI": int64(unwind.HowCFI), "HOW_SIGNAL": int64(unwind.HowSignal), "HOW_PLT": int64(unwind.HowPLT),
		"HOW_FP": int64(unwind.HowFramePointer), "HOW_SIGRETURN": int64(unwind.HowSigReturn), "HOW_CALL": int64(unwind.HowCall),
		"STOP_OUTERMOST": int64(unwind.Outermost), "STOP_NO_INFO": int64(unwind.NoInfo), "STOP_BAD_CFA": int64(unwind.BadCFA),
		"STOP_TRUNCATED": int64(unwind.Truncated), "STOP_BAD_MEMORY": int64(unwind.BadMemory), "STOP_BAD_RETURN": int64(unwind.BadReturn),
		"STOP_DEPTH": int64(unwind.DepthLimit), "STOP_NO_STACK": int64(unwind.NoUserStack),
	} {
		if n, ok := got[name]; !ok || n != want {
			t.Errorf("%s in c/ is %d, %t; Go has %d", name, n, ok, want)
		}
	}

	spec, err := btf.LoadSpecFromReader(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		"sample": sampleSize, "process": processSize, "range": rangeSize, "range_block": blockRanges * rangeSize, "blocked": binary.Size(blocked{}),
		"object": binary.Size(allocation{}), "call": binary.Size(call{}), "place": binary.Size(place{}), "quota": binary.Size(quota{}),
		"argument": binary.Size(argument{}), "arguments": binary.Size(arguments{}),
	} {
		var s *btf.Struct
		if err := spec.TypeByName(name, &s); err != nil || int(s.Size) != want {
			t.Errorf("struct %s of the kernel's program: %+v, %v; want %d bytes", name, s, err, want)
		}
	}
	if numRegs != Machine.Slot(Machine.PC)+1 {
		t.Errorf("a thread has %d registers; the program counter is slot %d", numRegs, Machine.Slot(Machine.PC))
	}
}
