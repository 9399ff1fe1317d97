package perfdata

import (
	"bufio"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// TestFields holds every field of every record against what perf script -D prints of it: its head line and, for
// samples, the lines that follow.
func TestFields(t *testing.T) {
	oracle.Long(t)
	eachRecording(t, func(t *testing.T, path string) {
		want := dump(t, path)
		f := openTest(t, path)
		var got, gotOrder, wantOrder []string
		emit := func(r *source.Record, comm string) {
			if s := recordText(f.dec, r, comm); s != "" {
				got = append(got, s)
			}
		}
		st := run(t, f, source.Options{
			Sample: func(s *source.Sample) error { emit(s.Record, s.Comm); return nil },
			Record: func(r *source.Record) error { emit(r, ""); return nil },
		})
		order := func(list []string) (out []string) {
			for _, s := range list {
				if strings.Contains(s, "PERF_RECORD_SAMPLE") {
					out = append(out, s[:strings.IndexByte(s, ' ')])
				}
			}
			return out
		}
		gotOrder, wantOrder = order(got), order(want)
		if len(wantOrder) == 0 || !slices.Equal(gotOrder, wantOrder) {
			t.Errorf("times of samples, in order:\ngot  %s\nwant %s", gotOrder, wantOrder)
		}
		if uint64(len(wantOrder)) != st.Samples {
			t.Errorf("%d samples, perf has %d", st.Samples, len(wantOrder))
		}
		slices.Sort(got)
		slices.Sort(want)
		bad := 0
		for len(got) > 0 || len(want) > 0 {
			switch {
			case len(want) == 0 || len(got) > 0 && got[0] < want[0]:
				t.Errorf("perf has none of\n%s", got[0])
				got, bad = got[1:], bad+1
			case len(got) == 0 || want[0] < got[0]:
				t.Errorf("perf has also\n%s", want[0])
				want, bad = want[1:], bad+1
			default:
				got, want = got[1:], want[1:]
			}
			if bad > 5 {
				t.FailNow()
			}
		}
	})
}

var headLine = regexp.MustCompile(`^(?:(-?\d+) )?(\d+) (?:0x[0-9a-f]+|0)(?:@\S+)? \[(0x[0-9a-f]+)\]: (PERF_RECORD_.*)$`)

// dump returns what perf script -D says of the kernel's records, each as text like recordText's.
func dump(t testing.TB, path string) (out []string) {
	text, _ := perf(t, "script", "-D", "-i", path)
	sample := false
	in := bufio.NewScanner(strings.NewReader(text))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := in.Text()
		if m := headLine.FindStringSubmatch(line); m != nil {
			sample = strings.HasPrefix(m[4], "PERF_RECORD_SAMPLE")
			kind, _, _ := strings.Cut(strings.TrimPrefix(m[4], "PERF_RECORD_"), " ")
			kind, _, _ = strings.Cut(kind, "(")
			kind, _, _ = strings.Cut(kind, ":")
			switch kind {
			case "SAMPLE", "MMAP", "MMAP2", "COMM", "FORK", "EXIT", "SWITCH", "SWITCH_CPU_WIDE", "LOST", "LOST_SAMPLES":
				out = append(out, fmt.Sprintf("%s [%s] %s", m[2], m[3], strings.TrimRight(m[4], " ")))
			default:
				sample = false
			}
			continue
		}
		s := strings.TrimSpace(line)
		switch {
		case !sample:
			continue
		case strings.HasPrefix(line, "... thread: "), strings.HasPrefix(line, " ... thread: "):
			sample = false // what follows is for people
			fallthrough
		case strings.HasPrefix(s, "..."), strings.HasPrefix(s, ". data_src"), strings.HasPrefix(s, ".. "):
			if strings.HasPrefix(s, "... ustack") {
				s, _, _ = strings.Cut(s, ",")
			}
			out[len(out)-1] += "\n" + s
		}
	}
	return out
}

// hx is C's %#lx.
func hx(v uint64) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%#x", v)
}

func choose(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}

var perfRegs = strings.Fields("AX BX CX DX SI DI BP SP IP FLAGS CS SS DS ES FS GS R8 R9 R10 R11 R12 R13 R14 R15")

func regsText(what string, abi, mask uint64, regs source.Words) string {
	if abi == source.ABINone {
		return ""
	}
	s := fmt.Sprintf("\n... %s regs: mask %#x ABI %s", what, mask, choose(abi == source.ABI64, "64-bit", "32-bit"))
	for i := range regs.Len() {
		n := bits.TrailingZeros64(mask)
		mask &= mask - 1
		s += fmt.Sprintf("\n.... %-5s 0x%016x", perfRegs[n], regs.At(i))
	}
	return s
}

func pageSize(v uint64) string {
	for _, x := range []struct {
		shift int
		name  string
	}{{30, "G"}, {20, "M"}, {10, "K"}} {
		if v >= 1<<x.shift {
			return fmt.Sprint(v>>x.shift, x.name)
		}
	}
	return "N/A"
}

// recordText is r as perf script -D prints it; "" for what that does not print.
func recordText(d *source.Decoder, r *source.Record, comm string) string {
	head := fmt.Sprintf("%d [%#x] PERF_RECORD_", r.Time, len(r.Raw))
	if !r.HasTime {
		head = fmt.Sprintf("%d [%#x] PERF_RECORD_", ^uint64(0), len(r.Raw))
	}
	switch r.Type {
	case source.RecordSample:
		return head + fmt.Sprintf("SAMPLE(IP, %#x): %d/%d: %s period: %d addr: %s", r.Misc, r.PID, r.TID, hx(r.IP), max(r.Period, 1), hx(r.Addr)) +
			sampleDetails(&d.Events()[r.Event].Attr, r) + fmt.Sprintf("\n... thread: %s:%d", comm, r.TID)
	case source.RecordMmap:
		return head + fmt.Sprintf("MMAP %d/%d: [%s(%s) @ %s]: %s %s", r.PID, r.TID, hx(r.Addr), hx(r.Len), hx(r.Pgoff), choose(r.Executable(), "x", "r"), r.Filename)
	case source.RecordMmap2:
		file := fmt.Sprintf("%02x:%02x %d %d", r.Maj, r.Min, r.Inode, r.InodeGen)
		if r.BuildID != nil {
			file = fmt.Sprintf("<%x>", r.BuildID)
		}
		return head + fmt.Sprintf("MMAP2 %d/%d: [%s(%s) @ %s %s]: %s%s%s%s %s", r.PID, r.TID, hx(r.Addr), hx(r.Len), hx(r.Pgoff), file,
			choose(r.Prot&1 != 0, "r", "-"), choose(r.Prot&2 != 0, "w", "-"), choose(r.Prot&4 != 0, "x", "-"), choose(r.MapFlags&1 != 0, "s", "p"), r.Filename)
	case source.RecordComm:
		return head + fmt.Sprintf("COMM%s: %s:%d/%d", choose(r.Exec(), " exec", ""), r.Comm, r.PID, r.TID)
	case source.RecordFork, source.RecordExit:
		return head + fmt.Sprintf("%s(%d:%d):(%d:%d)", choose(r.Type == source.RecordFork, "FORK", "EXIT"), r.PID, r.TID, r.PPID, r.PTID)
	case source.RecordSwitch:
		return head + "SWITCH " + choose(r.Misc&(1<<13) == 0, "IN", choose(r.Misc&(1<<14) != 0, "OUT preempt", "OUT"))
	case source.RecordLost:
		return head + fmt.Sprintf("LOST: id:%d: lost:%d", r.ID, r.Lost)
	case source.RecordLostSamples:
		id := r.ID
		if id == 0 { // where records do not say their event, perf's is -1
			id--
		}
		return head + fmt.Sprintf("LOST_SAMPLES: id:%d: lost samples :%d", id, r.Lost)
	}
	return ""
}

func sampleDetails(a *source.Attr, r *source.Record) string {
	var s strings.Builder
	has := func(bit uint64) bool { return a.SampleType&bit != 0 }
	if has(source.SampleCallchain) {
		fmt.Fprintf(&s, "\n... FP chain: nr:%d", r.Callchain.Len())
		for i := range r.Callchain.Len() {
			fmt.Fprintf(&s, "\n..... %2d: %016x", i, r.Callchain.At(i))
		}
	}
	s.WriteString(regsText("user", r.UserABI, r.UserRegsMask, r.UserRegs))
	s.WriteString(regsText("intr", r.IntrABI, a.SampleRegsIntr, r.IntrRegs))
	if has(source.SampleStackUser) {
		fmt.Fprintf(&s, "\n... ustack: size %d", r.StackDyn)
	}
	if has(source.SampleWeightStruct) {
		fmt.Fprintf(&s, "\n... weight: %d,%#x,%#x", uint32(r.Weight), uint16(r.Weight>>32), r.Weight>>48)
	} else if has(source.SampleWeight) {
		fmt.Fprintf(&s, "\n... weight: %d", r.Weight)
	}
	if has(source.SampleDataSrc) {
		fmt.Fprintf(&s, "\n. data_src: %#x", r.DataSrc)
	}
	if has(source.SamplePhysAddr) {
		fmt.Fprintf(&s, "\n.. phys_addr: %#x", r.PhysAddr)
	}
	if has(source.SampleDataPageSize) {
		fmt.Fprintf(&s, "\n.. data page size: %s", pageSize(r.DataPageSize))
	}
	if has(source.SampleCodePageSize) {
		fmt.Fprintf(&s, "\n.. code page size: %s", pageSize(r.CodePageSize))
	}
	if has(source.SampleRead) && a.ReadFormat&source.FormatGroup != 0 {
		w := source.Words(r.Read)
		per := 1 + bits.OnesCount64(a.ReadFormat&(source.FormatID|source.FormatLost))
		at := 1 + bits.OnesCount64(a.ReadFormat&(source.FormatTotalTimeEnabled|source.FormatTotalTimeRunning))
		s.WriteString("\n... sample_read:")
		fmt.Fprintf(&s, "\n.... group nr %d", w.At(0))
		for ; at+per <= w.Len(); at += per {
			lost := uint64(0)
			if per > 2 {
				lost = w.At(at + 2)
			}
			fmt.Fprintf(&s, "\n..... id %016x, value %016x, lost %d", w.At(at+1), w.At(at), lost)
		}
	}
	return s.String()
}
