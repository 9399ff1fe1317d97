package ptrace

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A Piece is memory of another process.
type Piece struct {
	Addr  uint64
	Bytes []byte // to be filled
}

// maxPieces is how many process_vm_readv(2) takes (IOV_MAX).
const maxPieces = 1024

// Read fills pieces with memory of a process, in as few calls as possible. A piece that cannot be read to its end is cut. The
// error says why nothing of the process can be read.
func Read(pid int, pieces []Piece) error {
	local := make([]unix.Iovec, 0, min(len(pieces), maxPieces))
	remote := make([]unix.RemoteIovec, 0, cap(local))
	for i := 0; i < len(pieces); {
		local, remote = local[:0], remote[:0]
		j := i
		for ; j < len(pieces) && len(local) < maxPieces; j++ {
			p := &pieces[j]
			if len(p.Bytes) == 0 {
				continue
			}
			v := unix.Iovec{Base: &p.Bytes[0]}
			v.SetLen(len(p.Bytes))
			local = append(local, v)
			remote = append(remote, unix.RemoteIovec{Base: uintptr(p.Addr), Len: len(p.Bytes)})
		}
		if len(local) == 0 {
			return nil
		}
		n, err := unix.ProcessVMReadv(pid, local, remote, 0)
		if err != nil && err != unix.EFAULT {
			return err
		}
		// What follows the first byte that cannot be read is another call's.
		n = max(n, 0)
		for ; i < j; i++ {
			p := &pieces[i]
			if n < len(p.Bytes) {
				p.Bytes = p.Bytes[:n]
				i++
				break
			}
			n -= len(p.Bytes)
		}
	}
	return nil
}

// Lowest returns where to read the stack [lo, hi) that a thread began with and does not run on now: from below the lowest address in it that
// a register or a word of the stack at hand holds, one of which says where that stack goes on.
func Lowest(r *Registers, stack []byte, lo, hi uint64) uint64 {
	least := hi
	for slot, v := range r.Regs {
		if r.Known>>slot&1 != 0 && v >= lo && v < least {
			least = v
		}
	}
	for b := stack[:len(stack)&^7]; len(b) > 0; b = b[8:] {
		if v := binary.LittleEndian.Uint64(b); v >= lo && v < least {
			least = v
		}
	}
	return max(lo, (least-min(least, Machine.RedZone))&^7)
}
