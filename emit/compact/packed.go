package compact

import (
	"slices"

	"github.com/unspool/unspool/rows"
)

// Packed rules are for machines that save more registers than 16 bytes have room for. Compilers put the saved registers of a function side by
// side, so four bits say where one lies, from a base on; and vector registers one behind the other, so the place of the first one is enough. In
// this file, numbers are in units of saves.

// firstRun returns the number of the run's first save. The return address, behind the run, has the same number among the others.
func (sh *shape) firstRun() int { return len(sh.saves) - 1 - sh.run }

// pack encodes the CFA's offset and the saves of s, and says whether they fit.
func (sh *shape) pack(rule []byte, s *rows.Set) bool {
	off := s.CFA.Off / sh.scale
	if s.CFA.Kind != rows.CFAReg || s.CFA.Off%sh.scale != 0 || off != int64(int16(off)) {
		return false
	}
	le.PutUint16(rule[packedOff:], uint16(off))
	if s.Outermost() || len(s.Rules) == 0 {
		return true
	}
	var at [maxPacked + maxRun]int64
	first, low := sh.firstRun(), int64(1)
	mask, runLow := uint64(0), int64(0)
	for _, r := range s.Rules {
		i := slices.Index(sh.saves, r.Of)
		if i < 0 || r.Kind != rows.Offset || r.Off%sh.scale != 0 || r.Off > 0 {
			return false
		}
		at[i] = r.Off / sh.scale
		mask |= 1 << i
		if i >= first && i < first+sh.run {
			runLow = min(runLow, at[i])
		} else {
			low = min(low, at[i])
		}
	}
	if low > 0 {
		low = runLow
	}
	base, aux, ok := packBase(low, off)
	if !ok {
		return false
	}
	rule[packedAux] = aux
	saves, n := uint64(0), len(sh.saves)
	for i := range n {
		k := i
		switch {
		case mask>>i&1 == 0:
			continue
		case i == n-1:
			k = first
		case i >= first:
			rule[packedRun] |= 1 << (i - first)
			continue
		}
		v := at[i] - base
		if v < 0 || v > 15 {
			return false
		}
		saves |= uint64(v)<<(4*k) | 1<<(maskShift+k)
	}
	le.PutUint64(rule[packedSaves:], saves)
	if rule[packedRun] == 0 {
		return true
	}
	for down := range int64(2) {
		place, fits := int64(0), true
		for i, seen := 0, false; i < sh.run; i++ {
			if rule[packedRun]>>i&1 == 0 {
				continue
			}
			v := at[first+i] - base
			p := v - int64(i)*(1-2*down) // where the first one is, or would be
			fits = fits && v >= minRun && p == int64(int8(p<<1))>>1 && (!seen || p == place)
			place, seen = p, true
		}
		if fits {
			rule[packedPlace] = byte(place<<1 | down)
			return true
		}
	}
	return false
}

// packBase returns a base that is not above low, and what a rule says of it. The CFA is off above its register.
func packBase(low, off int64) (base int64, aux byte, ok bool) {
	if k := (1 - low) / 2; k < baseOnReg {
		return -2 * k, byte(k), true
	}
	k := (low + off) >> 1
	base = 2*k - off
	return base, byte(k | baseOnReg), k >= 0 && k < baseOnReg && base >= minBase
}

// packedBase returns the base of a packed rule, from the CFA.
func packedBase(rule []byte) int64 {
	if aux := int64(rule[packedAux]); aux&baseOnReg == 0 {
		return -2 * aux
	} else {
		return 2*(aux&^baseOnReg) - int64(int16(le.Uint16(rule[packedOff:])))
	}
}

// packedSave returns where save i of a packed rule is, from the base.
func (sh *shape) packedSave(rule []byte, i int) int64 {
	first := sh.firstRun()
	if i >= first && i < first+sh.run {
		place := int64(int8(rule[packedPlace]))
		return place>>1 + int64(i-first)*(1-2*(place&1))
	}
	return int64(le.Uint64(rule[packedSaves:]) >> (4 * min(i, first)) & 15)
}

// checkPacked returns what is wrong with a packed rule of kindReg.
func (sh *shape) checkPacked(rule []byte) string {
	if base := packedBase(rule); base > 0 || base < minBase {
		return "a base out of bounds"
	}
	for i := range sh.run {
		if rule[packedRun]>>i&1 != 0 && sh.packedSave(rule, sh.firstRun()+i) < minRun {
			return "a run below its bound"
		}
	}
	return ""
}

// cfaOff returns the CFA's offset of a rule that is not wide, in bytes.
func (sh *shape) cfaOff(rule []byte) int64 {
	if sh.run > 0 {
		return int64(int16(le.Uint16(rule[packedOff:]))) * sh.scale
	}
	return int64(int32(le.Uint32(rule[ruleOff:])))
}

// base returns what the saves of a rule of kindReg are relative to, in bytes from the CFA.
func (sh *shape) base(rule []byte) int64 {
	if sh.run > 0 {
		return packedBase(rule) * sh.scale
	}
	return -baseUnit * int64(rule[ruleAux])
}

// save returns where save i of a rule is, in bytes from the base.
func (sh *shape) save(rule []byte, i int) int64 {
	if sh.run > 0 {
		return sh.packedSave(rule, i) * sh.scale
	}
	return int64(int8(rule[ruleHead+i])) * sh.scale
}
