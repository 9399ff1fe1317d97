// Package wire reads messages of protocol buffers by their numbers, without their definitions
// (https://protobuf.dev/programming-guides/encoding).
package wire

import (
	"fmt"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"
)

// A Field is a field of a message.
type Field struct {
	Number protowire.Number // 0 beside an error
	Kind   protowire.Type
	Value  uint64 // of a varint
	Bytes  []byte // of a string, a message or bytes: a part of what is read
}

// Fields yields the fields of a message in their order. Where the message is damaged, an error is last, and says at which byte.
func Fields(message []byte) iter.Seq2[Field, error] {
	return func(yield func(Field, error) bool) {
		for b := message; len(b) > 0; {
			number, kind, n := protowire.ConsumeTag(b)
			size := n
			if n >= 0 {
				size = protowire.ConsumeFieldValue(number, kind, b[n:])
			}
			if size < 0 {
				yield(Field{}, fmt.Errorf("at byte %d: %w", len(message)-len(b), protowire.ParseError(size)))
				return
			}
			f, value := Field{Number: number, Kind: kind}, b[n:n+size]
			switch kind {
			case protowire.VarintType:
				f.Value, _ = protowire.ConsumeVarint(value)
			case protowire.BytesType:
				f.Bytes, _ = protowire.ConsumeBytes(value)
			}
			if !yield(f, nil) {
				return
			}
			b = b[n+size:]
		}
	}
}
