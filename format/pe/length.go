package pe

// Operands behind an opcode, by the characters of the maps below (Intel SDM, volume 2, appendix A; 64-bit mode).
//
//	.  none           m  ModR/M               M  ModR/M, 8 bits      Z  ModR/M, 16 or 32 bits
//	b  8 bits         w  16 bits              z  16 or 32 bits       v  16, 32 or 64 bits
//	d  32 bits        o  an address           e  16 and 8 bits       3  group 3: F6 and F7
//	x  no instruction, or a prefix, or a map
const (
	oneByte = "mmmmbzxxmmmmbzxxmmmmbzxxmmmmbzxxmmmmbzxxmmmmbzxxmmmmbzxxmmmmbzxx" + // 00
		"xxxxxxxxxxxxxxxx" + "................" + "xxxmxxxxzZbM...." + "bbbbbbbbbbbbbbbb" + // 40
		"MZxMmmmmmmmmmmmm" + "..........x....." + "oooo....bz......" + "bbbbbbbbvvvvvvvv" + // 80
		"MMw.xxMZe.w..bx." + "mmmmxxx.mmmmmmmm" + "bbbbbbbbddxb...." + "x.xx..33......mm" // c0
	twoByte = "mmmmx.....x.xm.M" + "mmmmmmmmmmmmmmmm" + "mmmmxxxxmmmmmmmm" + "........xxxxxxxx" + // 00
		"mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "MMMMmmm.mmmmmmmm" + // 40
		"dddddddddddddddd" + "mmmmmmmmmmmmmmmm" + "...mMmxx...mMmmm" + "mmmmmmmmmmMmmmmm" + // 80
		"mmMmMMMm........" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" + "mmmmmmmmmmmmmmmm" // c0
)

// maxLength is how long an instruction can be.
const maxLength = 15

// length returns how many bytes the instruction at the beginning of b has; 0 where there is none that is known, or where it is cut off.
func length(b []byte) int {
	b = b[:min(len(b), maxLength)]
	wide, addr32, rexW := false, false, false
	i := 0
prefixes:
	for ; i < len(b); i++ {
		switch b[i] {
		case 0x66:
			wide = true
		case 0x67:
			addr32 = true
		case 0xf0, 0xf2, 0xf3, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65:
		default:
			break prefixes
		}
	}
	if i < len(b) && b[i]&0xf0 == 0x40 {
		rexW = b[i]&8 != 0
		i++
	}
	at := func(k int) byte { // what lies behind b makes the instruction too long for it
		if k < len(b) {
			return b[k]
		}
		return 0
	}
	op, kind := at(i), byte(0)
	i++
	mapped := func(m byte) byte { // of an opcode map, as VEX and EVEX number them
		switch m {
		case 1:
			return twoByte[op]
		case 3:
			return 'M'
		}
		return 'm'
	}
	switch kind = oneByte[op]; {
	case op == 0x0f:
		op = at(i)
		i++
		switch kind = twoByte[op]; op {
		case 0x38:
			kind = 'm'
			i++
		case 0x3a:
			kind = 'M'
			i++
		}
	case op == 0xc5: // VEX of two bytes
		op = at(i + 1)
		i += 2
		kind = mapped(1)
	case op == 0xc4, op == 0x62: // VEX of three bytes, EVEX
		m := at(i) & 0x1f
		i += 2
		if op == 0x62 {
			m &= 7
			i++
		}
		op = at(i)
		i++
		kind = mapped(m)
	case op == 0x8f && at(i)&0x38 != 0: // XOP
		m := at(i) & 0x1f
		i += 3
		switch kind = 'm'; m {
		case 8:
			kind = 'M'
		case 10:
			kind = 'D'
		}
	}
	modrm := byte(0)
	switch kind {
	case 'm', 'M', 'Z', '3', 'D':
		modrm = at(i)
		mod, rm := modrm>>6, modrm&7
		i++
		base := rm
		if mod != 3 && rm == 4 {
			base = at(i) & 7
			i++
		}
		switch {
		case mod == 1:
			i++
		case mod == 2, mod == 0 && base == 5:
			i += 4
		}
	}
	z := 4
	if wide && !rexW {
		z = 2
	}
	switch kind {
	case '.', 'm':
	case 'b', 'M':
		i++
	case 'w':
		i += 2
	case 'e':
		i += 3
	case 'z', 'Z':
		i += z
	case 'd', 'D':
		i += 4
	case 'v':
		if rexW {
			z = 8
		}
		i += z
	case 'o':
		if i += 8; addr32 {
			i -= 4
		}
	case '3':
		if modrm&0x30 == 0 { // test
			if op == 0xf6 {
				z = 1
			}
			i += z
		}
	default:
		return 0
	}
	if i > len(b) {
		return 0
	}
	return i
}
