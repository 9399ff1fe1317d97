package jit

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Kinds of records in a dump.
const (
	codeLoad          = 0
	codeMove          = 1
	codeDebugInfo     = 2
	codeClose         = 3
	codeUnwindingInfo = 4
)

const (
	dumpMagic  = 0x4a695444 // "JiTD"
	dumpHead   = 40
	recordHead = 16
	maxDebug   = 64 << 20 // a record of lines
	maxUnwind  = 1 << 12  // a record of unwind information: CPython and V8 write less than 200 bytes, and each frame hashes one
	flagArch   = 1        // times are of the processor's own counter
)

var errDump = errors.New("not a jitdump file")

// A dump is being read.
type dump struct {
	m     *Map
	in    *bufio.Reader
	order interface {
		binary.ByteOrder
		binary.AppendByteOrder
	}
	at   int64
	pid  int  // whose it must be; 0: anybody's
	full bool // no more may be held

	byIndex map[uint64]int32  // code_index: its last entry
	files   map[string]uint32 // in m.files
	text    int               // bytes of them

	// Lines come before the code that they are of.
	debugAddr uint64
	debug     []line

	// So does unwind information.
	unwind   []byte
	unwinds  map[string]int32 // in m.unwinds
	codes    map[string]code
	unwindAt int // bytes of them
}

// ReadDump reads a dump. With an error, it returns the functions read before it: while a process runs, or after it was killed, the last
// record is not whole.
func ReadDump(r io.Reader) (*Map, error) { return readDump(r, 0, nil) }

// readDump is ReadDump of process pid, 0 for any; with a charge, the map has unwind information only, and is nil where it would take too much.
func readDump(r io.Reader, pid int, c *Charge) (*Map, error) {
	d := &dump{pid: pid, m: &Map{charge: c}, in: bufio.NewReaderSize(io.LimitReader(r, maxFile), 1<<16), byIndex: map[uint64]int32{}, files: map[string]uint32{}, unwinds: map[string]int32{}, codes: map[string]code{}}
	err := d.read()
	d.m.templates = d.templates()
	if d.full || !d.m.build() {
		c.Release()
		return nil, errHeld
	}
	if err != nil {
		return d.m, fmt.Errorf("+%#x: %w", d.at, err)
	}
	return d.m, nil
}

func (d *dump) read() error {
	var h [dumpHead]byte
	if _, err := io.ReadFull(d.in, h[:]); err != nil {
		return errDump
	}
	switch {
	case binary.LittleEndian.Uint32(h[:]) == dumpMagic:
		d.order = binary.LittleEndian
	case binary.BigEndian.Uint32(h[:]) == dumpMagic:
		d.order = binary.BigEndian
	default:
		return errDump
	}
	size := d.order.Uint32(h[8:])
	if version := d.order.Uint32(h[4:]); version != 1 || size < dumpHead || size > 1<<16 {
		return fmt.Errorf("version %d, header of %d bytes: %w", version, size, errors.ErrUnsupported)
	}
	if pid := d.order.Uint32(h[20:]); d.pid != 0 && pid != uint32(d.pid) {
		return fmt.Errorf("it is of process %d, not of %d, which has gone", pid, d.pid)
	}
	d.m.big, d.m.otherClock = d.order == binary.BigEndian, d.order.Uint64(h[32:])&flagArch != 0
	if err := d.skip(int64(size) - dumpHead); err != nil {
		return err
	}
	d.at = int64(size)
	for {
		if _, err := io.ReadFull(d.in, h[:recordHead]); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		id, size, time := d.order.Uint32(h[:]), int64(d.order.Uint32(h[4:])), d.order.Uint64(h[8:])
		if size < recordHead {
			return fmt.Errorf("record %d of %d bytes", id, size)
		}
		done, err := d.record(id, size-recordHead, time)
		if done || err != nil {
			return err
		}
		d.at += size
	}
}

// record reads a record of size bytes more.
func (d *dump) record(id uint32, size int64, time uint64) (done bool, err error) {
	switch id {
	case codeLoad:
		b, err := d.in.Peek(int(min(size, 40+maxName+1+maxTemplate))) // what follows is the rest of the code
		if err != nil {
			return false, err
		}
		if !d.load(b, time) {
			d.full = d.m.charge != nil
			return true, fmt.Errorf("more than %d functions", len(d.m.entries))
		}
	case codeMove:
		b, err := d.in.Peek(int(min(size, 48)))
		if err != nil {
			return false, err
		}
		if !d.move(b, time) {
			d.full = d.m.charge != nil
			return true, fmt.Errorf("more than %d functions", len(d.m.entries))
		}
	case codeDebugInfo:
		if size > maxDebug || d.m.charge != nil {
			break
		}
		b := make([]byte, 0, min(size, 1<<16))
		buf := bytes.NewBuffer(b)
		n, err := io.CopyN(buf, d.in, size)
		if err != nil {
			return false, err
		}
		d.lines(buf.Bytes())
		size -= n
	case codeUnwindingInfo:
		d.unwind = nil
		if size > maxUnwind {
			break
		}
		b := make([]byte, size)
		n, err := io.ReadFull(d.in, b)
		if err != nil {
			return false, err
		}
		d.unwinding(b)
		size -= int64(n)
	case codeClose:
		return true, nil
	}
	return false, d.skip(size)
}

func (d *dump) skip(n int64) error {
	for n > 0 {
		k, err := d.in.Discard(int(min(n, 1<<30)))
		if n -= int64(k); err != nil {
			return err
		}
	}
	return nil
}

// load reads JIT_CODE_LOAD: process and thread, a virtual address that is not used, address, size, index, name.
func (d *dump) load(b []byte, time uint64) bool {
	if len(b) < 40 {
		return true
	}
	unwind := d.unwind
	d.unwind = nil
	addr, size, index := d.order.Uint64(b[16:]), d.order.Uint64(b[24:]), d.order.Uint64(b[32:])
	name := b[40:]
	var text []byte
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name, text = name[:i], name[i+1:]
	}
	n := len(d.m.entries)
	if !d.m.add(addr, size, time, name) {
		return false
	}
	if len(d.m.entries) == n {
		return true
	}
	d.byIndex[index] = int32(n)
	number := d.intern(unwind, size)
	d.m.entries[n].unwind = number
	if size <= min(maxTemplate, uint64(len(text))) {
		d.observe(text[:size], number)
	}
	if d.debug != nil && d.debugAddr == addr && len(d.m.lines)+len(d.debug) <= maxLines {
		e := &d.m.entries[n]
		e.from = uint32(len(d.m.lines))
		d.m.lines = append(d.m.lines, d.debug...)
		e.to = uint32(len(d.m.lines))
	}
	d.debug = nil
	return true
}

// move reads JIT_CODE_MOVE: process and thread, a virtual address that is not used, old and new address, size, index.
func (d *dump) move(b []byte, time uint64) bool {
	if len(b) < 48 {
		return true
	}
	to, index := d.order.Uint64(b[24:]), d.order.Uint64(b[40:])
	k, ok := d.byIndex[index]
	if !ok {
		return true
	}
	old := d.m.entries[k]
	if size := old.hi - old.lo; to+size < to || to == old.lo {
		return true
	}
	n := len(d.m.entries)
	if !d.m.add(old.lo, old.hi-old.lo, time, nil) || n+2 > maxEntries || !d.m.charge.Take(entryBytes) {
		return false
	}
	moved := old
	moved.lo, moved.hi, moved.time = to, to+(old.hi-old.lo), time
	d.m.entries = append(d.m.entries, moved)
	d.byIndex[index] = int32(n + 1)
	return true
}

// unwinding reads JIT_CODE_UNWINDING_INFO: the size of what follows, that of .eh_frame_hdr in it, how much of it is mapped, then .eh_frame and .eh_frame_hdr.
func (d *dump) unwinding(b []byte) {
	if len(b) < 24 {
		return
	}
	size, hdr := d.order.Uint64(b), d.order.Uint64(b[8:])
	if b = b[24:]; size <= uint64(len(b)) && hdr < size {
		d.unwind = b[:size-hdr]
	}
}

// intern returns the number of unwind information of code of a size, from 1 on; 0 where there is none, or too much.
func (d *dump) intern(eh []byte, size uint64) int32 {
	if len(eh) == 0 {
		return 0
	}
	key := string(d.order.AppendUint64(eh[:len(eh):len(eh)], size))
	n := d.unwinds[key]
	if n == 0 && d.unwindAt+len(eh) <= maxUnwinds {
		if !d.m.charge.Take(int64(len(eh)) + 128) {
			d.full = true
			return 0
		}
		d.m.unwinds = append(d.m.unwinds, unwinding{key[:len(eh)], size})
		n = int32(len(d.m.unwinds))
		d.unwinds[key] = n
		d.unwindAt += len(eh) + 64
	}
	return n
}

// lines reads JIT_CODE_DEBUG_INFO: the address of the code, a number of entries, and in each an address, a line, a discriminator and
// the name of a file, which is "\xff" for the one before.
func (d *dump) lines(b []byte) {
	d.debug = nil
	if len(b) < 16 {
		return
	}
	addr, n := d.order.Uint64(b), d.order.Uint64(b[8:])
	b = b[16:]
	file := uint32(0)
	var out []line
	for ; n > 0 && len(b) >= 17; n-- {
		at, ln := d.order.Uint64(b), d.order.Uint32(b[8:])
		end := bytes.IndexByte(b[16:], 0)
		if end < 0 {
			break
		}
		name := b[16:][:end]
		b = b[16+end+1:]
		if string(name) != "\xff" || len(out) == 0 {
			file = d.file(name)
		}
		if at >= addr {
			out = append(out, line{at - addr, file, ln})
		}
	}
	slices.SortStableFunc(out, func(a, b line) int { return cmp.Compare(a.off, b.off) })
	d.debugAddr, d.debug = addr, out
}

// file returns the number of a file's name.
func (d *dump) file(name []byte) uint32 {
	name = name[:min(len(name), maxName)]
	n, ok := d.files[string(name)]
	if !ok {
		if d.text+len(name) > maxText {
			name = nil
		}
		if len(d.m.files) == 0 || len(name) > 0 {
			n = uint32(len(d.m.files))
			d.m.files = append(d.m.files, string(name))
			d.files[string(name)] = n
			d.text += len(name) + 16
		}
	}
	return n
}
