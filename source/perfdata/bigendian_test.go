package perfdata

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

var bpf = regexp.MustCompile(`\(bpf_\w+\)`)

// TestBigEndian reads recordings as a big-endian machine would have written them: perf reads the same in them as in the originals, and so does this
// package.
func TestBigEndian(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "perf")
	for _, name := range []string{"dwarf", "two-events", "fp", "no-chain", "registers", "build-ids", "clock", "group", "tracepoint", "all-fields", "stream"} {
		t.Run(name, func(t *testing.T) {
			path := record(t, name)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b, err = oracle.BigEndian(b); err != nil {
				t.Fatal(err)
			}
			big := save(t, b)
			hide := "--no-inline"
			if slices.Contains([]string{"dwarf", "two-events", "stream"}, name) {
				hide = "--hide-call-graph" // it would take the stacks for those of a big-endian machine
			}
			script := func(path string) []byte {
				c := exec.Command("perf", "script", "-i", path, "-F", "comm,pid,tid,time,event,ip,dso", hide)
				var said bytes.Buffer
				c.Stderr = &said
				out, err := c.Output()
				if err != nil {
					t.Fatalf("perf script of %s, %d bytes, as recorded: %v, after %d bytes: %v\n%s", name, len(b), path != big, len(out), err, &said)
				}
				return out
			}
			// perf (6.1) does not swap KSYMBOL records: it has no names of code that the kernel has made.
			theirs := bpf.ReplaceAll(script(path), []byte("([unknown])"))
			if got := script(big); !bytes.Equal(theirs, got) {
				a, b := strings.Split(string(got), "\n"), strings.Split(string(theirs), "\n")
				i := 0
				for i < min(len(a), len(b)) && a[i] == b[i] {
					i++
				}
				t.Errorf("perf reads other lines from %d on:\n%q\nof the original:\n%q", i, a[max(i-3, 0):min(i+3, len(a))], b[max(i-3, 0):min(i+3, len(b))])
			}
			want, info, st, err := try(path)
			have, bigInfo, bigSt, bigErr := try(big)
			if err != nil || bigErr != nil || len(want) == 0 {
				t.Fatalf("%d samples, %v, %v", len(want), err, bigErr)
			}
			if !slices.Equal(want, have) {
				i := 0
				for i < min(len(want), len(have)) && want[i] == have[i] {
					i++
				}
				t.Errorf("%d samples, %d in the original; the first that differs is %d:\n%s\n%s", len(have), len(want), i, have[min(i, len(have)-1)], want[min(i, len(want)-1)])
			}
			if bigInfo.Arch != info.Arch || bigInfo.Hostname != info.Hostname || bigInfo.Damage != nil || bigSt.Bad > 0 || bigSt.Stops != st.Stops {
				t.Errorf("%q on %q, damage %v, %d bad, stops %v; want %q on %q, %v", bigInfo.Arch, bigInfo.Hostname, bigInfo.Damage, bigSt.Bad, bigSt.Stops, info.Arch, info.Hostname, st.Stops)
			}
		})
	}
}

// TestBigEndianEdges: short and lying records do not reach beyond themselves.
func TestBigEndianEdges(t *testing.T) {
	d := source.NewDecoder()
	a := source.Attr{SampleType: ^uint64(0) &^ source.SampleIdentifier, SampleRegsUser: ^uint64(0), SampleRegsIntr: 3, Flags: source.FlagSampleIDAll, ReadFormat: 15, BranchSampleType: ^uint64(0)}
	d.AddAttr(&a, nil, "")
	for typ := range byte(25) {
		for n := 8; n < 600; n += 3 {
			for _, fill := range []string{"\x00", "\x01", "\xff", "\x00\x00\x00\x00\x00\x00\x00\x10"} {
				b := []byte(strings.Repeat(fill, n))[:n:n]
				copy(b, []byte{0, 0, 0, typ, 0, 2, byte(n >> 8), byte(n)})
				d.Swap(b)
				var r source.Record
				_ = d.Decode(b, &r)
			}
		}
	}
	for n := range 200 {
		for _, size := range []byte{0, 1, 64, 136, 255} {
			b := make([]byte, n)
			if n > 7 {
				b[7] = size
			}
			if got := source.SwapAttr(b); got > n {
				t.Fatalf("%d bytes of %d", got, n)
			}
		}
	}
}
