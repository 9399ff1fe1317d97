package corefile_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// recording writes a stream as perf record does on a machine that calls itself uname, with a sample of each thread of a core: its registers, and its
// stack as far as a sample has room.
func recording(t *testing.T, c *corefile.File, uname string) string {
	t.Helper()
	m := c.Machine
	le := binary.LittleEndian
	attr := source.Attr{
		Type: source.TypeSoftware, SampleType: source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCallchain | source.SampleRegsUser | source.SampleStackUser,
		Flags: source.FlagSampleIDAll, SampleRegsUser: source.UserRegsMask(m), SampleStackUser: 1 << 15,
	}
	rec := func(b []byte, typ uint32, misc uint16, body []byte) []byte {
		for len(body)%8 != 0 {
			body = append(body, 0)
		}
		b = le.AppendUint16(le.AppendUint16(le.AppendUint32(b, typ), misc), uint16(8+len(body)))
		return append(b, body...)
	}
	b := le.AppendUint64([]byte("PERFILE2"), 16)
	b = rec(b, 64, 0, attr.AppendSize(nil, source.AttrSizeVer5))
	const featArch = 6
	b = rec(b, 80, 0, append(le.AppendUint32(le.AppendUint64(nil, featArch), uint32(len(uname)+1)), uname+"\x00"...))
	trailer := func(body []byte, tid int) []byte { // TID, time
		for len(body)%8 != 0 {
			body = append(body, 0)
		}
		return le.AppendUint64(le.AppendUint32(le.AppendUint32(body, uint32(c.PID)), uint32(tid)), 1)
	}
	for _, x := range c.Space.Mappings() {
		body := le.AppendUint32(le.AppendUint32(nil, uint32(c.PID)), uint32(c.PID))
		for _, v := range []uint64{uint64(x.Lo), uint64(x.Hi - x.Lo), x.Off} {
			body = le.AppendUint64(body, v)
		}
		b = rec(b, source.RecordMmap, source.MiscUser, trailer(append(body, x.Module.Path+"\x00"...), c.PID))
	}
	for i := range c.Threads {
		s := &c.Threads[i].Snapshot
		sp := s.Regs[m.Slot(m.SP)]
		var stack []byte
		for at := sp; len(stack) < int(attr.SampleStackUser); at += m.WordSize() {
			v, ok := s.Mem.Load(at)
			if !ok {
				break
			}
			order := binary.AppendByteOrder(le)
			if m.BigEndian {
				order = binary.BigEndian
			}
			if m.Word == 4 {
				stack = order.AppendUint32(stack, uint32(v))
			} else {
				stack = order.AppendUint64(stack, v)
			}
		}
		stack = stack[:len(stack)&^7]
		r := source.Record{PID: int32(c.PID), TID: int32(c.Threads[i].TID), Time: uint64(2 + i), Misc: source.MiscUser, IP: s.PC}
		b = source.AppendCopy(b, &attr, &r, nil, m, s.Regs[:], stack)
	}
	if m.BigEndian {
		var err error
		if b, err = oracle.BigEndian(b); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "perf.data")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// recorded compares the stacks of a core, which TestForeign has judged, with those of a recording of the same threads, read as report does.
func (f *foreign) recorded(t *testing.T, mods *modules.Set, c *corefile.File, p *stacks.Process) {
	t.Helper()
	for _, uname := range f.m.Unames[:min(1, len(f.m.Unames))] {
		data, err := record.Open(recording(t, c, uname), record.FileOptions{Mods: mods, Namer: func(o names.Options) *names.Namer { return names.New(o) }})
		if err != nil {
			t.Fatal(err)
		}
		n, frames := 0, 0
		err = data.Session.Run(context.Background(), func(x *profile.Sample) error {
			i := slices.IndexFunc(p.Threads, func(th stacks.Thread) bool { return th.TID == int(x.TID) })
			n++
			want := &p.Threads[i]
			var have, should []string
			for j := range x.User {
				have = append(have, fmt.Sprintf("%#x %v", uint64(x.User[j].PC), x.User[j].How))
			}
			for j := range want.Frames {
				should = append(should, fmt.Sprintf("%#x %v", uint64(want.Frames[j].PC), want.Frames[j].How))
			}
			stop := want.Stop
			for j := range want.Frames { // the core has the kernel's code for the return from signals; no recording has that of another machine
				if x := c.Space.Find(want.Frames[j].Addr()); x != nil && x.Module.VDSO && j+1 < len(should) {
					should, stop = should[:j+1], unwind.NoInfo
					break
				}
			}
			frames += len(have)
			if !slices.Equal(have, should) || x.Stop != stop {
				t.Errorf("%s, thread %d: %v, the core has %v\n%q\n%q", uname, x.TID, x.Stop, stop, have, should)
			}
			return nil
		})
		if err != nil || n != len(p.Threads) {
			t.Errorf("%s: %d samples, %v; notes %v", uname, n, err, data.Notes())
		}
		t.Logf("%s: %d stacks of %d frames equal", uname, n, frames)
		data.Close()
	}
	if len(f.m.Unames) == 0 {
		t.Errorf("%s has no name of uname", f.m.Name)
	}
	// On a machine that nothing is known of, nothing is walked, by another machine's registers least of all.
	data, err := record.Open(recording(t, c, "sparc64"), record.FileOptions{Mods: mods, Namer: func(o names.Options) *names.Namer { return names.New(o) }})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	n := 0
	err = data.Session.Run(context.Background(), func(x *profile.Sample) error {
		if n++; len(x.User) > 1 || x.Stop == unwind.Outermost {
			t.Errorf("sparc64: %v, %v", x.User, x.Stop)
		}
		return nil
	})
	said := fmt.Sprint(data.Notes())
	if err != nil || n != len(p.Threads) || !strings.Contains(said, "recorded on sparc64, where stacks cannot be walked: only callchains count") {
		t.Errorf("sparc64: %d samples, %v, %s", n, err, said)
	}
}
