// Package otelctx reads what a process publishes of itself for profilers: OpenTelemetry's process context (OTEP 4719, version 2), a mapping named
// OTEL_CTX with the attributes of the resource. Decode reads its payload, and a Reader finds and reads the contexts of live processes.
//
// A process is hostile: it may write anything, change it while it is read, and hold up who reads its memory. All lengths are bounded. Memory is read
// by /proc/PID/mem, which does not wait for userfaultfd(2), and only where it is no file of a file system that a process may run itself (FUSE). A process
// that exchanges its mappings in between can still hold up the reader, as it can hold up ps(1): a Reader waits a moment only.
package otelctx

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/wire"
)

const (
	signature  = "OTEL_CTX"
	version    = 2
	headerSize = 32

	maxPayload    = 64 << 10 // bytes
	maxAttributes = 128
	maxKey        = 256 // bytes
	maxValue      = 256 // bytes that are kept
	maxMaps       = 16 << 20
	maxCandidates = 4 // mappings with the name: there should be one
	rereads       = 4 // of a context that changes
)

// A Service is what a process says of itself, in valid UTF-8 of at most 256 bytes each. All may be empty.
type Service struct {
	Name        string // service.name
	Namespace   string // service.namespace
	Instance    string // service.instance.id
	Version     string // service.version
	Environment string // deployment.environment.name
}

// field returns the field of an attribute; nil for others.
func (s *Service) field(key string) *string {
	switch key {
	case "service.name":
		return &s.Name
	case "service.namespace":
		return &s.Namespace
	case "service.instance.id":
		return &s.Instance
	case "service.version":
		return &s.Version
	case "deployment.environment.name":
		return &s.Environment
	}
	return nil
}

// Decode reads a payload: a ProcessContext (opentelemetry.proto.processcontext.v1development), of which the resource is used. The first of
// attributes with the same key counts.
func Decode(payload []byte) (s Service, err error) {
	if len(payload) > maxPayload {
		return s, errors.New("the payload is too large")
	}
	n := 0
	for f, err := range wire.Fields(payload) {
		if err != nil {
			return Service{}, err
		}
		if f.Number != 1 || f.Kind != protowire.BytesType {
			continue
		}
		for f, err := range wire.Fields(f.Bytes) {
			if err != nil {
				return Service{}, fmt.Errorf("resource: %w", err)
			}
			if f.Number != 1 || f.Kind != protowire.BytesType {
				continue
			}
			if n++; n > maxAttributes {
				return Service{}, fmt.Errorf("more than %d attributes", maxAttributes)
			}
			key, value, err := keyValue(f.Bytes)
			if err != nil {
				return Service{}, fmt.Errorf("attribute: %w", err)
			}
			if to := s.field(key); to != nil && *to == "" {
				*to = value
			}
		}
	}
	return s, nil
}

// keyValue reads a KeyValue. The value is empty if it is no string.
func keyValue(b []byte) (key, value string, err error) {
	for f, err := range wire.Fields(b) {
		switch {
		case err != nil:
			return "", "", err
		case f.Kind != protowire.BytesType:
		case f.Number == 1:
			if !utf8.Valid(f.Bytes) {
				return "", "", errors.New("a key is no UTF-8")
			}
			key = string(f.Bytes[:min(len(f.Bytes), maxKey+1)]) // longer keys are none of ours
		case f.Number == 2:
			if value, err = text(value, f.Bytes); err != nil {
				return "", "", err
			}
		}
	}
	return key, value, nil
}

// text reads an AnyValue: the string that it is, or none. A message without a known field leaves the value before it.
func text(before string, b []byte) (value string, err error) {
	value = before
	for f, err := range wire.Fields(b) {
		if err != nil {
			return "", fmt.Errorf("value: %w", err)
		}
		if want, known := anyValue[f.Number]; !known || f.Kind != want {
			continue
		}
		value = ""
		if f.Number == 1 {
			if !utf8.Valid(f.Bytes) {
				return "", errors.New("a value is no UTF-8")
			}
			value = strings.ToValidUTF8(string(f.Bytes[:min(len(f.Bytes), maxValue)]), "")
		}
	}
	return value, nil
}

// anyValue are the fields of an AnyValue, of which the last counts: a string, a truth value, an integer, a number, an array, a list of pairs, bytes,
// and the index of a string.
var anyValue = map[protowire.Number]protowire.Type{
	1: protowire.BytesType, 2: protowire.VarintType, 3: protowire.VarintType, 4: protowire.Fixed64Type, 5: protowire.BytesType, 6: protowire.BytesType,
	7: protowire.BytesType, 8: protowire.VarintType,
}

// A header is what the mapping begins with, in the byte order of the machine. All that Linux runs on, and this program, is little-endian.
type header struct {
	size      uint32
	published uint64 // nanoseconds of CLOCK_BOOTTIME; 0: it is being written
	payload   uint64 // its address
}

var (
	errNone   = errors.New("no context")
	errBusy   = errors.New("the context is being changed")
	errFormat = errors.New("a context of another version")
	errPlace  = errors.New("a context whose payload is in a file")
)

// readHeader reads the header of a mapping at an address.
func readHeader(memory io.ReaderAt, at uint64) (h header, err error) {
	var b [headerSize]byte
	if _, err := memory.ReadAt(b[:], int64(at)); err != nil {
		return h, err
	}
	switch {
	case string(b[:8]) != signature:
		return h, errNone
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return h, errFormat
	}
	return header{binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])}, nil
}

// readContext reads the context whose mapping is at an address, by the protocol for readers: the header is the same before and after. It does not
// read again what has not changed since the time known. Where a payload may be, allowed says.
func readContext(memory io.ReaderAt, at, known uint64, allowed func(lo, hi uint64) bool) (s Service, published uint64, err error) {
	err = errBusy
	for range rereads {
		before, e := readHeader(memory, at)
		switch {
		case e != nil:
			return s, 0, e
		case before.published == 0:
			continue
		case before.published == known:
			return s, known, nil
		case before.size > maxPayload:
			return s, 0, errors.New("the payload is too large")
		case !allowed(before.payload, before.payload+uint64(before.size)):
			return s, 0, errPlace
		}
		payload := make([]byte, before.size)
		_, failed := memory.ReadAt(payload, int64(before.payload))
		after, e := readHeader(memory, at)
		switch {
		case e != nil:
			return s, 0, e
		case after != before:
			continue
		case failed != nil:
			return s, 0, failed
		}
		s, err = Decode(payload)
		return s, before.published, err
	}
	return s, 0, err
}

// A device is that of a file system, as /proc/PID/maps has it.
type device struct{ maj, min uint32 }

// noDevice is that of memory that is no file. The number of a file proves nothing: a file system may give 0.
var noDevice device

// lines calls f with each mapping of the text of /proc/PID/maps, by address, until f returns false. Lines that cannot be read are left out.
func lines(maps io.Reader, want func(line []byte) bool, f func(m *procfs.Mapping) bool) error {
	r := bufio.NewReaderSize(io.LimitReader(maps, maxMaps), 8<<10) // a path has at most 4096 bytes
	for begins := true; ; {
		line, err := r.ReadSlice('\n')
		whole := begins && err == nil
		begins = err == nil // and not the rest of a line that is too long
		if whole && want(line) {
			if m, ok := procfs.ParseMapping(line[:len(line)-1]); ok && !f(&m) {
				return nil
			}
		}
		switch err {
		case nil, bufio.ErrBufferFull:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// candidates returns where the mappings are that are named as contexts are: memory without a name in a file system, or of the kernel's own file
// system for shared memory.
func candidates(maps io.Reader, shared device) (at []uint64, err error) {
	err = lines(maps, func(line []byte) bool { return bytes.Contains(line, []byte(signature)) }, func(m *procfs.Mapping) bool {
		if m.Prot&procfs.Read != 0 && m.Hi-m.Lo >= headerSize && named(m, shared) {
			at = append(at, m.Lo)
		}
		return len(at) < maxCandidates
	})
	return at, err
}

// named says whether a mapping has the name of a context: of memfd_create(2), or of PR_SET_VMA_ANON_NAME for shared and private memory (prctl(2)).
func named(m *procfs.Mapping, shared device) bool {
	switch strings.TrimSuffix(m.Name, " (deleted)") {
	case "/memfd:" + signature, "[anon_shmem:" + signature + "]":
		return device{m.Maj, m.Min} == shared
	case "[anon:" + signature + "]":
		return device{m.Maj, m.Min} == noDevice
	}
	return false
}

// covered says whether all of a range of addresses can be read without waiting for a file system that a process may run itself: it is no file, or one
// of shared memory, or of a block device.
func covered(maps io.Reader, shared device, lo, hi uint64) bool {
	if hi < lo {
		return false
	}
	_ = lines(maps, func([]byte) bool { return true }, func(m *procfs.Mapping) bool {
		if lo >= m.Lo && lo < m.Hi && (m.Maj != 0 || device{m.Maj, m.Min} == noDevice || device{m.Maj, m.Min} == shared) {
			lo = m.Hi
		}
		return lo < hi && m.Lo <= lo
	})
	return lo >= hi
}
