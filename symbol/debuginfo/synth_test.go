package debuginfo

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/module"
)

// elfFile returns a 64-bit little-endian executable for x86-64 that has these sections.
func elfFile(sections map[string][]byte) []byte {
	le := binary.LittleEndian
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	le.PutUint16(b[16:], 2)
	le.PutUint16(b[18:], 62)
	le.PutUint32(b[20:], 1)
	names := []byte{0}
	var headers []byte
	add := func(name string, typ uint32, off, size int) {
		h := make([]byte, 64)
		le.PutUint32(h, uint32(len(names)))
		names = append(append(names, name...), 0)
		le.PutUint32(h[4:], typ)
		le.PutUint64(h[24:], uint64(off))
		le.PutUint64(h[32:], uint64(size))
		headers = append(headers, h...)
	}
	add("", 0, 0, 0)
	for _, name := range slices.Sorted(maps.Keys(sections)) {
		typ := uint32(1) // SHT_PROGBITS
		if strings.HasPrefix(name, ".note") {
			typ = 7 // SHT_NOTE
		}
		add(name, typ, len(b), len(sections[name]))
		b = append(b, sections[name]...)
	}
	add(".shstrtab", 3, len(b), len(names)+len(".shstrtab")+1) // SHT_STRTAB
	b = append(b, names...)
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], uint16(len(headers)/64))
	le.PutUint16(b[62:], uint16(len(headers)/64-1))
	return append(b, headers...)
}

func synthImage(t testing.TB, name string, sections map[string][]byte) *module.Image {
	t.Helper()
	img, err := module.New(name, elfFile(sections))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func u16(v uint64) []byte  { return binary.LittleEndian.AppendUint16(nil, uint16(v)) }
func u32(v uint64) []byte  { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
func u64(v uint64) []byte  { return binary.LittleEndian.AppendUint64(nil, v) }
func uleb(v uint64) []byte { return binary.AppendUvarint(nil, v) }

func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }

// abbrevBytes writes an abbreviation: its code, tag, and pairs of attribute and form.
func abbrevBytes(code, tag uint64, children byte, pairs ...uint64) []byte {
	b := cat(uleb(code), uleb(tag), []byte{children})
	for _, p := range pairs {
		b = append(b, uleb(p)...)
	}
	return append(b, 0, 0)
}

// unit4 writes a unit of DWARF 4, whose abbreviations are at offset 0. Its first DIE is at offset 11.
func unit4(dies ...[]byte) []byte {
	body := cat(u16(4), u32(0), []byte{8}, cat(dies...))
	return cat(u32(uint64(len(body))), body)
}

// Abbreviations of hostile units.
var synthAbbrevs = cat(
	abbrevBytes(1, DW_TAG_compile_unit, 1, DW_AT_low_pc, DW_FORM_addr, DW_AT_high_pc, DW_FORM_data8, DW_AT_stmt_list, DW_FORM_sec_offset),
	abbrevBytes(2, DW_TAG_subprogram, 1, DW_AT_low_pc, DW_FORM_addr, DW_AT_high_pc, DW_FORM_data8, DW_AT_abstract_origin, DW_FORM_ref4),
	abbrevBytes(3, DW_TAG_subprogram, 0, DW_AT_name, DW_FORM_string, DW_AT_abstract_origin, DW_FORM_ref4),
	abbrevBytes(4, DW_TAG_namespace, 1, DW_AT_sibling, DW_FORM_ref4),
	abbrevBytes(5, DW_TAG_subprogram, 1, DW_AT_sibling, DW_FORM_ref4, DW_AT_ranges, DW_FORM_sec_offset, DW_AT_name, DW_FORM_string),
	abbrevBytes(6, DW_TAG_inlined_subroutine, 1, DW_AT_ranges, DW_FORM_sec_offset),
	abbrevBytes(7, DW_TAG_lexical_block, 1),
	abbrevBytes(8, DW_TAG_subprogram, 0, DW_AT_low_pc, DW_FORM_indirect),
	[]byte{0},
)

// synthRoot is the first DIE of a unit at 0x1000, 0x1000 bytes long.
var synthRoot = cat(uleb(1), u64(0x1000), u64(0x1000), u32(0))
