package rowstest

// Numbers is memory made of numbers that look random, of which one in sixteen cannot be read. C programs of tests have the
// same: runtime/test/testdata/core.c, source/ebpf/testdata/user.c.
type Numbers uint64

// Read8 implements rows.Reader.
func (seed Numbers) Read8(addr uint64) (uint64, bool) {
	h := Mix(addr ^ uint64(seed))
	return Mix(h), h>>60 != 0
}

// Mix is a bijection that spreads every bit (the finalizer of SplitMix64).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
