package oracle

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Silent mounts a FUSE file system (linux/fuse.h) that opens its only file and never answers who reads it, and returns the file's path.
func Silent(t testing.TB) string {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		Lacks(t, "/dev/fuse: "+err.Error())
	}
	dir := t.TempDir()
	if err := unix.Mount("silent", dir, "fuse", unix.MS_RDONLY, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)); err != nil {
		unix.Close(dev)
		Lacks(t, "the permission to mount a file system: "+err.Error())
	}
	t.Cleanup(func() {
		unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH) // who waits gets an error
		unix.Close(dev)
	})
	const ( // enum fuse_opcode
		lookup  = 1
		forget  = 2
		getattr = 3
		open    = 14
		read    = 15
		statfs  = 17
		release = 18
		flush   = 25
		start   = 26
	)
	le := binary.LittleEndian
	attr := func(out []byte, node uint64) []byte { // struct fuse_attr: a directory, or a file of 64 KiB
		mode, size := uint32(unix.S_IFDIR|0o755), uint64(0)
		if node != 1 {
			mode, size = unix.S_IFREG|0o755, 64<<10
		}
		out = le.AppendUint64(le.AppendUint64(out, node), size)
		out = append(out, make([]byte, 44)...) // blocks, times
		out = le.AppendUint32(le.AppendUint32(out, mode), 1)
		return append(out, make([]byte, 20)...) // owner, device, size of blocks
	}
	go func() {
		for in := make([]byte, 1<<20); ; {
			n, err := unix.Read(dev, in)
			if err == unix.EINTR || err == unix.EAGAIN {
				continue
			}
			if err != nil || n < 40 {
				return // unmounted
			}
			var out []byte
			failed := int32(0)
			switch node := le.Uint64(in[16:]); le.Uint32(in[4:]) {
			case start: // struct fuse_init_out
				out = le.AppendUint32(le.AppendUint32(nil, 7), 31)
				out = append(append(out, make([]byte, 12)...), 0, 0, 2, 0) // at most 128 KiB are written at once
				out = append(out, make([]byte, 64-len(out))...)
			case lookup: // struct fuse_entry_out
				out = append(le.AppendUint64(nil, 2), make([]byte, 32)...)
				out = attr(out, 2)
			case getattr:
				out = attr(make([]byte, 16), node)
			case open:
				out = make([]byte, 16)
			case statfs:
				out = make([]byte, 80)
			case release, flush:
			case read, forget:
				continue
			default:
				failed = -int32(unix.ENOSYS)
			}
			head := le.AppendUint32(nil, uint32(16+len(out)))
			head = append(le.AppendUint32(head, uint32(failed)), in[8:16]...)
			unix.Write(dev, append(head, out...))
		}
	}()
	return filepath.Join(dir, "file")
}
