package ptrace

import "golang.org/x/sys/unix"

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
