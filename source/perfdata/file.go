package perfdata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// A File is a perf.data file or stream that is read once, from its first record to its last. Next and BuildID are
// for one goroutine; the other methods are safe for concurrent use.
type File struct {
	dec   *source.Decoder
	in    input // the file's records
	plain input // those of its compressed records
	z     *decompressor
	inner bool  // the last record was a compressed one
	big   bool  // a big-endian machine has written it: all is swapped when it is read
	start int64 // of the recording in the file
	size  int64 // of the file; 0 for streams
	end   int64 // where its records end; 0 for streams
	short int64 // by how much the file ends too early

	written time.Time // when the file last changed; zero for streams
	private bool      // only root and this user can change the file

	done    atomic.Int64
	stopped atomic.Bool

	mu    sync.Mutex
	info  Info
	build map[string]string // hex build IDs by path
}

// Records that recorders write (tools/lib/perf/include/perf/event.h).
const (
	recordHeaderAttr    = 64
	recordTracingData   = 66
	recordBuildID       = 67
	recordAuxtrace      = 71
	recordEventUpdate   = 78
	recordHeaderFeature = 80
	recordCompressed    = 81
	recordCompressed2   = 83
	recordBPFMetadata   = 84 // the last one known
)

// New reads the header of the recording that starts where in stands. A regular file is read from there to its
// end, anything else as a stream. path is for messages. Errors wrap source.ErrTruncated, ErrMalformed or ErrUnsupported, or are
// those of in, which the caller closes after the File.
func New(in *os.File, path string) (*File, error) {
	f := &File{dec: source.NewDecoder(), build: map[string]string{}}
	if err := f.open(in); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (f *File) open(in *os.File) error {
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("%w: a directory; recordings are files, and those of perf record --threads cannot be read", source.ErrUnsupported)
	}
	f.plain.pool = newPool()
	if pos, err := in.Seek(0, io.SeekCurrent); err == nil && st.Mode().IsRegular() {
		f.start, f.size, f.written = pos, max(st.Size()-pos, 0), st.ModTime()
		f.private = private(st)
		return source.Guard(func() error { return f.openFile(io.NewSectionReader(in, pos, f.size), in) })
	}
	f.in.pool = newPool()
	f.in.r = &stream{f, in}
	if err := f.in.need(pipeHeaderSize); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return tooShort(f.in.b)
		}
		return err
	}
	n, big, err := checkMagic(f.in.b)
	if err != nil {
		return err
	}
	f.setBig(big)
	if n != pipeHeaderSize {
		return fmt.Errorf("%w: a perf.data file, unlike the output of perf record -o -, cannot be read from a pipe", source.ErrUnsupported)
	}
	f.in.take(int(n))
	return f.openPipe()
}

// private says whether only root and this user can change a file.
func private(st os.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && (sys.Uid == 0 || int(sys.Uid) == os.Geteuid()) && st.Mode().Perm()&0o022 == 0
}

// A stream reads a pipe, and gives up when its File is stopped.
type stream struct {
	f  *File
	in *os.File
}

func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.f.stopped.Load() {
			return 0, io.EOF
		}
		fds := []unix.PollFd{{Fd: int32(s.in.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 100); err != nil && err != unix.EINTR {
			return 0, os.NewSyscallError("poll", err)
		} else if n > 0 {
			return s.in.Read(p)
		}
	}
}

// readFrom makes the bytes [lo, hi) of the recording the input. A file that others could change is read: what is checked must stay as it was.
// All others are mapped, a window at a time: half of a recording's bytes are stacks that are walked in part, and to map them costs a quarter
// of copying them.
func (f *File) readFrom(in *os.File, lo, hi int64) {
	f.in.off, f.end = lo, hi
	f.in.pool = newPool()
	if f.private && !f.big {
		f.in.file, f.in.at, f.in.end = in, f.start, hi
		return
	}
	f.in.r = io.NewSectionReader(in, f.start+lo, hi-lo)
}

// Decoder returns the decoder that knows the file's events.
func (f *File) Decoder() *source.Decoder { return f.dec }

// Stop makes a Next that waits for a stream return soon.
func (f *File) Stop() { f.stopped.Store(true) }

// Close gives up the file's memory: no record may be used after it.
func (f *File) Close() error {
	f.in.close()
	f.plain.close()
	if f.z != nil {
		f.z.stop()
		f.z = nil
	}
	return nil
}

// Progress returns the number of bytes read, and the file's size: 0 if unknown.
func (f *File) Progress() (done, total int64) { return f.done.Load(), f.size }

// Written returns when the file last changed, no earlier than its last sample was taken; zero for streams.
func (f *File) Written() time.Time { return f.written }

// BuildID returns the hex build ID that the recording has of the file path, or "".
func (f *File) BuildID(path string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.build[path]
}

// BuildIDs returns the hex build IDs that the recording has, by path: those of its header, before it is read.
func (f *File) BuildIDs() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.build)
}

// Info returns the recording's description of itself. That of a stream can grow while it is read.
func (f *File) Info() Info {
	f.mu.Lock()
	defer f.mu.Unlock()
	info := f.info
	if e := f.dec.Events(); len(e) > 0 && e[0].Attr.Has(source.FlagUseClockID) {
		info.ClockID = e[0].Attr.ClockID
	} else {
		info.ClockID = PerfClock
	}
	return info
}

// Next implements source.RecordStream.
func (f *File) Next() ([]byte, *source.Buffer, error) {
	for {
		raw, buf, err := f.record()
		if err != nil {
			return nil, nil, err
		}
		switch typ := binary.LittleEndian.Uint32(raw); {
		case typ < source.RecordUser || typ == source.RecordFinishedRound || typ > recordBPFMetadata:
			return raw, buf, nil
		default:
			if err := f.use(typ, raw); err != nil {
				return nil, nil, err
			}
		}
	}
}

// record returns the next record of any kind.
func (f *File) record() ([]byte, *source.Buffer, error) {
	if f.z != nil {
		if raw, err := f.decompressed(); raw != nil || err != nil {
			f.inner = true
			return raw, f.plain.buf, err
		}
	}
	f.inner = false
	in := &f.in
	f.done.Store(in.off)
	at := in.off
	n, err := in.recordSize()
	if err == nil {
		if err = in.need(n); err == nil {
			return f.taken(in, n), in.buf, nil
		}
	}
	switch {
	case f.stopped.Load():
		err = io.EOF
	case errors.Is(err, io.EOF) && in.off < f.end:
		err = fmt.Errorf("%w: the file ended at %#x while it was read", source.ErrTruncated, at)
	case errors.Is(err, io.EOF) && f.short > 0:
		err = fmt.Errorf("%w: the file ends at %#x, %d bytes before its last record does", source.ErrTruncated, at, f.short)
	case errors.Is(err, io.EOF):
		if f.z != nil && len(f.plain.b) > 0 {
			err = fmt.Errorf("%w: a compressed record ends early", source.ErrTruncated)
			f.plain.b = nil
		}
	case f.info.Unfinished: // perf was writing when it ended, or is
		err = io.EOF
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: the record at %#x ends early", source.ErrTruncated, at)
	default:
		err = fmt.Errorf("the record at %#x: %w", at, err)
	}
	return nil, nil, err
}

// recordSize returns the size of the record that comes next.
func (in *input) recordSize() (int, error) {
	if err := in.need(8); err != nil {
		return 0, err
	}
	n := int(in.order.Uint16(in.b[6:]))
	if n < 8 {
		return 0, fmt.Errorf("%w: its size is %d", source.ErrMalformed, n)
	}
	return n, nil
}

// setBig says which machine has written the file.
func (f *File) setBig(big bool) {
	f.in.order, f.plain.order = binary.LittleEndian, binary.LittleEndian
	if f.big = big; big {
		f.in.order, f.plain.order = binary.BigEndian, binary.BigEndian
	}
}

// taken takes a record of n bytes.
func (f *File) taken(in *input, n int) []byte {
	raw := in.take(n)
	if !f.big {
		return raw
	}
	if typ := binary.BigEndian.Uint32(raw); typ < source.RecordUser {
		f.dec.Swap(raw)
		return raw
	}
	source.SwapHeader(raw)
	body := raw[8:]
	switch typ := binary.LittleEndian.Uint32(raw); typ {
	case recordHeaderAttr:
		source.SwapWords(body[source.SwapAttr(body):])
	case recordEventUpdate:
		source.SwapWords(body[:min(len(body), 16)])
	case recordHeaderFeature, recordAuxtrace, recordCompressed2:
		source.SwapWords(body[:min(len(body), 8)])
	case recordTracingData:
		slices.Reverse(body[:min(len(body), 4)])
	}
	return raw
}

// decompressed returns the next whole record of those compressed, nil if there is none.
func (f *File) decompressed() ([]byte, error) {
	in := &f.plain
	for {
		n, err := in.recordSize()
		switch {
		case err == nil && len(in.b) >= n:
			return f.taken(in, n), nil
		case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("a compressed record before %#x: %w", f.in.off, err)
		}
		out, err := f.z.more()
		if err != nil {
			return nil, fmt.Errorf("the compressed record before %#x: %w: %w", f.in.off, source.ErrMalformed, err)
		}
		if len(out) == 0 {
			return nil, nil
		}
		in.append(out)
	}
}

// use takes in a record that a recorder added.
func (f *File) use(typ uint32, raw []byte) error {
	body := raw[8:]
	if f.inner {
		switch typ {
		case recordCompressed, recordCompressed2, recordAuxtrace, recordTracingData:
			return fmt.Errorf("a compressed record before %#x: %w: it is of type %d", f.in.off, source.ErrMalformed, typ)
		}
	}
	switch typ {
	case recordCompressed, recordCompressed2:
		if typ == recordCompressed2 {
			if len(body) < 8 || binary.LittleEndian.Uint64(body) > uint64(len(body)-8) {
				return fmt.Errorf("the compressed record before %#x: %w: too small", f.in.off, source.ErrMalformed)
			}
			body = body[8 : 8+binary.LittleEndian.Uint64(body)]
		}
		if f.z == nil {
			f.z = newDecompressor()
		}
		f.z.add(body)
	case recordAuxtrace: // its data follow it
		if len(body) >= 8 {
			return f.trailing(binary.LittleEndian.Uint64(body), nil)
		}
	case recordTracingData:
		if len(body) >= 4 {
			var b bytes.Buffer
			err := f.trailing(uint64(binary.LittleEndian.Uint32(body)), &b)
			f.feature(featTracing, b.Bytes())
			return err
		}
	case recordHeaderAttr:
		return f.addPipeAttr(body)
	case recordEventUpdate:
		f.update(body)
	case recordHeaderFeature:
		if len(body) >= 8 {
			f.feature(binary.LittleEndian.Uint64(body), body[8:])
		}
	case recordBuildID:
		f.addBuildID(raw)
	}
	return nil
}

// trailing takes the n bytes that follow a record, to b if that is not nil.
func (f *File) trailing(n uint64, b *bytes.Buffer) error {
	in := &f.in
	for n > 0 {
		if err := in.need(1); err == io.EOF {
			if f.info.Unfinished {
				return nil
			}
			return fmt.Errorf("%w: the data before %#x end %d bytes early", source.ErrTruncated, in.off, n)
		} else if err != nil {
			return err
		}
		piece := in.take(int(min(n, uint64(len(in.b)))))
		n -= uint64(len(piece))
		if b != nil {
			b.Write(piece)
		}
	}
	return nil
}
