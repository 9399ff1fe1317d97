package perfdata

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/bits"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
)

// An Info is a recording's description of itself. What it does not say is zero.
type Info struct {
	Ours       bool // written by a Writer
	Piped      bool // in the format of streams
	Unfinished bool // perf did not finish the file: it ends with the last record written in full

	Version   string // of the recorder
	Hostname  string
	OSRelease string // as uname -r
	Arch      string // as uname -m
	Machine   *arch.Machine
	CPUs      uint32 // online
	Cmdline   []string

	First, Last uint64 // time of samples, ns
	ClockID     int32  // of clock_gettime(2), or PerfClock
	ClockRes    uint64 // its resolution in ns
	// ClockWall is the time of day in ns since 1970 at ClockTime, in ns of the clock ClockID.
	ClockWall, ClockTime uint64

	// Tracing describes the fields of tracepoints: perf needs it to read a file that has some, and this package
	// passes it on as it is. A Writer looks for the running kernel's where it is missing.
	Tracing []byte

	// Names are the bytes that filled Writer.Room: for whom wrote the file to read. This package does not look at them.
	Names []byte

	// Damage is why some of this is missing, the first cause only.
	Damage error
}

// PerfClock is Info.ClockID where records have the time of perf's own clock.
const PerfClock = -1

// Features (tools/perf/util/header.h): the ones read or written here.
const (
	featTracing    = 1
	featBuildID    = 2
	featHostname   = 3
	featOSRelease  = 4
	featVersion    = 5
	featArch       = 6
	featNRCPUs     = 7
	featCmdline    = 11
	featEventDesc  = 12
	featSampleTime = 21
	featClockID    = 23
	featDirFormat  = 24
	featClockData  = 29
	featNames      = 255 // of a Writer's own, the last: perf skips features that it does not know
)

// ours starts the version of a recording by a Writer. What follows it is the version of how addresses and
// provenance are written.
const ours = "unspool 1"

// readFeatures reads what follows the records of a file: a section for each feature that h has. They cannot make a
// file unreadable.
func (f *File) readFeatures(r *io.SectionReader, h *header) {
	n := 0
	for _, w := range h.features {
		n += bits.OnesCount64(w)
	}
	at := h.data.off + h.data.size
	table, err := readSection(r, section{at, uint64(16 * n)}, "the list of features")
	if err != nil {
		f.damage(err)
		return
	}
	if f.big {
		source.SwapWords(table)
	}
	left := min(uint64(f.size), maxFeatures)
	for feat := range uint64(numFeatures) {
		if h.features[feat/64]>>(feat%64)&1 == 0 {
			continue
		}
		s := section{binary.LittleEndian.Uint64(table), binary.LittleEndian.Uint64(table[8:])}
		table = table[16:]
		if !wanted(feat) {
			continue
		}
		what := fmt.Sprintf("feature %d", feat)
		if s.size > left {
			f.damage(fmt.Errorf("%s: %w: %d bytes", what, source.ErrMalformed, s.size))
			continue
		}
		left -= s.size
		b, err := readSection(r, s, what)
		if err != nil {
			f.damage(err)
			continue
		}
		f.feature(feat, b)
	}
}

// maxFeatures bounds the bytes of all features: a file can be a long hole.
const maxFeatures = 256 << 20

func wanted(feat uint64) bool {
	switch feat {
	case featTracing, featBuildID, featHostname, featOSRelease, featVersion, featArch, featNRCPUs, featCmdline, featEventDesc,
		featSampleTime, featClockID, featDirFormat, featClockData, featNames:
		return true
	}
	return false
}

// feature takes in a feature's content.
func (f *File) feature(feat uint64, b []byte) {
	if feat == featEventDesc { // uses the decoder, which has its own lock
		f.describe(b)
		return
	}
	c := cursor{b: b, order: f.in.order}
	f.mu.Lock()
	i := &f.info
	switch feat {
	case featTracing:
		i.Tracing = b
	case featNames:
		i.Names = b
	case featHostname:
		i.Hostname = c.str()
	case featOSRelease:
		i.OSRelease = c.str()
	case featVersion:
		i.Version = c.str()
		i.Ours = i.Version == ours || strings.HasPrefix(i.Version, ours+" ")
	case featArch:
		i.Arch = c.str()
		if i.Machine = arch.ByName(i.Arch); i.Machine != nil {
			i.Machine = i.Machine.Ordered(c.order == binary.BigEndian)
		}
	case featNRCPUs:
		c.u32()
		i.CPUs = c.u32()
	case featCmdline:
		i.Cmdline = nil
		for n := c.u32(); n > 0 && !c.bad; n-- {
			if s := c.str(); !c.bad {
				i.Cmdline = append(i.Cmdline, s)
			}
		}
	case featSampleTime:
		i.First, i.Last = c.u64(), c.u64()
	case featClockID:
		i.ClockRes = c.u64()
	case featClockData:
		if c.u32() == 1 {
			c.u32()
			i.ClockWall, i.ClockTime = c.u64(), c.u64()
		}
	}
	f.mu.Unlock()
	switch {
	case feat == featDirFormat:
		f.damage(fmt.Errorf("%w: most records are in other files of its directory", source.ErrUnsupported))
	case feat == featBuildID:
		for len(b) >= 8 {
			n := int(f.in.order.Uint16(b[6:]))
			if n < 8 || n > len(b) {
				c.bad = true
				break
			}
			if f.big {
				source.SwapHeader(b)
			}
			f.addBuildID(b[:n])
			b = b[n:]
		}
	}
	if c.bad {
		f.damage(fmt.Errorf("feature %d: %w", feat, source.ErrMalformed))
	}
}

func (f *File) damage(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.info.Damage == nil {
		f.info.Damage = err
	}
}

// describe takes in the names of events. They come in the order of the attributes, and with IDs.
func (f *File) describe(b []byte) {
	c := cursor{b: b, order: f.in.order}
	n, size := c.u32(), c.u32()
	for i := 0; i < int(n) && !c.bad; i++ {
		c.bytes(uint64(size))
		ids := c.u32()
		name := c.str()
		list := source.Words(c.bytes(8 * uint64(ids)))
		if f.big {
			source.SwapWords(list)
		}
		if c.bad {
			break
		}
		event := i
		if len(list) > 0 {
			if k, ok := f.dec.EventByID(list.At(0)); ok {
				event = k
			}
		}
		if name != "" {
			f.dec.SetName(event, name)
		}
	}
	if c.bad {
		f.damage(fmt.Errorf("the names of events: %w", source.ErrMalformed))
	}
}

// addBuildID takes in a record that says which build of a file was mapped (struct perf_record_header_build_id).
func (f *File) addBuildID(raw []byte) {
	const (
		miscSize = 1 << 15 // the size is in byte 20 of the ID
		head     = 36
	)
	if len(raw) <= head {
		return
	}
	id := raw[12:32]
	if binary.LittleEndian.Uint16(raw[4:])&miscSize != 0 {
		id = id[:min(int(raw[32]), len(id))]
	}
	path := cString(raw[head:])
	if path == "" || len(bytes.Trim(id, "\x00")) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.build[path] = hex.EncodeToString(id)
}

// A cursor reads a feature. After the first field that reaches beyond it, all are zero.
type cursor struct {
	b     []byte
	order binary.ByteOrder
	bad   bool
}

func (c *cursor) bytes(n uint64) []byte {
	if n > uint64(len(c.b)) {
		c.b, c.bad = nil, true
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}

func (c *cursor) u32() uint32 {
	if b := c.bytes(4); b != nil {
		return c.order.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.bytes(8); b != nil {
		return c.order.Uint64(b)
	}
	return 0
}

// str reads a string: its size with padding, and its bytes.
func (c *cursor) str() string { return cString(c.bytes(uint64(c.u32()))) }

func cString(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
