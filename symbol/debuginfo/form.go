package debuginfo

// Tags, attributes and forms in use (DWARF 5, sections 7.5.3 to 7.5.6); GNU's are from binutils' dwarf2.def.
const (
	DW_TAG_lexical_block      = 0x0b
	DW_TAG_compile_unit       = 0x11
	DW_TAG_inlined_subroutine = 0x1d
	DW_TAG_module             = 0x1e
	DW_TAG_subprogram         = 0x2e
	DW_TAG_namespace          = 0x39

	DW_AT_sibling           = 0x01
	DW_AT_name              = 0x03
	DW_AT_stmt_list         = 0x10
	DW_AT_low_pc            = 0x11
	DW_AT_high_pc           = 0x12
	DW_AT_comp_dir          = 0x1b
	DW_AT_abstract_origin   = 0x31
	DW_AT_decl_line         = 0x3b
	DW_AT_specification     = 0x47
	DW_AT_entry_pc          = 0x52
	DW_AT_ranges            = 0x55
	DW_AT_call_column       = 0x57
	DW_AT_call_file         = 0x58
	DW_AT_call_line         = 0x59
	DW_AT_linkage_name      = 0x6e
	DW_AT_str_offsets_base  = 0x72
	DW_AT_addr_base         = 0x73
	DW_AT_rnglists_base     = 0x74
	DW_AT_dwo_name          = 0x76
	DW_AT_MIPS_linkage_name = 0x2007
	DW_AT_GNU_dwo_name      = 0x2130
	DW_AT_GNU_dwo_id        = 0x2131
	DW_AT_GNU_ranges_base   = 0x2132
	DW_AT_GNU_addr_base     = 0x2133

	DW_FORM_addr           = 0x01
	DW_FORM_block2         = 0x03
	DW_FORM_block4         = 0x04
	DW_FORM_data2          = 0x05
	DW_FORM_data4          = 0x06
	DW_FORM_data8          = 0x07
	DW_FORM_string         = 0x08
	DW_FORM_block          = 0x09
	DW_FORM_block1         = 0x0a
	DW_FORM_data1          = 0x0b
	DW_FORM_flag           = 0x0c
	DW_FORM_sdata          = 0x0d
	DW_FORM_strp           = 0x0e
	DW_FORM_udata          = 0x0f
	DW_FORM_ref_addr       = 0x10
	DW_FORM_ref1           = 0x11
	DW_FORM_ref2           = 0x12
	DW_FORM_ref4           = 0x13
	DW_FORM_ref8           = 0x14
	DW_FORM_ref_udata      = 0x15
	DW_FORM_indirect       = 0x16
	DW_FORM_sec_offset     = 0x17
	DW_FORM_exprloc        = 0x18
	DW_FORM_flag_present   = 0x19
	DW_FORM_strx           = 0x1a
	DW_FORM_addrx          = 0x1b
	DW_FORM_ref_sup4       = 0x1c
	DW_FORM_strp_sup       = 0x1d
	DW_FORM_data16         = 0x1e
	DW_FORM_line_strp      = 0x1f
	DW_FORM_ref_sig8       = 0x20
	DW_FORM_implicit_const = 0x21
	DW_FORM_loclistx       = 0x22
	DW_FORM_rnglistx       = 0x23
	DW_FORM_ref_sup8       = 0x24
	DW_FORM_strx1          = 0x25
	DW_FORM_strx2          = 0x26
	DW_FORM_strx3          = 0x27
	DW_FORM_strx4          = 0x28
	DW_FORM_addrx1         = 0x29
	DW_FORM_addrx2         = 0x2a
	DW_FORM_addrx3         = 0x2b
	DW_FORM_addrx4         = 0x2c
	DW_FORM_GNU_addr_index = 0x1f01
	DW_FORM_GNU_str_index  = 0x1f02
	DW_FORM_GNU_ref_alt    = 0x1f20
	DW_FORM_GNU_strp_alt   = 0x1f21
)

// An encoding is what the sizes of forms depend on.
type encoding struct {
	version  uint16
	addrSize uint8
	offSize  uint8
}

// A value is an attribute's: a number, an offset or an index, as the form says. For DW_FORM_string it is the string's offset
// in the section, for blocks it is nothing. Form 0 is no value.
type value struct {
	form uint16
	u    uint64
}

// Sizes of forms that are no numbers of bytes.
const (
	sizeAddr = -1 - iota
	sizeOff
	sizeRef // DW_FORM_ref_addr: an address in version 2
	sizeVar // by the contents
)

func formSize(form uint16) int {
	switch form {
	case DW_FORM_flag_present, DW_FORM_implicit_const:
		return 0
	case DW_FORM_data1, DW_FORM_ref1, DW_FORM_flag, DW_FORM_strx1, DW_FORM_addrx1:
		return 1
	case DW_FORM_data2, DW_FORM_ref2, DW_FORM_strx2, DW_FORM_addrx2:
		return 2
	case DW_FORM_strx3, DW_FORM_addrx3:
		return 3
	case DW_FORM_data4, DW_FORM_ref4, DW_FORM_strx4, DW_FORM_addrx4, DW_FORM_ref_sup4:
		return 4
	case DW_FORM_data8, DW_FORM_ref8, DW_FORM_ref_sig8, DW_FORM_ref_sup8:
		return 8
	case DW_FORM_data16:
		return 16
	case DW_FORM_addr:
		return sizeAddr
	case DW_FORM_strp, DW_FORM_line_strp, DW_FORM_sec_offset, DW_FORM_strp_sup, DW_FORM_GNU_ref_alt, DW_FORM_GNU_strp_alt:
		return sizeOff
	case DW_FORM_ref_addr:
		return sizeRef
	}
	return sizeVar
}

// value reads an attribute. An unknown form is the end of what can be read.
func (c *cursor) value(e *encoding, form uint16, implicit int64) value {
	if form == DW_FORM_indirect {
		if form = uint16(min(c.uleb(), 0xffff)); form == DW_FORM_indirect || form == DW_FORM_implicit_const {
			c.fail()
			return value{}
		}
	}
	v := value{form: form}
	switch form {
	case DW_FORM_data1, DW_FORM_ref1, DW_FORM_flag, DW_FORM_strx1, DW_FORM_addrx1:
		v.u = uint64(c.u8())
	case DW_FORM_data2, DW_FORM_ref2, DW_FORM_strx2, DW_FORM_addrx2:
		v.u = c.uint(2)
	case DW_FORM_strx3, DW_FORM_addrx3:
		v.u = c.uint(3)
	case DW_FORM_data4, DW_FORM_ref4, DW_FORM_strx4, DW_FORM_addrx4, DW_FORM_ref_sup4:
		v.u = c.uint(4)
	case DW_FORM_data8, DW_FORM_ref8, DW_FORM_ref_sig8, DW_FORM_ref_sup8:
		v.u = c.uint(8)
	case DW_FORM_data16:
		c.skip(16)
	case DW_FORM_addr:
		v.u = c.uint(int(e.addrSize))
	case DW_FORM_strp, DW_FORM_line_strp, DW_FORM_sec_offset, DW_FORM_strp_sup, DW_FORM_GNU_ref_alt, DW_FORM_GNU_strp_alt:
		v.u = c.uint(int(e.offSize))
	case DW_FORM_ref_addr:
		if e.version == 2 {
			v.u = c.uint(int(e.addrSize))
		} else {
			v.u = c.uint(int(e.offSize))
		}
	case DW_FORM_udata, DW_FORM_ref_udata, DW_FORM_strx, DW_FORM_addrx, DW_FORM_loclistx, DW_FORM_rnglistx, DW_FORM_GNU_addr_index, DW_FORM_GNU_str_index:
		v.u = c.uleb()
	case DW_FORM_sdata:
		v.u = uint64(c.sleb())
	case DW_FORM_string:
		v.u = uint64(c.off)
		c.str()
	case DW_FORM_block1:
		c.skip(uint64(c.u8()))
	case DW_FORM_block2:
		c.skip(c.uint(2))
	case DW_FORM_block4:
		c.skip(c.uint(4))
	case DW_FORM_block, DW_FORM_exprloc:
		c.skip(c.uleb())
	case DW_FORM_flag_present:
		v.u = 1
	case DW_FORM_implicit_const:
		v.u = uint64(implicit)
	default:
		c.fail()
	}
	return v
}

// number returns a constant, and whether v is one.
func (v value) number() (uint64, bool) {
	switch v.form {
	case DW_FORM_data1, DW_FORM_data2, DW_FORM_data4, DW_FORM_data8, DW_FORM_udata, DW_FORM_implicit_const:
		return v.u, true
	case DW_FORM_sdata:
		return v.u, int64(v.u) >= 0
	}
	return 0, false
}

// number32 returns a constant of 32 bits; 0 for anything else.
func (v value) number32() uint32 {
	n, _ := v.number()
	return uint32(n)
}

// offset returns an offset in a section: before DWARF 4 it had the form of a constant.
func (v value) offset() (uint64, bool) {
	switch v.form {
	case DW_FORM_sec_offset, DW_FORM_data4, DW_FORM_data8:
		return v.u, true
	}
	return 0, false
}
