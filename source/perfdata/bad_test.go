package perfdata

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// save writes b to a file.
func save(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "perf.data")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// try reads a recording to its end, wherever that is, and describes its samples.
func try(path string) (samples []string, info Info, st source.Stats, err error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, info, st, err
	}
	defer in.Close()
	f, err := New(in, path)
	if err != nil {
		return nil, info, st, err
	}
	defer f.Close()
	st, err = source.Run(context.Background(), f, source.Options{
		Ours:   f.Info().Ours,
		Mods:   nil,
		Sample: func(s *source.Sample) error { samples = append(samples, sampleText(s)); return nil },
		Record: func(*source.Record) error { return nil },
	})
	return samples, f.Info(), st, err
}

// A builder makes files by hand.
type builder struct {
	attr    source.Attr
	size    int // of the attr
	records []byte
}

var plainAttr = source.Attr{
	Type: source.TypeSoftware, SampleType: source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCallchain, Flags: source.FlagSampleIDAll,
}

func newBuilder() *builder { return &builder{attr: plainAttr, size: source.AttrSizeVer5} }

func rec(typ uint32, misc uint16, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, typ)
	b = binary.LittleEndian.AppendUint16(b, misc)
	return append(binary.LittleEndian.AppendUint16(b, uint16(8+len(body))), body...)
}

func (b *builder) add(typ uint32, body []byte) { b.records = append(b.records, rec(typ, 0, body)...) }

func (b *builder) sample(time uint64) {
	b.records = append(b.records, rec(source.RecordSample, source.MiscUser, appendWords(nil, []uint64{0x1000, 7 | 7<<32, time, 2, source.ContextUser, 0x1000}))...)
}

func (b *builder) attrBytes() []byte {
	return b.attr.AppendSize(nil, source.AttrSizeVer9)[:b.size]
}

func (b *builder) file() []byte {
	a := b.attrBytes()
	binary.LittleEndian.PutUint32(a[4:], uint32(b.size))
	n := uint64(len(a) + 16)
	out := appendWords([]byte(magic), []uint64{fileHeaderSize, n, fileHeaderSize, n, fileHeaderSize + n, uint64(len(b.records)), 0, 0, 0, 0, 0, 0})
	out = append(out, a...)
	out = appendWords(out, []uint64{0, 0})
	return append(out, b.records...)
}

func (b *builder) stream() []byte {
	a := b.attrBytes()
	binary.LittleEndian.PutUint32(a[4:], uint32(b.size))
	out := appendWords([]byte(magic), []uint64{pipeHeaderSize})
	out = append(out, rec(recordHeaderAttr, 0, a)...)
	return append(out, b.records...)
}

// TestOldAttrs reads files whose attrs are of any published size, as a perf of that time wrote them.
func TestOldAttrs(t *testing.T) {
	for _, size := range []int{64, 72, 80, 96, 104, 112, 120, 128, 136, 144} {
		b := newBuilder()
		b.size = size
		b.sample(5)
		for kind, file := range map[string][]byte{"file": b.file(), "stream": b.stream()} {
			samples, _, _, err := try(save(t, file))
			if err != nil || len(samples) != 1 || !strings.Contains(samples[0], "7/7 [0] 5: event 0 period 1 ip 0x1000, recorded") {
				t.Errorf("%s, attr of %d bytes: %v, %q", kind, size, err, samples)
			}
		}
	}
}

// TestRefused holds the errors for files that are none, or not for us.
func TestRefused(t *testing.T) {
	b := newBuilder()
	b.sample(5)
	good := b.file()
	change := func(off int, v uint64) []byte {
		x := bytes.Clone(good)
		binary.LittleEndian.PutUint64(x[off:], v)
		return x
	}
	for _, x := range []struct {
		name string
		b    []byte
		want error
		text string
	}{
		{"empty", nil, source.ErrTruncated, "not a recording: it is empty"},
		{"text", []byte("#!/bin/sh\necho hello, world\n"), source.ErrMalformed, `not a recording: it starts with "#!/bin/s"`},
		{"short text", []byte("hello\n"), source.ErrMalformed, `not a recording: it starts with "hello\n"`},
		{"short", good[:50], source.ErrTruncated, "the header"},
		{"magic only", good[:8], source.ErrTruncated, "ends in its header"}, {"three bytes", good[:3], source.ErrTruncated, "ends in its header"},
		{"big-endian", append([]byte("2ELIFREP"), good[8:]...), source.ErrMalformed, "a header of 7493989779944505344 bytes"},
		{"version 1", append([]byte("PERFFILE"), good[8:]...), source.ErrUnsupported, "Linux 2.6"},
		{"header size", change(8, 88), source.ErrMalformed, "88 bytes"},
		{"attr size", change(16, 8), source.ErrMalformed, "attributes of 8 bytes"},
		{"huge attr size", change(16, 1<<40), source.ErrMalformed, "attributes"},
		{"no attrs", change(32, 0), source.ErrMalformed, "no events"},
		{"attrs beyond", change(24, 1<<62), source.ErrTruncated, "the attributes at"},
		{"attrs too many", change(32, 1<<62), source.ErrTruncated, "the attributes at"},
		{"data beyond", change(40, 1<<62), source.ErrTruncated, "its records start"},
		{"IDs beyond", change(fileHeaderSize+112+8, 1<<50), source.ErrMalformed, "IDs"},
		{"stream without events", append(appendWords([]byte(magic), []uint64{16}), b.records[:0]...), source.ErrTruncated, "no events"},
	} {
		_, _, _, err := try(save(t, x.b))
		if !errors.Is(err, x.want) || !strings.Contains(fmt.Sprint(err), x.text) {
			t.Errorf("%s: %v, want %v with %q", x.name, err, x.want, x.text)
		}
	}
	for text, want := range map[string]string{"": "p: not a recording: it is empty", "hello": `p: not a recording: it starts with "hello"`, "PERF": "p: truncated: the file ends in its header"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.WriteString(text)
		w.Close()
		if _, err := New(r, "p"); fmt.Sprint(err) != want {
			t.Errorf("a pipe with %q: %v, want %s", text, err, want)
		}
		r.Close()
	}
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	if f, err := New(closed, "closed"); err == nil {
		t.Errorf("New reads a file that is not open, and finds %d bytes", f.size)
	}
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := New(dir, "dir"); !errors.Is(err, source.ErrUnsupported) {
		t.Errorf("a directory: %v", err)
	}
}

// TestDamaged holds that what comes before a damaged place is delivered, and the error says where it is.
func TestDamaged(t *testing.T) {
	b := newBuilder()
	for i := range uint64(10) {
		b.sample(i + 1)
	}
	file := b.file()
	head := len(file) - len(b.records)
	size := len(b.records) / 10
	check := func(name string, file []byte, n int, want error, text string) {
		t.Helper()
		samples, _, _, err := try(save(t, file))
		if len(samples) != n || !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %d samples, %v; want %d, %v with %q", name, len(samples), err, n, want, text)
		}
	}
	check("whole", file, 10, nil, "")
	check("cut in a record", file[:len(file)-10], 9, source.ErrTruncated, fmt.Sprintf("%#x", head+9*size))
	check("cut between records", file[:len(file)-size], 9, source.ErrTruncated, "56 bytes before")
	check("cut in a header", file[:head+3*size+4], 3, source.ErrTruncated, "")
	x := bytes.Clone(file)
	binary.LittleEndian.PutUint16(x[head+4*size+6:], 0)
	check("a size of 0", x, 4, source.ErrMalformed, fmt.Sprintf("%#x", head+4*size))

	// perf was killed: it has not written the size of the data.
	killed := bytes.Clone(file)
	binary.LittleEndian.PutUint64(killed[48:], 0)
	killed[72] = 0xff // features that are not there
	check("killed", killed, 10, nil, "")
	check("killed while writing", killed[:len(killed)-5], 9, nil, "")
	check("killed, zeros", append(bytes.Clone(killed), make([]byte, 4096)...), 10, nil, "")
	if _, info, _, _ := try(save(t, killed)); !info.Unfinished || info.Damage != nil {
		t.Errorf("killed: %+v", info)
	}

	x = bytes.Clone(file)
	x[72] = 0xff
	samples, info, _, err := try(save(t, x))
	if err != nil || len(samples) != 10 || info.Damage == nil {
		t.Errorf("features beyond the file: %d samples, %v, %+v", len(samples), err, info)
	}
}

// TestSkipped passes over AUX traces and what recorders of another time write, and counts what nobody knows.
func TestSkipped(t *testing.T) {
	b := newBuilder()
	b.sample(1)
	aux := appendWords(nil, []uint64{5000, 0, 0, 0, 0})
	b.add(recordAuxtrace, aux)
	b.records = append(b.records, bytes.Repeat([]byte{0xff}, 5000)...)
	for typ := uint32(64); typ < 90; typ++ {
		switch typ {
		case recordHeaderAttr, recordTracingData, recordAuxtrace, recordCompressed, recordCompressed2:
		default:
			b.add(typ, make([]byte, 24))
		}
	}
	b.sample(2)
	for kind, file := range map[string][]byte{"file": b.file(), "stream": b.stream()} {
		samples, _, st, err := try(save(t, file))
		if err != nil || len(samples) != 2 || st.Unknown != 5 || st.Bad != 0 {
			t.Errorf("%s: %v, %d samples, %+v", kind, err, len(samples), st)
		}
	}
	b.add(recordAuxtrace, appendWords(nil, []uint64{1 << 60, 0, 0, 0, 0}))
	b.records = append(b.records, 1, 2, 3)
	samples, _, _, err := try(save(t, b.file()))
	if !errors.Is(err, source.ErrTruncated) || len(samples) != 2 {
		t.Errorf("a trace that ends early: %v, %d samples", err, len(samples))
	}
}

// compress returns records of a zstd stream that holds all of b, flushed after each piece of n bytes.
func compress(t testing.TB, b []byte, n int, typ uint32) (out []byte) {
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	for len(b) > 0 {
		k := min(n, len(b))
		z.Write(b[:k])
		z.Flush()
		b = b[k:]
		body := bytes.Clone(buf.Bytes())
		buf.Reset()
		if typ == recordCompressed2 {
			body = pad8(append(appendWords(nil, []uint64{uint64(len(body))}), body...))
		}
		out = append(out, rec(typ, 0, body)...)
	}
	return out
}

// TestCompressed reads both kinds of compressed records, cut without regard to the records in them, and between plain
// ones.
func TestCompressed(t *testing.T) {
	oracle.Long(t)
	inner := newBuilder()
	for i := range uint64(2000) {
		inner.sample(i + 1)
		if i%100 == 99 {
			inner.add(source.RecordFinishedRound, nil)
		}
	}
	for _, typ := range []uint32{recordCompressed, recordCompressed2} {
		for _, n := range []int{33, 1000, 1 << 20} {
			b := newBuilder()
			b.records = compress(t, inner.records, n, typ)
			b.sample(5000)
			for kind, file := range map[string][]byte{"file": b.file(), "stream": b.stream()} {
				samples, _, st, err := try(save(t, file))
				if err != nil || len(samples) != 2001 || st.Bad+st.Disordered+st.Unknown > 0 {
					t.Errorf("type %d, %d bytes, %s: %v, %d samples, %+v", typ, n, kind, err, len(samples), st)
				}
			}
			b.records = b.records[:0]
			b.records = append(b.records, compress(t, inner.records[:len(inner.records)-20], n, typ)...)
			samples, _, _, err := try(save(t, b.file()))
			if !errors.Is(err, source.ErrTruncated) || len(samples) != 1999 {
				t.Errorf("type %d, %d bytes, cut: %v, %d samples", typ, n, err, len(samples))
			}
		}
	}

	garbage := newBuilder()
	garbage.sample(1)
	garbage.add(recordCompressed, []byte("this is no zstd stream"))
	samples, _, _, err := try(save(t, garbage.file()))
	if !errors.Is(err, source.ErrMalformed) || len(samples) != 1 {
		t.Errorf("garbage: %v, %d samples", err, len(samples))
	}
	nested := newBuilder()
	nested.records = compress(t, compress(t, inner.records, 1000, recordCompressed), 1<<20, recordCompressed)
	if _, _, _, err := try(save(t, nested.file())); !errors.Is(err, source.ErrMalformed) {
		t.Errorf("nested: %v", err)
	}
}

// TestMutations flips bits and cuts recordings of all kinds: whatever comes out, it comes, and without a panic.
func TestMutations(t *testing.T) {
	oracle.Long(t)
	eachRecording(t, func(t *testing.T, path string) {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(good) > 400<<10 { // the head holds all kinds of records; the rest repeats
			good = good[:400<<10]
		}
		before := runtime.NumGoroutine()
		rnd := rand.New(rand.NewPCG(1, uint64(len(good))))
		tmp := filepath.Join(t.TempDir(), "perf.data")
		outcomes := map[string]int{}
		for range 40 {
			b := bytes.Clone(good)
			switch rnd.IntN(3) {
			case 0:
				b = b[:rnd.IntN(len(b))]
			case 1:
				for range 1 + rnd.IntN(20) {
					b[rnd.IntN(len(b))] ^= 1 << rnd.IntN(8)
				}
			case 2: // in the header and the events
				for range 1 + rnd.IntN(4) {
					b[rnd.IntN(min(len(b), 1000))] = byte(rnd.Uint32())
				}
			}
			if err := os.WriteFile(tmp, b, 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			samples, _, _, err := try(tmp)
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("%v for %d bytes", d, len(b))
			}
			switch {
			case err == nil:
				outcomes["ok"]++
			case !errors.Is(err, source.ErrMalformed) && !errors.Is(err, source.ErrTruncated) && !errors.Is(err, source.ErrUnsupported):
				t.Errorf("%v", err)
			case len(samples) > 0:
				outcomes["partial"]++
			default:
				outcomes["error"]++
			}
		}
		t.Log(outcomes)
		for i := 0; i < 100 && runtime.NumGoroutine() > before; i++ {
			time.Sleep(10 * time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines, were %d", n, before)
		}
	})
}

// TestShrinks cuts a mapped file short while it is read, at its start and in the middle.
func TestShrinks(t *testing.T) {
	b := newBuilder()
	for i := range uint64(100000) {
		b.sample(i + 1)
		if i%1000 == 999 {
			b.add(source.RecordFinishedRound, nil)
		}
	}
	file := b.file()
	for _, at := range []int{1, 5000} {
		path := save(t, file)
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(in, path)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		_, err = source.Run(context.Background(), f, source.Options{Sample: func(*source.Sample) error {
			if n++; n == at {
				return os.Truncate(path, 4096)
			}
			return nil
		}})
		if !errors.Is(err, source.ErrTruncated) {
			t.Errorf("cut after %d samples: %v", at, err)
		}
		f.Close()
		in.Close()
	}
	path := save(t, newBuilder().stream()) // the stream's head is read through the mapping
	in, _ := os.Open(path)
	defer in.Close()
	if f, err := New(in, path); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}

// TestPipe reads a stream from a pipe as it is written, and stops while it waits.
func TestPipe(t *testing.T) {
	b := newBuilder()
	b.sample(1)
	b.add(source.RecordFinishedRound, nil)
	b.sample(2)
	b.add(source.RecordFinishedRound, nil)
	before := runtime.NumGoroutine()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		for _, c := range slices.Collect(slices.Chunk(b.stream(), 7)) {
			w.Write(c)
		}
	}()
	f, err := New(r, "pipe")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err = source.Run(ctx, f, source.Options{Prompt: true, Sample: func(*source.Sample) error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if done, total := f.Progress(); done == 0 || total != 0 {
		t.Errorf("progress %d of %d", done, total)
	}
	f.Close()
	w.Close()
	for i := 0; i < 100 && runtime.NumGoroutine() > before; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines, were %d", n, before)
	}

	r2, w2, _ := os.Pipe()
	defer r2.Close()
	w2.Write(b.file()) // no file can be read from a pipe: its events are anywhere
	w2.Close()
	if _, err := New(r2, "pipe"); !errors.Is(err, source.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

// TestInfo holds what a recording says of itself against perf report --header-only.
func TestInfo(t *testing.T) {
	oracle.Long(t)
	f := openTest(t, record(t, "clock"))
	i := f.Info()
	out, _ := perf(t, "report", "--header-only", "-i", record(t, "clock"))
	for _, want := range []string{
		"# hostname : " + i.Hostname, "# os release : " + i.OSRelease, "# perf version : " + i.Version, "# arch : " + i.Arch,
		fmt.Sprintf("# nrcpus online : %d", i.CPUs), "# cmdline : " + strings.Join(i.Cmdline, " "),
		fmt.Sprintf("# time of first sample : %d.%06d", i.First/1e9, i.First%1e9/1e3),
		fmt.Sprintf("# time of last sample : %d.%06d", i.Last/1e9, i.Last%1e9/1e3),
		fmt.Sprintf("# clockid: monotonic (%d)", i.ClockID),
		fmt.Sprintf("= %d.%06d (TOD) = %d.%09d (monotonic)", i.ClockWall/1e9, i.ClockWall%1e9/1e3, i.ClockTime/1e9, i.ClockTime%1e9),
		fmt.Sprintf("# clockid frequency: %d MHz", 1000/i.ClockRes),
	} {
		if !strings.Contains(out, want) {
			t.Errorf("perf has no %q:\n%s", want, out)
		}
	}
	if i.Machine == nil || i.Ours || i.Piped || i.Unfinished || i.Damage != nil {
		t.Errorf("%+v", i)
	}
}

// FuzzFile reads any bytes as a file and as a stream.
func FuzzFile(f *testing.F) {
	b := newBuilder()
	b.sample(1)
	for _, file := range [][]byte{b.file(), b.stream()} {
		big, err := oracle.BigEndian(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(big)
	}
	b.add(source.RecordFinishedRound, nil)
	b.records = append(b.records, compress(f, b.records, 1<<20, recordCompressed)...)
	f.Add(b.file())
	f.Add(b.stream())
	var out bytes.Buffer
	x, _ := NewWriter(&out, WriterOptions{Events: []source.Event{{Attr: plainAttr, IDs: []uint64{1}, Name: "x"}}, Info: Host()})
	x.Close()
	f.Add(out.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		g, err := New(in, path)
		if err != nil {
			return
		}
		defer g.Close()
		x, err := NewWriter(io.Discard, WriterOptions{Events: g.Decoder().Events(), Info: g.Info(), BuildID: g.BuildID})
		if err != nil {
			t.Fatal(err)
		}
		source.Run(context.Background(), g, source.Options{Ours: g.Info().Ours, Workers: 1, Sample: x.Sample, Record: x.Record})
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMapped compares what is read of a file that only this user can change, which is mapped, with what is read of the same file when others can
// change it. Records lie across the ends of windows; the recording begins and ends within pages.
func TestMapped(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := newBuilder()
	var want [][]byte
	for len(b.records) < 3*windowSize {
		body := make([]byte, 8*r.IntN(1<<13-1))
		for i := range body {
			body[i] = byte(r.Uint32())
		}
		raw := rec(source.RecordSample, 0, body)
		b.records, want = append(b.records, raw...), append(want, raw)
	}
	for _, start := range []int64{0, 1000} {
		path := save(t, append(make([]byte, start), b.file()...))
		for _, mode := range []os.FileMode{0o600, 0o666} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			in, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			in.Seek(start, io.SeekStart)
			f, err := New(in, path)
			if err != nil {
				t.Fatal(err)
			}
			var held []*source.Buffer
			var got [][]byte
			for {
				raw, buf, err := f.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("record %d at %d, mode %o: %v", len(got), start, mode, err)
				}
				buf.Hold()
				got, held = append(got, raw), append(held, buf)
			}
			if mapped := f.in.file != nil; mapped != (mode == 0o600) {
				t.Errorf("mode %o: mapped is %v", mode, mapped)
			}
			if !slices.EqualFunc(got, want, bytes.Equal) {
				t.Errorf("at %d, mode %o: %d records are not the %d that were written", start, mode, len(got), len(want))
			}
			for _, buf := range held {
				buf.Release()
			}
			f.Close()
			in.Close()
		}
	}
}
