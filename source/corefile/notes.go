package corefile

import (
	"bytes"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
)

// Types of notes whose name is "CORE" (include/uapi/linux/elf.h).
const (
	ntPRSTATUS = 1
	ntPRPSINFO = 3
	ntAUXV     = 6
	ntFILE     = 0x46494c45
	ntSIGINFO  = 0x53494749
)

// Keys of the auxiliary vector (include/uapi/linux/auxvec.h).
const (
	atPHDR        = 3
	atPHNUM       = 5
	atPAGESZ      = 6
	atBASE        = 7
	atENTRY       = 9
	atEXECFN      = 31
	atSYSINFOEHDR = 33
)

// A fileRange is a mapping of a file.
type fileRange struct {
	lo, hi, off uint64
	path        string
	object      *object // nil: not looked for
	flags       uint32  // of the segment; pfW where that is not known
}

// regsAt is where the registers begin in struct elf_prstatus, and tidAt where the thread's number is.
func (f *File) regsAt() int {
	if f.word == 4 {
		return 72
	}
	return 112
}

func (f *File) tidAt() int {
	if f.word == 4 {
		return 24
	}
	return 32
}

// readNotes reads the notes of a segment, as many as are there.
func (f *File) readNotes(r noteRange) {
	size := uint64(len(f.b))
	b := f.b[min(r.off, size):]
	if r.size < uint64(len(b)) {
		b = b[:r.size]
	}
	align := uint64(4) // of cores, whatever p_align says (System V ABI, chapter 5, "Note Section")
	up := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	first := true
	for n := 0; len(b) > 0; n++ {
		if n >= maxNote {
			f.notes.add("more than %d notes: the rest is not read", maxNote)
			return
		}
		if len(b) < 12 {
			break
		}
		namesz, descsz, typ := uint64(f.u32(b)), uint64(f.u32(b[4:])), f.u32(b[8:])
		desc := up(12 + namesz)
		if end := uint64(len(b)); desc > end || descsz > end-desc {
			break
		}
		owner := string(bytes.TrimRight(b[12:12+namesz], "\x00"))
		for _, o := range owners {
			if strings.HasPrefix(owner, o.prefix) {
				f.system = o.system
			}
		}
		switch d := b[desc : desc+descsz]; owner {
		case "CORE":
			f.note(typ, d, &first)
		case "LINUX": // of the thread before it
			if n := len(f.Threads); n > 0 && typ == uint32(f.Machine.UserRegs.SignSet) {
				f.Threads[n-1].Snapshot.Signs = f.Machine.UserRegs.Signs(d)
			}
		}
		b = b[min(up(desc+descsz), uint64(len(b))):]
	}
	if r.size > size-min(r.off, size) {
		f.cut = true
		f.notes.add("the core is cut off in its notes: threads and files may be missing")
	} else if len(b) > 0 {
		f.notes.add("a note is longer than its segment at %#x: what follows is not read", r.off)
	}
}

// note reads one note. A note that is too short for its type is no note. first is whether no NT_SIGINFO was there yet: that is
// of the first thread.
func (f *File) note(typ uint32, d []byte, first *bool) {
	switch typ {
	case ntPRSTATUS:
		f.prstatus(d)
	case ntPRPSINFO:
		pid := 24
		if f.word == 4 && len(d) < 128 { // users and groups have 16 bits each
			pid = 12
		} else if f.word == 4 {
			pid = 16
		}
		if len(d) >= pid+112 {
			f.PID = int(int32(f.u32(d[pid:])))
			f.Command = strings.Fields(text(d[pid+32 : pid+112]))
			f.comm = text(d[pid+16 : pid+32])
		}
	case ntSIGINFO:
		if *first && len(d) >= 24 {
			*first = false
			f.siginfo(d)
		}
	case ntAUXV:
		for ; len(d) >= 2*f.word && len(f.auxv) < 64; d = d[2*f.word:] {
			f.auxv[f.uword(d)] = f.uword(d[f.word:])
		}
	case ntFILE:
		f.ntFile(d)
	}
}

// text returns the string in a field of fixed size.
func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return strings.ToValidUTF8(string(b), "?")
}

// prstatus adds a thread (struct elf_prstatus). The kernel and gdb put the one that the signal was for first.
func (f *File) prstatus(d []byte) {
	slots := f.Machine.UserRegs.Slots
	at := f.regsAt()
	if len(d) < at+f.word*len(slots) {
		return
	}
	if len(f.Threads) == maxThreads {
		f.notes.add("more than %d threads: the others are left out", maxThreads)
		return
	}
	if len(f.Threads) > maxThreads {
		return
	}
	t := source.Thread{TID: int(int32(f.u32(d[f.tidAt():])))}
	s := &t.Snapshot
	for i, slot := range slots {
		if slot != arch.NoSlot {
			s.Regs[slot] = f.uword(d[at+f.word*i:])
			s.Known |= 1 << slot
		}
	}
	s.PC = s.Regs[pcSlot(f.Machine)]
	if len(f.Threads) == 0 {
		if sig := int(f.order.Uint16(d[12:])); sig != 0 {
			f.Signal = &source.Signal{Number: sig, Code: int(int32(f.u32(d[4:])))}
		}
	}
	f.Threads = append(f.Threads, t)
}

// siginfo reads the signal that ended the process (siginfo_t).
func (f *File) siginfo(d []byte) {
	sig, code, addr := int(int32(f.u32(d))), int(int32(f.u32(d[8:]))), f.uword(d[8+f.word:])
	if f.Machine.ELF == arch.EM_MIPS { // si_errno comes behind si_code
		code = int(int32(f.u32(d[4:])))
	}
	if f.Signal == nil || f.Signal.Number != sig { // gcore writes one for living processes, too
		return
	}
	f.Signal = &source.Signal{Number: sig, Code: code}
	const (
		sigILL, sigTRAP, sigBUS, sigFPE, sigSEGV = 4, 5, 7, 8, 11
		siKERNEL                                 = 0x80 // from the kernel, which does not say where
	)
	switch sig {
	case sigILL, sigTRAP, sigBUS, sigFPE, sigSEGV:
		if code > 0 && code != siKERNEL {
			f.Signal.Addr, f.Signal.HasAddr = addr, true
		}
	}
}

// ntFile reads the mappings of files: how many, the size of a page, ranges with offsets in pages, paths.
func (f *File) ntFile(d []byte) {
	w := f.word
	if len(d) < 2*w || len(f.files) > 0 {
		return
	}
	n, page := f.uword(d), f.uword(d[w:])
	if n > uint64(len(d)-2*w)/uint64(3*w) || n > maxFiles {
		f.notes.add("NT_FILE says that it has %d mappings, for which it is too short: it is not used", n)
		return
	}
	entries, names := d[2*w:2*w+3*w*int(n)], d[2*w+3*w*int(n):]
	room := uint64(len(d)) // for all paths together: they are copied
	last := ""
	for ; len(entries) > 0; entries = entries[3*w:] {
		end := bytes.IndexByte(names, 0)
		if end < 0 || uint64(end) > room {
			f.notes.add("NT_FILE ends within its paths: %d of %d mappings are used", len(f.files), n)
			break
		}
		if string(names[:end]) != last {
			last = string(names[:end])
		}
		room -= uint64(end)
		names = names[end+1:]
		r := fileRange{lo: f.uword(entries), hi: f.uword(entries[w:]), off: f.uword(entries[2*w:]) * page, path: last, flags: pfW}
		if r.lo < r.hi && r.off+(r.hi-r.lo) >= r.off {
			f.files = append(f.files, r)
		}
	}
	f.setFiles(f.files)
}
