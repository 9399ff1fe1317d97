package otlp

import (
	"encoding/binary"
	"errors"
)

// A message is one of protocol buffers, as it is written. What is 0 or empty is left out, but for elements of repeated fields.
type message []byte

const (
	varint  = 0
	fixed64 = 1
	bytes   = 2
	fixed32 = 5
)

func (m *message) tag(field, kind int) { *m = binary.AppendUvarint(*m, uint64(field<<3|kind)) }

func (m *message) uint(field int, v uint64) {
	if v != 0 {
		m.tag(field, varint)
		*m = binary.AppendUvarint(*m, v)
	}
}

func (m *message) fixed(field int, v uint64) {
	if v != 0 {
		m.tag(field, fixed64)
		*m = binary.LittleEndian.AppendUint64(*m, v)
	}
}

func (m *message) string(field int, s string) {
	if s != "" {
		m.element(field, []byte(s))
	}
}

// element writes a message, or an element of a repeated field.
func (m *message) element(field int, b []byte) {
	m.tag(field, bytes)
	*m = append(binary.AppendUvarint(*m, uint64(len(b))), b...)
}

// packed writes a repeated field of integers.
func (m *message) packed(field int, list ...int32) {
	if len(list) == 0 {
		return
	}
	var b []byte
	for _, v := range list {
		b = binary.AppendUvarint(b, uint64(v))
	}
	m.element(field, b)
}

var errWire = errors.New("the answer is no message of protocol buffers")

// fields calls f with each field of a message; v is of numbers, b of what has a length.
func fields(m []byte, f func(field uint64, v uint64, b []byte)) error {
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		if n <= 0 || tag>>3 == 0 {
			return errWire
		}
		m = m[n:]
		var v uint64
		var b []byte
		switch tag & 7 {
		case varint:
			if v, n = binary.Uvarint(m); n <= 0 {
				return errWire
			}
		case bytes:
			size, k := binary.Uvarint(m)
			if k <= 0 || size > uint64(len(m)-k) {
				return errWire
			}
			b, n = m[k:k+int(size)], k+int(size)
		case fixed64, fixed32:
			n = 8
			if tag&7 == fixed32 {
				n = 4
			}
			if len(m) < n {
				return errWire
			}
		default:
			return errWire
		}
		f(tag>>3, v, b)
		m = m[n:]
	}
	return nil
}
