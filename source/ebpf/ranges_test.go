package ebpf

import (
	"reflect"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// TestRanges: a mapping begins with what lies on the same page of the file before its segment, as lld lays it out; and is cut
// where a stack begins and where linkage tables are.
func TestRanges(t *testing.T) {
	code := &unwind.Code{
		Machine:  arch.AMD64,
		Segments: []unwind.Segment{{Off: 0x690, Size: 0x1000, Vaddr: 0x1690}},
		Terminal: []unwind.Range{{Lo: 0x1690, Hi: 0x16b0}},
		Injected: []unwind.Range{{Lo: 0x2000, Hi: 0x2010}},
		Forks:    []unwind.Range{{Lo: 0x2100, Hi: 0x2110}},
		PLT:      []unwind.PLTRange{{Range: unwind.Range{Lo: 0x2600, Hi: 0x2680}, Lazy: true}},
	}
	m := unwind.NewModule("/bin/prog", "", func(*unwind.Module) *unwind.Code { return code })
	blind := unwind.NewModule("//anon", "", func(*unwind.Module) *unwind.Code { return nil })
	space := unwind.NewSpace(unwind.Mapping{Lo: 0x401000, Hi: 0x403000, Module: m}, unwind.Mapping{Lo: 0x500000, Hi: 0x501000, Module: blind})
	got := Ranges(space, func(x *unwind.Module) uint32 {
		if x == m {
			return 7
		}
		return 0
	})
	const bias = 0x400000
	want := []Range{
		{Lo: 0x401000, Hi: 0x401690, Kind: Code},
		{Lo: 0x401690, Hi: 0x4016b0, Bias: bias, Table: 7, Kind: Terminal},
		{Lo: 0x4016b0, Hi: 0x402000, Bias: bias, Table: 7, Kind: Code},
		{Lo: 0x402000, Hi: 0x402010, Bias: bias, Table: 7, Kind: Injected},
		{Lo: 0x402010, Hi: 0x402100, Bias: bias, Table: 7, Kind: Code},
		{Lo: 0x402100, Hi: 0x402110, Bias: bias, Table: 7, Kind: Forks},
		{Lo: 0x402110, Hi: 0x402600, Bias: bias, Table: 7, Kind: Code},
		{Lo: 0x402600, Hi: 0x402680, Bias: bias, Table: 7, Kind: LazyPLT},
		{Lo: 0x402680, Hi: 0x402690, Bias: bias, Table: 7, Kind: Code},
		{Lo: 0x402690, Hi: 0x403000, Kind: Code},
		{Lo: 0x500000, Hi: 0x501000, Kind: Code},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %#x\nwant %#x", got, want)
	}
}
