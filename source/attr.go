package source

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// An Attr is a struct perf_event_attr: what an event counts and what its samples hold.
type Attr struct {
	Type             uint32 // PERF_TYPE_*
	Config           uint64
	SamplePeriod     uint64 // or the frequency in Hz, with FlagFreq
	SampleType       uint64 // Sample*
	ReadFormat       uint64 // Format*
	Flags            uint64 // Flag*: the bit field, in the order of a little-endian machine
	WakeupEvents     uint32 // or the watermark in bytes, with FlagWatermark
	BPType           uint32
	Config1          uint64 // bp_addr, kprobe_func, uprobe_path
	Config2          uint64 // bp_len, kprobe_addr, probe_offset
	BranchSampleType uint64
	SampleRegsUser   uint64 // set of PERF_REG_* numbers
	SampleStackUser  uint32 // bytes
	ClockID          int32
	SampleRegsIntr   uint64
	AuxWatermark     uint32
	SampleMaxStack   uint16
	AuxSampleSize    uint32
	AuxAction        uint32
	SigData          uint64
	Config3          uint64
	Config4          uint64
}

// Sizes of struct perf_event_attr as published, from Linux 2.6.31 on.
const (
	AttrSizeVer0 = 64
	AttrSizeVer1 = 72
	AttrSizeVer2 = 80
	AttrSizeVer3 = 96
	AttrSizeVer4 = 104
	AttrSizeVer5 = 112
	AttrSizeVer6 = 120
	AttrSizeVer7 = 128
	AttrSizeVer8 = 136
	AttrSizeVer9 = 144

	maxAttrSize = 4096 // what the kernel accepts at most
)

// Event types.
const (
	TypeHardware   = 0
	TypeSoftware   = 1
	TypeTracepoint = 2
	TypeHWCache    = 3
	TypeRaw        = 4
	TypeBreakpoint = 5
)

// What a sample holds (enum perf_event_sample_format).
const (
	SampleIP = 1 << iota
	SampleTID
	SampleTime
	SampleAddr
	SampleRead
	SampleCallchain
	SampleID
	SampleCPU
	SamplePeriod
	SampleStreamID
	SampleRaw
	SampleBranchStack
	SampleRegsUser
	SampleStackUser
	SampleWeight
	SampleDataSrc
	SampleIdentifier
	SampleTransaction
	SampleRegsIntr
	SamplePhysAddr
	SampleAux
	SampleCgroup
	SampleDataPageSize
	SampleCodePageSize
	SampleWeightStruct

	sampleKnown = 1<<25 - 1
)

// What a counter's value is read with (enum perf_event_read_format).
const (
	FormatTotalTimeEnabled = 1 << iota
	FormatTotalTimeRunning
	FormatID
	FormatGroup
	FormatLost
)

// The bit field of struct perf_event_attr.
const (
	FlagDisabled = 1 << iota
	FlagInherit
	FlagPinned
	FlagExclusive
	FlagExcludeUser
	FlagExcludeKernel
	FlagExcludeHV
	FlagExcludeIdle
	FlagMmap
	FlagComm
	FlagFreq
	FlagInheritStat
	FlagEnableOnExec
	FlagTask
	FlagWatermark
	FlagPreciseIP1
	FlagPreciseIP2
	FlagMmapData
	FlagSampleIDAll
	FlagExcludeHost
	FlagExcludeGuest
	FlagExcludeCallchainKernel
	FlagExcludeCallchainUser
	FlagMmap2
	FlagCommExec
	FlagUseClockID
	FlagContextSwitch
	FlagWriteBackward
	FlagNamespaces
	FlagKsymbol
	FlagBPFEvent
	FlagAuxOutput
	FlagCgroup
	FlagTextPoke
	FlagBuildID
	FlagInheritThread
	FlagRemoveOnExec
	FlagSigtrap
	FlagDeferCallchain
	FlagDeferOutput
)

// Bits of BranchSampleType that change the layout of a sample.
const (
	BranchCallStack = 1 << 11 // the branches are the calls that have not returned
	BranchHWIndex   = 1 << 17
	BranchCounters  = 1 << 19
)

// ParseAttr reads a perf_event_attr of any published size. The size is the attr's own size field, or len(b)
// where that is 0; fields that b is too short for are 0, and a longer tail is ignored.
func ParseAttr(b []byte) (Attr, error) {
	if len(b) < AttrSizeVer0 {
		return Attr{}, fmt.Errorf("perf_event_attr: %w: %d bytes", ErrTruncated, len(b))
	}
	n := uint64(binary.LittleEndian.Uint32(b[4:]))
	if n == 0 {
		n = AttrSizeVer0
	}
	if n < AttrSizeVer0 || n > maxAttrSize {
		return Attr{}, fmt.Errorf("perf_event_attr: %w: its size is %d", ErrMalformed, n)
	}
	var full [AttrSizeVer9]byte
	copy(full[:], b[:min(n, uint64(len(b)))])
	u32 := func(off int) uint32 { return binary.LittleEndian.Uint32(full[off:]) }
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(full[off:]) }
	return Attr{
		Type: u32(0), Config: u64(8), SamplePeriod: u64(16), SampleType: u64(24), ReadFormat: u64(32),
		Flags: u64(40), WakeupEvents: u32(48), BPType: u32(52), Config1: u64(56), Config2: u64(64),
		BranchSampleType: u64(72), SampleRegsUser: u64(80), SampleStackUser: u32(88), ClockID: int32(u32(92)),
		SampleRegsIntr: u64(96), AuxWatermark: u32(104), SampleMaxStack: uint16(u32(108)), AuxSampleSize: u32(112),
		AuxAction: u32(116), SigData: u64(120), Config3: u64(128), Config4: u64(136),
	}, nil
}

// Size returns the smallest published size from AttrSizeVer5 on that holds all of a: perf refuses files with attrs that
// are longer than those it knows.
func (a *Attr) Size() int {
	switch {
	case a.Config4 != 0:
		return AttrSizeVer9
	case a.Config3 != 0:
		return AttrSizeVer8
	case a.SigData != 0:
		return AttrSizeVer7
	case a.AuxSampleSize != 0 || a.AuxAction != 0:
		return AttrSizeVer6
	}
	return AttrSizeVer5
}

// Append appends a as the kernel and perf read it, a.Size() bytes long.
func (a *Attr) Append(b []byte) []byte { return a.AppendSize(b, a.Size()) }

// AppendSize appends a in n bytes, n a published size of at least a.Size().
func (a *Attr) AppendSize(b []byte, n int) []byte {
	start := len(b)
	u32 := func(v uint32) { b = binary.LittleEndian.AppendUint32(b, v) }
	u64 := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	u32(a.Type)
	u32(uint32(n))
	u64(a.Config)
	u64(a.SamplePeriod)
	u64(a.SampleType)
	u64(a.ReadFormat)
	u64(a.Flags)
	u32(a.WakeupEvents)
	u32(a.BPType)
	u64(a.Config1)
	u64(a.Config2)
	u64(a.BranchSampleType)
	u64(a.SampleRegsUser)
	u32(a.SampleStackUser)
	u32(uint32(a.ClockID))
	u64(a.SampleRegsIntr)
	u32(a.AuxWatermark)
	u32(uint32(a.SampleMaxStack))
	u32(a.AuxSampleSize)
	u32(a.AuxAction)
	u64(a.SigData)
	u64(a.Config3)
	u64(a.Config4)
	return b[:start+n]
}

// Has says whether all bits of flags are set in a.Flags.
func (a *Attr) Has(flags uint64) bool { return a.Flags&flags == flags }

// The causes of an error in a record, an attr or a file.
var (
	ErrTruncated         = errors.New("truncated")
	ErrMalformed         = errors.New("malformed")
	ErrUnsupported error = unsupported{}
)

var (
	hardwareNames = [...]string{"cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses",
		"bus-cycles", "stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles"}
	softwareNames = [...]string{"cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults",
		"major-faults", "alignment-faults", "emulation-faults", "dummy", "bpf-output", "cgroup-switches"}
)

// Name returns a's name in perf's spelling, for a recording without names. The modifiers u and k are added if only one of the two is counted.
func (a *Attr) Name() string {
	var s string
	switch {
	case a.Type == TypeHardware && a.Config < uint64(len(hardwareNames)):
		s = hardwareNames[a.Config]
	case a.Type == TypeSoftware && a.Config < uint64(len(softwareNames)):
		s = softwareNames[a.Config]
	case a.Type == TypeTracepoint:
		return fmt.Sprintf("tracepoint:%d", a.Config)
	case a.Type == TypeRaw:
		s = fmt.Sprintf("r%x", a.Config)
	default:
		s = fmt.Sprintf("type-%d:%#x", a.Type, a.Config)
	}
	switch {
	case a.Has(FlagExcludeKernel) && !a.Has(FlagExcludeUser):
		s += ":u"
	case a.Has(FlagExcludeUser) && !a.Has(FlagExcludeKernel):
		s += ":k"
	}
	return s
}

// unsupported is errors.ErrUnsupported in fewer words.
type unsupported struct{}

func (unsupported) Error() string        { return "unsupported" }
func (unsupported) Is(target error) bool { return target == errors.ErrUnsupported }
