package pclntab

import (
	"encoding/binary"
	"testing"

	"github.com/unspool/unspool/arch"
)

func FuzzTable(f *testing.F) {
	b := make([]byte, 192)
	binary.LittleEndian.PutUint32(b, uint32(Go120))
	b[6], b[7], b[8], b[24], b[32], b[56], b[64] = 1, 8, 1, 0x10, 72, 80, 96
	copy(b[72:], "main\x00")
	copy(b[80:], "\x00\x02\x02\x10\x03\x0e\x02\x00")
	binary.LittleEndian.PutUint32(b[100:], 16)
	binary.LittleEndian.PutUint32(b[104:], 64)
	b[96+16+16] = 1
	f.Add(b)
	tableOf := func(b []byte, m *arch.Machine) *Table {
		h, err := Parse(b, binary.LittleEndian)
		if err != nil {
			return nil
		}
		return newTable(h, m)
	}
	for _, m := range arch.Machines() {
		if t := tableOf(b, m); t == nil || len(t.Rows().Rows) != 4 {
			f.Fatalf("the seed has not its rows: %+v", t)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range arch.Machines() {
			tab := tableOf(b, m)
			if tab == nil {
				return
			}
			n := 0
			tab.Funcs(func(string, arch.Vaddr, arch.Vaddr) { n++ })
			if rows := len(tab.Rows().Rows); n > len(b)/8 || rows > len(b) {
				t.Errorf("%s: %d functions and %d rows in %d bytes", m.Name, n, rows, len(b))
			}
		}
	})
}
