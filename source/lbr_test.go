package source

import (
	"context"
	"slices"
	"testing"
)

// TestCallStackBranches: of a recording with --call-graph lbr, the user part of a stack is the place of the sample and the calls that the
// processor kept (PERF_SAMPLE_BRANCH_CALL_STACK), whatever the kernel found by frame pointers; the kernel's part stays. Branches of other
// kinds are no stack.
func TestCallStackBranches(t *testing.T) {
	const user, noFlags, anyBranch = 1 << 0, 1 << 14, 1 << 3
	branches := words(0x1105, 0x2000, 0, 0x1055, 0x1100, 0, 0x1008, 0x1050, 0)
	for _, c := range []struct {
		kind         uint64
		misc         uint16
		chain        []uint64
		branches     []byte
		user, kernel []uint64
	}{
		{user | BranchCallStack | noFlags, MiscUser, []uint64{ContextUser, 0x2004, 0x9999}, branches, []uint64{0x2004, 0x1105, 0x1055, 0x1008}, nil},
		{user | BranchCallStack, MiscKernel, []uint64{ContextKernel, 1<<63 + 5, ContextUser, 0x2004}, branches, []uint64{0x2004, 0x1105, 0x1055, 0x1008}, []uint64{1<<63 + 5}},
		{user | BranchCallStack, MiscUser, nil, branches, []uint64{0x2004, 0x1105, 0x1055, 0x1008}, nil},
		{user | BranchCallStack, MiscUser, []uint64{ContextUser, 0x2004, 0x9999}, words(0x1105, 0x2000, 0, 0, 0, 0), []uint64{0x2004, 0x1105}, nil},
		{user | BranchCallStack, MiscUser, []uint64{ContextUser, 0x2004, 0x1106}, nil, []uint64{0x2004, 0x1105}, nil}, // by frame pointers, a return address
		{user | anyBranch, MiscUser, []uint64{ContextUser, 0x2004}, branches, []uint64{0x2004}, nil},
	} {
		a := testAttr
		a.SampleType |= SampleBranchStack
		a.BranchSampleType = c.kind
		s := &fakeStream{dec: NewDecoder()}
		s.dec.AddAttr(&a, nil, "lbr")
		body := words(0x2004, 7|7<<32, 100, uint64(len(c.chain)))
		body = append(append(append(body, words(c.chain...)...), words(uint64(len(c.branches)/24))...), c.branches...)
		raw := finishRecord(append(appendHeader(nil, RecordSample, c.misc), body...), 0)
		s.records = [][]byte{raw}
		n := 0
		_, err := Run(context.Background(), s, Options{Sample: func(x *Sample) error {
			n++
			var got []uint64
			for i := range x.User {
				got = append(got, uint64(x.User[i].Addr()))
			}
			if !slices.Equal(got, c.user) || !slices.Equal(x.Kernel, c.kernel) {
				t.Errorf("%+v:\n got %#x, %#x", c, got, x.Kernel)
			}
			return nil
		}})
		if err != nil || n != 1 {
			t.Errorf("%d samples, %v", n, err)
		}
	}
}
