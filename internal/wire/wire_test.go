package wire

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestFields: fields are what the protocol's own code has written.
func TestFields(t *testing.T) {
	inner, err := proto.Marshal(&durationpb.Duration{Seconds: -1, Nanos: 5})
	if err != nil {
		t.Fatal(err)
	}
	b, err := proto.Marshal(&anypb.Any{TypeUrl: "a/b", Value: inner})
	if err != nil {
		t.Fatal(err)
	}
	var text, value []byte
	for f, err := range Fields(b) {
		switch {
		case err != nil:
			t.Fatal(err)
		case f.Number == 1:
			text = f.Bytes
		case f.Number == 2:
			value = f.Bytes
		}
	}
	var parts []uint64
	for f, err := range Fields(value) {
		if err != nil || f.Kind != protowire.VarintType || f.Bytes != nil {
			t.Fatalf("%+v, %v", f, err)
		}
		parts = append(parts, f.Value)
	}
	if string(text) != "a/b" || len(parts) != 2 || int64(parts[0]) != -1 || parts[1] != 5 {
		t.Errorf("%q, %d of %x", text, parts, b)
	}
	// A field of each other kind is passed over.
	b = protowire.AppendFixed64(protowire.AppendTag(nil, 1, protowire.Fixed64Type), 7)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), 7)
	b = protowire.AppendGroup(protowire.AppendTag(b, 3, protowire.StartGroupType), 3, []byte("\x08\x01"))
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 9)
	var numbers []protowire.Number
	for f, err := range Fields(b) {
		if err != nil || (f.Value == 9) != (f.Number == 4) {
			t.Errorf("%+v, %v", f, err)
		}
		numbers = append(numbers, f.Number)
	}
	if len(numbers) != 4 {
		t.Errorf("%d", numbers)
	}
}

// TestDamaged: each cut of a message ends with an error that names the byte, or is whole, and none has bytes that are not there.
func TestDamaged(t *testing.T) {
	whole := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "text")
	whole = protowire.AppendVarint(protowire.AppendTag(whole, 2, protowire.VarintType), 1<<40)
	for n := range len(whole) {
		var last error
		for f, err := range Fields(whole[:n]) {
			if last = err; err != nil && f.Number != 0 {
				t.Errorf("%d bytes: %+v beside %v", n, f, err)
			}
		}
		if (last == nil) != (n == 0 || n == 6) {
			t.Errorf("%d bytes of %x: %v", n, whole, last)
		}
	}
}

func FuzzFields(f *testing.F) {
	f.Add([]byte("\x0a\x03abc\x10\x01"))
	f.Add([]byte("\x0a\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for field, err := range Fields(b) {
			if err == nil && (field.Number < 1 || !bytes.Contains(b, field.Bytes)) {
				t.Errorf("%+v", field)
			}
		}
	})
}
