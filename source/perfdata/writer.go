package perfdata

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// WriterOptions describe the contents of a Writer's file besides samples.
type WriterOptions struct {
	Events []source.Event // of the recording whose samples will be written
	Info   Info           // what the file says of the recording: that of a File, or Host

	// BuildID, if not nil, gives the hex build IDs of mapped files whose MMAP records have none. It is asked
	// once for each, by Close.
	BuildID func(path string) string

	// Room leaves room for names, which become known when the file is whole: see Writer.Room. A stream has none.
	Room bool
}

// A Writer writes perf.data with walked stacks: a file where it can seek, or else the format of streams, as perf
// record -o - does. The file is readable, without what Close adds, at any time. A Writer is for one goroutine.
type Writer struct {
	opts   WriterOptions
	w      *bufio.Writer
	room   uint64         // where the file says of its names where they are, once it is closed
	file   io.WriteSeeker // nil: a stream
	base   int64          // of the recording in file
	n      uint64         // bytes written
	err    error
	attrs  []source.Attr
	dec    *source.Decoder // for records without raw bytes
	header header
	buf    []byte

	round       int // bytes since the last FINISHED_ROUND
	first, last uint64
	modules     map[string]bool // mapped files without a build ID; true: the kernel's
	dropped     uint64
}

// roundBytes is how much is written between two FINISHED_ROUND records, so that readers need not keep more than two
// times that to put it in order.
const roundBytes = 1 << 20

// NewWriter writes the head of a recording to w.
func NewWriter(w io.Writer, o WriterOptions) (*Writer, error) {
	x := &Writer{opts: o, w: bufio.NewWriterSize(w, 1<<18), dec: source.NewDecoder(), modules: map[string]bool{}}
	if x.opts.Info.Tracing == nil {
		x.opts.Info.Tracing = tracing(o.Events)
	}
	size := source.AttrSizeVer5
	for _, e := range o.Events {
		a := e.Attr.Walked()
		x.attrs = append(x.attrs, a)
		x.dec.AddAttr(&a, e.IDs, e.Name)
		size = max(size, a.Size())
	}
	if s, ok := w.(io.WriteSeeker); ok && !appends(w) {
		if pos, err := s.Seek(0, io.SeekCurrent); err == nil {
			x.file, x.base = s, pos
		}
	}
	if x.file != nil {
		x.fileHead(size)
	} else {
		x.pipeHead(size)
	}
	x.flush()
	return x, x.err
}

// appends says whether whatever is written to w lands at its end.
func appends(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_APPEND != 0
}

// fileHead writes the header, with a size of 0 for the records, and the events.
func (x *Writer) fileHead(attrSize int) {
	h := &x.header
	h.attrSize = uint64(attrSize + idsSize)
	x.write(make([]byte, fileHeaderSize))
	var table []byte
	for i, e := range x.opts.Events {
		at := x.n
		x.write(appendWords(nil, e.IDs))
		table = x.attrs[i].AppendSize(table, attrSize)
		table = appendWords(table, []uint64{at, x.n - at})
	}
	h.attrs = section{x.n, uint64(len(table))}
	x.write(table)
	h.data = section{x.n, 0}
	x.putHeader()
}

// putHeader writes the header over the old one.
func (x *Writer) putHeader() {
	x.flush()
	h := &x.header
	b := append([]byte(nil), magic...)
	b = appendWords(b, []uint64{fileHeaderSize, h.attrSize, h.attrs.off, h.attrs.size, h.data.off, h.data.size, 0, 0})
	b = appendWords(b, h.features[:])
	for _, step := range []func() error{
		func() error { _, err := x.file.Seek(x.base, io.SeekStart); return err },
		func() error { _, err := x.file.Write(b); return err },
		func() error { _, err := x.file.Seek(x.base+int64(x.n), io.SeekStart); return err },
	} {
		if x.err == nil {
			x.err = step()
		}
	}
}

// pipeHead writes what a stream starts with: features, and events with their IDs and names.
func (x *Writer) pipeHead(attrSize int) {
	x.write(appendWords([]byte(magic), []uint64{pipeHeaderSize}))
	for _, ft := range x.features(nil) {
		if ft.id != featTracing && ft.id != featEventDesc && ft.id != featSampleTime {
			x.record(recordHeaderFeature, 0, pad8(append(appendWords(nil, []uint64{ft.id}), ft.b...)))
		}
	}
	for i, e := range x.opts.Events {
		b := x.attrs[i].AppendSize(nil, attrSize)
		ids := e.IDs
		if most := (maxRecord - 8 - len(b)) / 8; len(ids) > most {
			ids = ids[:most]
		}
		x.record(recordHeaderAttr, 0, appendWords(b, ids))
		if len(ids) > 0 && e.Name != "" {
			const name = 2
			b := appendWords(nil, []uint64{name, ids[0]})
			x.record(recordEventUpdate, 0, pad8(append(append(b, e.Name...), 0)))
		}
	}
	if b := pad8(slices.Clone(x.opts.Info.Tracing)); len(b) > 0 {
		x.record(recordTracingData, 0, appendU32(nil, uint32(len(b))))
		x.write(b)
	}
}

// maxRecord is the size of the largest record.
const maxRecord = 1<<16 - 8

// write writes b, unless something went wrong before.
func (x *Writer) write(b []byte) {
	if x.err == nil {
		_, x.err = x.w.Write(b)
		x.n += uint64(len(b))
	}
}

func (x *Writer) flush() {
	if x.err == nil {
		x.err = x.w.Flush()
	}
}

// record writes a record, unless it is too large for one.
func (x *Writer) record(typ uint32, misc uint16, body []byte) {
	if 8+len(body) > maxRecord {
		x.dropped++
		return
	}
	var h [8]byte
	binary.LittleEndian.PutUint32(h[:], typ)
	binary.LittleEndian.PutUint16(h[4:], misc)
	binary.LittleEndian.PutUint16(h[6:], uint16(8+len(body)))
	x.write(h[:])
	x.write(body)
}

// Record writes a record of the kernel that is no sample: as it is, or where it has no Raw, as an event's records are. Records come in time
// order, samples included. Records of deferred stacks are left out, because the stacks are in their samples.
func (x *Writer) Record(r *source.Record) error {
	switch r.Type {
	case source.RecordSample, source.RecordCallchainDeferred, source.RecordAux:
		return x.err
	case source.RecordMmap, source.RecordMmap2:
		x.mapped(r)
	}
	if raw := r.Raw; raw != nil {
		return x.data(raw)
	}
	x.buf = x.dec.Append(x.buf[:0], max(r.Event, 0), r)
	return x.data(x.buf)
}

// Sample writes a walked sample.
func (x *Writer) Sample(s *source.Sample) error {
	if s.Event < 0 || s.Event >= len(x.attrs) {
		return fmt.Errorf("%w: a sample of event %d, of %d", source.ErrUnsupported, s.Event, len(x.attrs))
	}
	b, err := source.AppendSample(x.buf[:0], &x.attrs[s.Event], s)
	if err != nil {
		x.dropped++
		return x.err
	}
	x.buf = b
	if s.Record.HasTime {
		if x.first == 0 || s.Time < x.first {
			x.first = s.Time
		}
		x.last = max(x.last, s.Time)
	}
	return x.data(b)
}

// Lost counts n lost samples that no record reports: a LOST_SAMPLES record, in the file's last moment.
func (x *Writer) Lost(n uint64) error {
	if n == 0 {
		return x.err
	}
	r := source.Record{Type: source.RecordLostSamples, Misc: source.MiscUser, PID: -1, TID: -1, Time: max(x.last, 1), Lost: n}
	if e := x.opts.Events; len(e) > 0 && len(e[0].IDs) > 0 {
		r.ID = e[0].IDs[0]
	}
	return x.Record(&r)
}

// data writes a record of the kernel, and ends a round where it is time to.
func (x *Writer) data(b []byte) error {
	x.write(b)
	if x.round += len(b); x.round >= roundBytes {
		x.round = 0
		x.record(source.RecordFinishedRound, 0, nil)
	}
	return x.err
}

// Dropped returns the number of records that were too large.
func (x *Writer) Dropped() uint64 { return x.dropped }

// maxModules bounds what a hostile recording can make a Writer remember.
const maxModules = 1 << 20

// mapped remembers a file that is mapped as code.
func (x *Writer) mapped(r *source.Record) {
	if len(r.BuildID) > 0 || !r.Executable() || len(x.modules) >= maxModules {
		return
	}
	kernel := r.CPUMode() == source.MiscKernel
	if _, ok := x.modules[string(r.Filename)]; !ok && len(r.Filename) > 0 {
		name := string(r.Filename)
		if kernel && strings.HasPrefix(name, "[kernel.kallsyms]") {
			name = "[kernel.kallsyms]" // a symbol follows in the record
		}
		x.modules[name] = kernel
	}
}

// buildIDs returns a record for each mapped file that has a build ID.
func (x *Writer) buildIDs() (recs [][]byte) {
	if x.opts.BuildID == nil {
		return nil
	}
	for _, path := range sortedKeys(x.modules) {
		id, err := hex.DecodeString(x.opts.BuildID(path))
		if err != nil || len(id) == 0 || len(path) > 4096 {
			continue
		}
		const miscSize = 1 << 15 // the size is in byte 20 of the ID
		misc, pid := uint16(source.MiscUser|miscSize), uint32(0xffffffff)
		if x.modules[path] {
			misc = source.MiscKernel | miscSize
		}
		var b [28]byte
		binary.LittleEndian.PutUint32(b[:], pid)
		b[24] = byte(copy(b[4:24], id))
		body := pad8(append(append(append([]byte(nil), b[:]...), path...), 0, 0, 0, 0, 0))
		rec := binary.LittleEndian.AppendUint32(nil, recordBuildID)
		rec = binary.LittleEndian.AppendUint16(rec, misc)
		rec = binary.LittleEndian.AppendUint16(rec, uint16(8+len(body)))
		recs = append(recs, append(rec, body...))
	}
	return recs
}

// Close writes the data known only at the end. It does not close the file. A Writer is of no use after it.
func (x *Writer) Close() error {
	x.record(source.RecordFinishedRound, 0, nil)
	if x.file == nil {
		for _, b := range x.buildIDs() {
			x.write(b)
		}
		x.flush()
		return x.close()
	}
	h := &x.header
	h.data.size = x.n - h.data.off
	var build []byte
	for _, b := range x.buildIDs() {
		build = append(build, b...)
	}
	list := x.features(build)
	if x.opts.Room {
		list = append(list, feature{id: featNames})
	}
	at := x.n + 16*uint64(len(list))
	var table []uint64
	for _, ft := range list {
		h.features[ft.id/64] |= 1 << (ft.id % 64)
		table = append(table, at, uint64(len(ft.b)))
		at += uint64(len(ft.b))
	}
	x.room = x.n + 16*uint64(len(list)-1)
	x.write(appendWords(nil, table))
	for _, ft := range list {
		x.write(ft.b)
	}
	x.putHeader()
	return x.close()
}

// Room writes names into a file that is closed and had room left for them: behind its end first, and then where they are. w is the same file.
func (x *Writer) Room(w io.WriterAt, names []byte) error {
	if !x.opts.Room || x.file == nil || x.err != errClosed {
		return errors.New("the recording has no room for names")
	}
	if _, err := w.WriteAt(names, int64(x.n)); err != nil {
		return err
	}
	_, err := w.WriteAt(appendWords(nil, []uint64{x.n, uint64(len(names))}), int64(x.room))
	return err
}

var errClosed = errors.New("the Writer is closed")

func (x *Writer) close() error {
	err := x.err
	if err == nil {
		x.err = errClosed
	}
	return err
}
