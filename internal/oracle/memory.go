package oracle

// Memory is the memory of a process that a test makes up: pieces by address.
type Memory map[uint64][]byte

// Read copies memory from an address on, and says whether all of b is in one piece.
func (m Memory) Read(addr uint64, b []byte) bool {
	for lo, piece := range m {
		if off := addr - lo; off < uint64(len(piece)) && uint64(len(b)) <= uint64(len(piece))-off {
			copy(b, piece[off:])
			return true
		}
	}
	return false
}
