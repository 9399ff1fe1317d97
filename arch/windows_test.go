package arch

import "testing"

// TestImportThunk: what linkers write to call a function of another DLL, and code that is like it.
func TestImportThunk(t *testing.T) {
	for _, c := range []struct {
		m    *Machine
		code string
		at   Vaddr
		slot Vaddr
		ok   bool
	}{
		{WindowsAMD64, "\xff\x25\x10\x00\x00\x00", 0x1000, 0x1016, true},
		{WindowsAMD64, "\xff\x25\xf0\xff\xff\xff", 0x1000, 0xff6, true},
		{WindowsAMD64, "\x48\xff\x25\x10\x00\x00\x00", 0x1000, 0x1017, true},
		{WindowsAMD64, "\xff\x15\x10\x00\x00\x00", 0x1000, 0, false}, // a call
		{WindowsAMD64, "\xff\x25\x10\x00\x00", 0x1000, 0, false},
		{WindowsARM64, "\x30\x00\x00\xd0\x10\x0e\x41\xf9\x00\x02\x1f\xd6", 0x1234, 0x7000 + 0x218, true}, // adrp x16, #0x6000
		{WindowsARM64, "\xf0\xff\xff\xf0\x10\x02\x40\xf9\x00\x02\x1f\xd6", 0x11000, 0x10000, true},       // adrp x16, #-0x1000
		{WindowsARM64, "\x30\x00\x00\xd0\x10\x0e\x41\xf9\x20\x02\x1f\xd6", 0x1234, 0, false},             // br x17
		{WindowsARM64, "\x30\x00\x00\xd0\x10\x0e\x41\xf9", 0x1234, 0, false},
		{ARM, "\x42\xf2\x18\x0c\xc4\xf2\x01\x0c\xdc\xf8\x00\xf0", 0x1000, 0x40012018, true}, // movw r12, #0x2018; movt r12, #0x4001
		{ARM, "\x4a\xf6\xff\x7c\xc1\xf2\x00\x0c\xdc\xf8\x00\xf0", 0x1000, 0x1000afff, true}, // movw r12, #0xafff; movt r12, #0x1000
		{ARM, "\x42\xf2\x18\x0c\xc4\xf2\x01\x0c\xdc\xf8\x04\xf0", 0x1000, 0, false},         // pc, [r12, #4]
		{ARM, "\x42\xf2\x18\x0d\xc4\xf2\x01\x0c\xdc\xf8\x00\xf0", 0x1000, 0, false},         // movw r13
		{AMD64, "\xff\x25\x10\x00\x00\x00", 0x1000, 0, false},
	} {
		slot, ok := c.m.ImportThunk([]byte(c.code), c.at)
		if ok != c.ok || ok && slot != c.slot {
			t.Errorf("%s: % x at %#x: %#x, %v; want %#x, %v", c.m.Name, c.code, c.at, slot, ok, c.slot, c.ok)
		}
	}
}
