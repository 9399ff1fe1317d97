package symbol

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/unspool/unspool/internal/kept"
)

// To read /proc/kallsyms takes 20 ms of the kernel's time and more of ours, so its functions are kept in a file. What the file says of the
// kernel proper holds until the next boot. Modules come and go: of them, the file knows all that were there when it was written. What is not in
// the file then came later, and is in no recording that was finished before. Code that the kernel makes (see made) is not in the file: other
// code soon lies at its addresses.
//
// The file is a magic number, the CRC-32C of what follows, the boot's ID, the numbers of functions, of bytes of names and of bytes of
// modules, 4 bytes that are 0, the time when /proc/kallsyms was opened, in ns since 1970, kernel.bounds, the functions, 24 bytes each, the
// names, and the modules, a zero after each; all little-endian.

const (
	keptName  = "kernel-symbols"
	keptMagic = "unspkrn3"
	keptHead  = 8 + 4 + 36 + 4 + 4 + 4 + 4 + 8 + 3*8
	keptFunc  = 24

	// clockStep is more than the time of a file's last change can be behind the time of day: a tick of the slowest clock, 10 ms, tenfold.
	clockStep = 100 * time.Millisecond
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

// part returns the functions of some of k's modules.
func (k *kernel) part(of func(mod string) bool) *kernel {
	keep := &kernel{mods: k.mods[:1:1], bounds: k.bounds, asOf: k.asOf}
	to := make([]uint16, len(k.mods))
	for i, m := range k.mods[1:] {
		if of(m) {
			to[i+1] = uint16(len(keep.mods))
			keep.mods = append(keep.mods, m)
		}
	}
	if of(KernelModule) { // most of them
		keep.funcs, keep.names = make(kfuncs, 0, len(k.funcs)), make([]byte, 0, len(k.names))
	}
	for i := range k.funcs.len() {
		f := k.funcs.at(i)
		if !of(k.mods[f.mod]) {
			continue
		}
		name := k.names[f.name:][:f.len]
		f.name, f.mod = uint32(len(keep.names)), to[f.mod]
		keep.names = append(keep.names, name...)
		keep.funcs = keep.funcs.add(&f)
	}
	return keep
}

// encode returns the parts of a file with all functions.
func (k *kernel) encode(boot string) [][]byte {
	le := binary.LittleEndian
	var mods []byte
	for _, m := range k.mods[1:] {
		mods = append(append(mods, m...), 0)
	}
	head := make([]byte, 0, keptHead)
	head = append(append(append(head, keptMagic...), 0, 0, 0, 0), boot...)
	for _, n := range []int{k.funcs.len(), len(k.names), len(mods), 0} {
		head = le.AppendUint32(head, uint32(n))
	}
	for _, v := range []uint64{uint64(k.asOf.UnixNano()), k.bounds.text, k.bounds.stext, k.bounds.etext} {
		head = le.AppendUint64(head, v)
	}
	parts := [][]byte{head, k.funcs, k.names, mods}
	seal(parts...)
	return parts
}

// seal puts the checksum of all parts into the first, which has the head.
func seal(parts ...[]byte) {
	sum := crc32.Checksum(parts[0][12:], castagnoli)
	for _, b := range parts[1:] {
		sum = crc32.Update(sum, castagnoli, b)
	}
	binary.LittleEndian.PutUint32(parts[0][8:], sum)
}

var errKept = errors.New("damaged, or of another boot")

// decode makes k what encode wrote; b must not change afterwards. Of the functions it checks the sum only: at lookup, each is checked.
func (k *kernel) decode(b []byte, boot string) error {
	le := binary.LittleEndian
	if len(b) < keptHead || string(b[:8]) != keptMagic || string(b[12:48]) != boot || crc32.Checksum(b[12:], castagnoli) != le.Uint32(b[8:]) {
		return errKept
	}
	n, size, mods := uint64(le.Uint32(b[48:])), uint64(le.Uint32(b[52:])), uint64(le.Uint32(b[56:]))
	if uint64(len(b)) != keptHead+n*keptFunc+size+mods {
		return errKept
	}
	k.asOf = time.Unix(0, int64(le.Uint64(b[64:])))
	k.bounds = bounds{le.Uint64(b[72:]), le.Uint64(b[80:]), le.Uint64(b[88:])}
	k.mods = []string{KernelModule}
	for m := range bytes.Lines(bytes.ReplaceAll(b[uint64(len(b))-mods:], []byte{0}, []byte{'\n'})) {
		k.mods = append(k.mods, string(m[:len(m)-1]))
	}
	funcs, names := kfuncs(b[keptHead:][:n*keptFunc]), b[keptHead+n*keptFunc:][:size]
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

// keep writes the file, if it can and the file does not say the same already, or is to be newer. Then k uses the file, and keeps in memory only the code that the kernel
// has made: 7 MB less.
func (k *kernel) keep(dir string, newer bool) {
	boot := bootID()
	if dir == "" || boot == "" || k.bounds.stext >= k.bounds.etext {
		return
	}
	lasting := k.part(func(mod string) bool { return !made(mod) })
	file := &kernel{}
	if newer || file.loadKept(dir) != nil || !file.same(lasting) {
		kept.Write(filepath.Join(dir, keptName), lasting.encode(boot)...)
		if file = (&kernel{}); file.loadKept(dir) != nil || !file.same(lasting) {
			return
		}
	}
	file.bias = k.bias
	rest := k.part(made)
	k.funcs, k.names, k.mods, k.under = rest.funcs, rest.names, rest.mods, file
}

// same says whether two have the same functions.
func (k *kernel) same(o *kernel) bool {
	return bytes.Equal(k.funcs, o.funcs) && bytes.Equal(k.names, o.names) && slices.Equal(k.mods, o.mods)
}
