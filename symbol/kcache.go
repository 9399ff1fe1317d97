package symbol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"

	"github.com/unspool/unspool/internal/kept"
)

// To read /proc/kallsyms takes a tenth of a second, most of it the kernel's, and what it says of the kernel proper stays
// the same until the next boot. So that part is kept in a file: what it has no name for, in modules and in programs that
// the kernel compiled, is asked of /proc/kallsyms as before.
//
// The file is a magic number, the CRC-32C of what follows, the boot's ID, the numbers of functions and of bytes of names,
// kernel.bounds, the functions, 24 bytes each, and the names; all little-endian.

const (
	keptName  = "kernel-symbols"
	keptMagic = "unspkrn1"
	keptHead  = 8 + 4 + 36 + 4 + 4 + 3*8
	keptFunc  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// keptDir is where names are kept; "" where they are not those of the kernel that runs.
func (o *Options) keptDir() string {
	if o.Kallsyms != runningKallsyms {
		return ""
	}
	return o.CacheDir
}

// bootID is the running kernel's boot, or "".
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if b = bytes.TrimSpace(b); err != nil || len(b) != 36 {
		return ""
	}
	return string(b)
}

// encode returns a file with the functions of the kernel proper.
func (k *kernel) encode(boot string) []byte {
	le := binary.LittleEndian
	var funcs kfuncs
	var names []byte
	for i := range k.funcs.len() {
		f := k.funcs.at(i)
		if f.mod != 0 || f.start < k.bounds.stext || f.start >= k.bounds.etext {
			continue
		}
		name := k.names[f.name:][:f.len]
		f.name = uint32(len(names))
		funcs, names = funcs.add(&f), append(names, name...)
	}
	b := append([]byte(keptMagic), 0, 0, 0, 0)
	b = le.AppendUint32(le.AppendUint32(append(b, boot...), uint32(funcs.len())), uint32(len(names)))
	for _, v := range []uint64{k.bounds.text, k.bounds.stext, k.bounds.etext} {
		b = le.AppendUint64(b, v)
	}
	return seal(append(append(b, funcs...), names...))
}

// seal puts in the checksum.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[12:], castagnoli))
	return b
}

var errKept = errors.New("damaged, or of another boot")

// decode makes k what encode wrote; b must not change afterwards.
func (k *kernel) decode(b []byte, boot string) error {
	le := binary.LittleEndian
	if len(b) < keptHead || string(b[:8]) != keptMagic || string(b[12:48]) != boot || crc32.Checksum(b[12:], castagnoli) != le.Uint32(b[8:]) {
		return errKept
	}
	n, size := uint64(le.Uint32(b[48:])), uint64(le.Uint32(b[52:]))
	if uint64(len(b)) != keptHead+n*keptFunc+size {
		return errKept
	}
	k.bounds = bounds{le.Uint64(b[56:]), le.Uint64(b[64:]), le.Uint64(b[72:])}
	k.mods = []string{KernelModule}
	funcs, names := kfuncs(b[keptHead:][:n*keptFunc]), b[keptHead+n*keptFunc:]
	last := uint64(0)
	for i := range funcs.len() {
		f := funcs.at(i)
		if f.start < last || uint64(f.name)+uint64(f.len) > size || f.mod != 0 {
			return errKept
		}
		last = f.start
	}
	k.funcs, k.names = funcs, names
	return nil
}

// loadKept maps the file, for as long as k is in use. Whatever is wrong with it, the kernel can be asked.
func (k *kernel) loadKept(dir string) error {
	boot := bootID()
	if dir == "" || boot == "" {
		return errKept
	}
	b, unmap, err := kept.Map(filepath.Join(dir, keptName), maxKallsyms)
	if err != nil {
		return err
	}
	runtime.AddCleanup(k, func(unmap func()) { unmap() }, unmap)
	return k.decode(b, boot)
}

// keep writes the file, if it can.
func (k *kernel) keep(dir string) {
	boot := bootID()
	if dir == "" || boot == "" || k.bounds.stext >= k.bounds.etext {
		return
	}
	kept.Write(filepath.Join(dir, keptName), k.encode(boot))
}
