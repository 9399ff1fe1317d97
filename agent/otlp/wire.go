package otlp

import "encoding/binary"

// A message is one of protocol buffers, as it is written. What is 0 or empty is left out, but for elements of repeated fields.
type message []byte

const (
	varint  = 0
	fixed64 = 1
	bytes   = 2
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
