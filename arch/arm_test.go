package arch

import (
	"encoding/hex"
	"testing"
)

// TestTargetARM: where calls of a label lead, as llvm-objdump says.
func TestTargetARM(t *testing.T) {
	for _, c := range []struct {
		code   string // in the order of memory
		at, to uint64 // of the call; its lowest bit is the instruction set
		text   string
	}{
		{"01f018f9", 0x1001, 0x2234, "bl 0x2234"},
		{"fff7fcdf", 0x1005, 0xff801000, "bl 0xff801000"},
		{"fff3f8d7", 0x1009, 0x1000ffc, "bl 0x1000ffc"},
		{"00f006e8", 0x100d, 0x101c, "blx 0x101c"},
		{"00f002e8", 0x1017, 0x101c, "blx 0x101c"},
		{"fe0300eb", 0x101c, 0x201c, "bl 0x201c"},
		{"fe3f80eb", 0x1020, 0xfe011020, "bl 0xfe011020"},
		{"010000fa", 0x1024, 0x1030, "blx 0x1030"},
		{"000000fb", 0x1028, 0x1032, "blx 0x1032"},
		{"faffff1b", 0x102c, 0x101c, "blne 0x101c"},
		{"33ff2fe1", 0x1000, 0, "blx r3"},
		{"00bf9847", 0x1001, 0, "nop; blx r3"},
		{"fe3f80ea", 0x1020, 0, "b 0xfe011020"},
		{"fff7fcbf", 0x1005, 0, "b.w 0xff801000"},
		{"fff7ffef", 0x1005, 0, "undefined: blx with its lowest bit set"},
	} {
		code, err := hex.DecodeString(c.code)
		if err != nil {
			t.Fatal(err)
		}
		if to, ok := ARM.Target(code, c.at+4); to != c.to || ok != (c.to != 0) {
			t.Errorf("Target(% x) at %#x\n got %#x, %v\nwant %#x: %s", code, c.at, to, ok, c.to, c.text)
		}
	}
	if to, ok := ARM.Target([]byte{0, 0, 0xeb}, 0x1004); ok {
		t.Errorf("Target(00 00 eb) = %#x, true; want false: three bytes are no call", to)
	}
}
