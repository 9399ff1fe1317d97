package source

import (
	"encoding/binary"
	"fmt"
)

// Types of records that the kernel writes (enum perf_event_type).
const (
	RecordMmap              = 1
	RecordLost              = 2
	RecordComm              = 3
	RecordExit              = 4
	RecordThrottle          = 5
	RecordUnthrottle        = 6
	RecordFork              = 7
	RecordRead              = 8
	RecordSample            = 9
	RecordMmap2             = 10
	RecordAux               = 11
	RecordItraceStart       = 12
	RecordLostSamples       = 13
	RecordSwitch            = 14
	RecordSwitchCPUWide     = 15
	RecordNamespaces        = 16
	RecordKsymbol           = 17
	RecordBPFEvent          = 18
	RecordCgroup            = 19
	RecordTextPoke          = 20
	RecordAuxOutputHWID     = 21
	RecordCallchainDeferred = 22

	// RecordUser is the first type that recorders, not the kernel, define.
	RecordUser = 64
	// RecordFinishedRound says that all buffers have been read once: see Run.
	RecordFinishedRound = 68
)

// Bits of Record.Misc.
const (
	MiscCPUModeMask = 7
	MiscKernel      = 1
	MiscUser        = 2
	MiscHypervisor  = 3
	MiscGuestKernel = 4
	MiscGuestUser   = 5

	MiscCutBegin    = 1 << 8  // a sample of ours of a wait: it had begun before the recording
	MiscCutEnd      = 1 << 9  // it had not ended when the recording did
	MiscWaker       = 1 << 10 // one of our samples: the thread that ended the following wait: see Waker
	MiscNoWaker     = 1 << 11 // who ended it is not known, and was asked for
	MiscWeighted    = 1 << 12 // one of our samples of a wait: it counts for shorter ones, too, and its period is no length
	MiscFreed       = 1 << 13 // one of our samples: an allocation was freed
	MiscSized       = 1 << 14 // one of our samples of an allocation: its period is the bytes that it stands for, and IP its own
	MiscAgain       = 1 << 11 // COMM, FORK, MMAP2 of ours: read from /proc after records were lost: see World
	MiscMmapData    = 1 << 13 // MMAP: not executable
	MiscCommExec    = 1 << 13 // COMM: by execve
	MiscForkExec    = 1 << 13 // FORK, as perf writes it: do not copy the parent's mappings
	MiscLostBPF     = 1 << 15 // LOST_SAMPLES, as perf writes it: a BPF program's
	MiscMmapBuildID = 1 << 14 // MMAP2: a build ID stands in place of device and inode
)

// Values of Record.SymbolType (enum perf_record_ksymbol_type), and a bit of SymbolFlags.
const (
	SymbolBPF        = 1 // a program that the kernel compiled, or a trampoline of one
	SymbolOutOfLine  = 2 // copied instructions: of ftrace, of kprobes
	SymbolUnregister = 1 // the code goes
)

// Context markers in a callchain (enum perf_callchain_context): values from ContextMax up are markers.
const (
	ContextHV           = ^uint64(32 - 1)
	ContextKernel       = ^uint64(128 - 1)
	ContextUser         = ^uint64(512 - 1)
	ContextUserDeferred = ^uint64(640 - 1) // followed by a cookie
	ContextGuest        = ^uint64(2048 - 1)
	ContextGuestKernel  = ^uint64(2176 - 1)
	ContextGuestUser    = ^uint64(2560 - 1)
	ContextMax          = ^uint64(4095 - 1)
)

// Values of Record.UserABI and IntrABI.
const (
	ABINone = 0
	ABI32   = 1
	ABI64   = 2
)

// PROT_EXEC of mmap(2), as in Record.Prot.
const ProtExec = 4

// A Words is a run of little-endian 64-bit words in a record.
type Words []byte

// Len returns the number of words.
func (w Words) Len() int { return len(w) / 8 }

// At returns word i, which must exist.
func (w Words) At(i int) uint64 { return binary.LittleEndian.Uint64(w[8*i:]) }

// A Record is one decoded record. Byte slices and Words lie in the memory of the raw record. Fields that the
// record does not have are 0.
type Record struct {
	Raw   []byte // the whole record, header and trailer included
	Type  uint32
	Misc  uint16
	Event int // index of the event in the Decoder; -1 where it cannot be told

	// What a sample and, with FlagSampleIDAll, every other record of the kernel says of itself.
	PID, TID     int32
	Time         uint64 // ns of the event's clock
	HasTime      bool
	CPU          uint32
	ID, StreamID uint64
	Trailer      int // bytes at the end of Raw that hold the above, other than in samples

	// SAMPLE.
	IP, Addr, Period uint64
	Read             []byte // as Attr.ReadFormat says
	Callchain        Words  // with context markers
	Tracepoint       []byte // PERF_SAMPLE_RAW, padding included
	BranchHWIndex    uint64
	Branches         Words // from, to, flags
	BranchCounters   Words
	UserABI          uint64
	UserRegsMask     uint64
	UserRegs         Words // in the order of the mask's bits
	Stack            []byte
	StackDyn         uint64 // how much of Stack was captured: the rest is garbage
	Weight           uint64
	DataSrc          uint64
	Transaction      uint64
	IntrABI          uint64
	IntrRegs         Words
	PhysAddr         uint64
	Cgroup           uint64
	DataPageSize     uint64
	CodePageSize     uint64
	Aux              []byte

	// MMAP, MMAP2: PID and TID, and Addr where it starts.
	Len, Pgoff      uint64
	Maj, Min        uint32
	Inode, InodeGen uint64
	BuildID         []byte // raw bytes; nil if the record has none
	Prot, MapFlags  uint32
	Filename        []byte

	// COMM: PID, TID.
	Comm []byte

	// KSYMBOL: code of the kernel that comes or goes. Addr where it starts, and Len.
	Symbol                  []byte
	SymbolType, SymbolFlags uint16

	// FORK, EXIT: PID and TID of the child or of who exits, and of the parent.
	PPID, PTID int32

	// LOST, LOST_SAMPLES: how many records. AUX: its size.
	Lost uint64

	// CALLCHAIN_DEFERRED: also Callchain, without markers.
	Cookie uint64
}

// Exec says whether a COMM record reports an execve.
func (r *Record) Exec() bool { return r.Type == RecordComm && r.Misc&MiscCommExec != 0 }

// CPUMode returns where the CPU was: MiscKernel, MiscUser, …
func (r *Record) CPUMode() uint16 { return r.Misc & MiscCPUModeMask }

// Executable says whether an MMAP or MMAP2 record maps code.
func (r *Record) Executable() bool {
	if r.Type == RecordMmap2 {
		return r.Prot&ProtExec != 0
	}
	return r.Misc&MiscMmapData == 0
}

var errShort = fmt.Errorf("%w: a field reaches beyond the record", ErrMalformed)
