package pe

import (
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// maxEpilogue bounds the instructions of an epilogue: there are 16 registers to pop.
const maxEpilogue = 32

// A step is an instruction of an epilogue.
type step struct {
	at  uint32
	do  epilogue
	reg arch.Reg // that is popped, or that the stack pointer is set from
	n   int64    // bytes
}

// An epilogue is what one of its instructions does.
type epilogue uint8

const (
	other  epilogue = iota // no instruction of an epilogue
	add                    // add $n,%rsp
	lea                    // lea n(%reg),%rsp
	pop                    // pop %reg
	leave                  // ret, or a jump out of the function
	branch                 // jmp to n, which may be in the function
	pass                   // vzeroupper
)

// classify reads the instruction at an address of which b are the bytes. These are all that an epilogue may have ("x64 prolog and epilog"), and
// what Windows looks for: add or lea, any number of pops, and ret, rep ret, a direct jump, jmp *disp(%rip), or an indirect one with REX.W,
// which compilers put there to mark a tail call. LLVM puts vzeroupper in front of the return: Windows does not know it in epilogues, and
// loses its way there.
func classify(b img32, at uint32, frame uint8) step {
	s := step{at: at}
	n := len(b)
	sext8 := func(i int) int64 { return int64(int8(b[i])) }
	sext32 := func(i int) int64 { return int64(int32(b.at(i))) }
	switch c := b[0]; {
	case c&0xf8 == 0x58:
		s.do, s.reg = pop, amd64Regs[c&7]
	case c == 0xc3, c == 0xc2, c == 0xf3 && n > 1 && b[1] == 0xc3:
		s.do = leave
	case c == 0xeb && n >= 2:
		s.do, s.n = branch, int64(at)+2+sext8(1)
	case c == 0xe9 && n >= 5:
		s.do, s.n = branch, int64(at)+5+sext32(1)
	case c == 0xff && n > 1 && b[1] == 0x25:
		s.do = leave
	case c == 0xc5 && n > 2 && b[1] == 0xf8 && b[2] == 0x77:
		s.do = pass
	case c&0xf0 != 0x40 || n < 2:
	case b[1]&0xf8 == 0x58:
		s.do, s.reg = pop, amd64Regs[b[1]&7|c&1<<3]
	case c&0xf8 == 0x48 && n >= 3 && b[1] == 0xff && b[2]&0x38 == 0x20:
		s.do = leave
	case c == 0x48 && n >= 4 && b[1] == 0x83 && b[2] == 0xc4:
		s.do, s.n = add, sext8(3)
	case c == 0x48 && n >= 7 && b[1] == 0x81 && b[2] == 0xc4:
		s.do, s.n = add, sext32(3)
	case c&0xfe == 0x48 && n >= 4 && b[1] == 0x8d && frame != 0 && b[2]&7|c&1<<3 == frame:
		switch s.reg = amd64Regs[frame]; {
		case b[2]&0xf8 == 0x60 && b[2]&7 != 4:
			s.do, s.n = lea, sext8(3)
		case b[2]&0xf8 == 0xa0 && b[2]&7 != 4 && n >= 7:
			s.do, s.n = lea, sext32(3)
		}
	}
	return s
}

// epilogs finds the rows of a function's epilogues. Some compilers put epilogues between the instructions of a prologue, too.
func (a *amd64) epilogs(x *amd64Info, begin, end uint32, tail []amd64Code) error {
	code := a.code.tail(begin)
	if uint64(len(code)) > uint64(end-begin) {
		code = code[:end-begin]
	}
	if x.version == 2 {
		return a.listed(x, begin, end, code, tail)
	}
	if len(a.codes) == 0 && x.flags&UNW_FLAG_CHAININFO == 0 {
		return nil // nothing to undo: all is as in an epilogue
	}
	a.seq = a.seq[:0]
	for at := uint32(0); at < uint32(len(code)); {
		b := code[at:]
		s := classify(img32(b), begin+at, x.frame)
		switch n := length(b); {
		case s.do == add, s.do == lea:
			a.seq = append(a.seq[:0], s)
			at += uint32(n)
		case s.do == pop, s.do == pass && len(a.seq) > 0:
			if len(a.seq) == maxEpilogue {
				a.seq = append(a.seq[:0], a.seq[1:]...)
			}
			a.seq = append(a.seq, s)
			at += uint32(n)
		case s.do == leave, s.do == branch:
			a.seq = append(a.seq, s)
			at += uint32(max(n, 1))
			if s.do == leave || a.leaves(x, begin, end, s.n) {
				a.simulate(begin + at)
			}
			a.seq = a.seq[:0]
		default:
			a.seq = a.seq[:0]
			at += uint32(max(n, 1))
		}
	}
	return nil
}

// leaves says whether a jump to an address leaves the function: to the beginning of another one, or of its own, which is a call of itself, or to
// code without an entry. GCC gives the rarely executed part of a function an entry that is not chained, but has all the codes at its first
// instruction: jumps between such parts keep the frame. Windows takes them for ends of epilogues, and loses its way.
func (a *amd64) leaves(x *amd64Info, begin, end uint32, to int64) bool {
	if to >= int64(begin) && to < int64(end) {
		return x.flags&UNW_FLAG_CHAININFO == 0 && to == int64(begin)
	}
	if to < 0 {
		return true
	}
	if a.info.work < 0 {
		return true // rows says so
	}
	a.info.work -= readCost
	there := a.t.find(uint64(to))
	if there == nil {
		return true
	}
	theirs, err := a.t.primary(a.info, *there)
	if err != nil {
		a.info.work -= wrongCost
	}
	return err != nil || to == int64(theirs) && !a.framed(*there)
}

// framed says whether a function, or a part of one, has a frame at its first instruction.
func (a *amd64) framed(e entry) bool {
	e, err := a.t.resolve(a.info, e)
	if err != nil {
		return false
	}
	x, err := a.t.readInfo(a.info, e.data)
	a.info.work -= int64(len(x.codes) / 2)
	for i := 0; err == nil && 2*i < len(x.codes); {
		var c amd64Code
		if c, i, err = x.code(a.t, i); err == nil && c.off == 0 && c.op != UWOP_EPILOG {
			return true
		}
	}
	return false
}

// listed adds the rows of the epilogues that version 2 lists. They have the pops and what leaves the function, and nothing else.
func (a *amd64) listed(x *amd64Info, begin, end uint32, code []byte, tail []amd64Code) error {
	if len(tail) == 0 {
		return nil
	}
	size := uint32(tail[0].off)
	var starts []uint32
	if tail[0].info&1 != 0 {
		starts = append(starts, size)
	}
	for _, c := range tail[1:] {
		if c.n != 0 {
			starts = append(starts, uint32(c.n))
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	slices.Reverse(starts) // they are distances from the end
	for _, back := range starts {
		if back > end-begin || size > back || size == 0 {
			return a.t.wrong(x.at, ErrMalformed, "an epilogue of %d bytes, %d before the end of a function of %d", size, back, end-begin)
		}
		at := end - back
		a.seq = a.seq[:0]
		for stop := at + size; at < stop && uint64(at-begin) < uint64(len(code)); {
			b := code[at-begin:]
			s := classify(img32(b), at, 0)
			n := uint32(length(b))
			if s.do == other || n == 0 || len(a.seq) == maxEpilogue {
				a.seq = a.seq[:0]
				break
			}
			a.seq = append(a.seq, s)
			at += n
			if s.do == leave || s.do == branch {
				a.simulate(at)
				break
			}
		}
	}
	return nil
}

// simulate adds the rows of an epilogue that ends at an address: of each instruction, what is left to do from there on.
func (a *amd64) simulate(behind uint32) {
	for i, s := range a.seq {
		f := frame{sp: place{rsp, 0}}
		for _, s := range a.seq[i:] {
			switch s.do {
			case add:
				f.sp.off += s.n
			case lea:
				f.sp = place{s.reg, s.n}
			case pop:
				if s.reg != rsp && !slices.Contains(lost, s.reg) { // else it only moves the stack pointer
					f.save(s.reg, f.sp)
				}
				f.sp.off += 8
			}
		}
		set := f.set(a.rules[:0])
		a.rules = set.Rules
		a.ends = append(a.ends, rows.Row{Lo: a.t.base + arch.Vaddr(s.at), Set: a.b.Intern(set)})
	}
	a.ends = append(a.ends, rows.Row{Lo: a.t.base + arch.Vaddr(behind), Set: resume})
}
