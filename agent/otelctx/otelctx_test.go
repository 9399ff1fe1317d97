package otelctx

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/unspool/unspool/internal/oracle"
)

// payload is a ProcessContext, as OpenTelemetry's own code writes its resource, with an attribute beside the resource.
func payload(t testing.TB, pairs ...string) []byte {
	t.Helper()
	r := &resource.Resource{DroppedAttributesCount: 7}
	for i := 0; i < len(pairs); i += 2 {
		r.Attributes = append(r.Attributes, &common.KeyValue{Key: pairs[i], Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: pairs[i+1]}}})
	}
	r.Attributes = append(r.Attributes, &common.KeyValue{Key: "process.pid", Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: 7}}})
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	beside, err := proto.Marshal(&resource.Resource{Attributes: []*common.KeyValue{{Key: "service.name", Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: "not this"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	beside = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), beside[2:])
	return append(protowire.AppendBytes(protowire.AppendTag(beside, 1, protowire.BytesType), b), beside...)
}

var (
	all = []string{"service.name", "shop", "service.namespace", "market", "service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09", "service.version", "1.2",
		"deployment.environment.name", "production", "host.name", "node-7"}
	shop = Service{"shop", "market", "627cc493-f310-47de-96bd-71410b7dec09", "1.2", "production"}
)

func TestDecode(t *testing.T) {
	many := make([]string, 2*maxAttributes)
	for name, c := range map[string]struct {
		payload []byte
		want    Service
		err     string
	}{
		"all":         {payload(t, all...), shop, ""},
		"nothing":     {nil, Service{}, ""},
		"twice":       {payload(t, "service.name", "shop", "service.name", "bank"), Service{Name: "shop"}, ""},
		"long":        {payload(t, "service.name", "x"+strings.Repeat("é", maxValue)), Service{Name: "x" + strings.Repeat("é", maxValue/2-1)}, ""},
		"a long key":  {payload(t, strings.Repeat("k", 10000), "x", "service.name", "shop"), Service{Name: "shop"}, ""},
		"no UTF-8":    {bytes.Replace(payload(t, "service.name", "shop"), []byte("shop"), []byte("sh\xffp"), 1), Service{}, "resource: "},
		"cut":         {payload(t, all...)[:30], Service{}, "EOF"},
		"many":        {payload(t, many...), Service{}, "more than 128 attributes"},
		"large":       {make([]byte, maxPayload+1), Service{}, "too large"},
		"an old form": {payload(t, all...)[4:], Service{}, "at byte"},
	} {
		s, err := Decode(c.payload)
		if c.err == "" && err != nil || c.err != "" && (err == nil || name != "no UTF-8" && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
		if s != c.want {
			t.Errorf("%s: %+v, want %+v", name, s, c.want)
		}
	}
}

// FuzzDecode: what the protocol's own code reads, Decode reads alike.
func FuzzDecode(f *testing.F) {
	f.Add(payload(f, all...))
	f.Add(payload(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		for _, text := range []string{s.Name, s.Namespace, s.Instance, s.Version, s.Environment} {
			if len(text) > maxValue || !utf8.ValidString(text) {
				t.Errorf("%q", text)
			}
		}
		if err != nil {
			return
		}
		r := &resource.Resource{}
		for rest := b; len(rest) > 0; { // resources are merged
			num, kind, n := protowire.ConsumeTag(rest)
			size := protowire.ConsumeFieldValue(num, kind, rest[n:])
			if num == 1 && kind == protowire.BytesType {
				v, _ := protowire.ConsumeBytes(rest[n:])
				if (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, r) != nil {
					return
				}
			}
			rest = rest[n+size:]
		}
		var want Service
		for _, kv := range r.Attributes {
			if to := want.field(kv.Key); to != nil && *to == "" {
				v := kv.Value.GetStringValue()
				*to = strings.ToValidUTF8(v[:min(len(v), maxValue)], "")
			}
		}
		if s != want {
			t.Errorf("Decode(%q)\n got %+v\nwant %+v", b, s, want)
		}
	})
}

func TestCandidates(t *testing.T) {
	line := func(prot, dev, inode, name string) string {
		return "7f0000000000-7f0000001000 " + prot + " 00000000 " + dev + " " + inode + "                          " + name + "\n"
	}
	anon := line("r--p", "00:00", "0", "[anon:OTEL_CTX]")
	for _, c := range []struct {
		text string
		want int
	}{
		{line("rw-s", "00:1a", "7", "/memfd:OTEL_CTX (deleted)"), 1},
		{line("rw-s", "00:1a", "7", "/memfd:OTEL_CTX"), 1},
		{line("rw-s", "00:1b", "7", "/memfd:OTEL_CTX"), 0}, // a file of that name
		{anon, 1},
		{line("rw-s", "00:1a", "7", "[anon_shmem:OTEL_CTX]"), 1},
		{line("-w-p", "00:00", "0", "[anon:OTEL_CTX]"), 0},
		{line("rw-p", "00:00", "0", "[anon:OTEL_CTX2]"), 0},
		{line("rw-p", "00:1a", "7", "/tmp/OTEL_CTX"), 0},
		{line("rw-p", "00:1a", "7", "/tmp/memfd:OTEL_CTX (deleted)"), 0},
		{"7f0000000000-7f0000000010 rw-p 0 00:00 0 [anon:OTEL_CTX]\n", 0}, // smaller than a header
		{strings.Repeat(anon, 100), maxCandidates},
		{line("rw-p", "00:00", "0", "/"+strings.Repeat("x", 10000)+" "+anon) + anon, 1},
		{"[anon:OTEL_CTX]", 0},
		{"x OTEL_CTX\n", 0},
		{"", 0},
	} {
		at, err := candidates(strings.NewReader(c.text), device{0, 0x1a})
		if err != nil || len(at) != c.want || len(at) > 0 && at[0] != 0x7f0000000000 {
			t.Errorf("%.200q: %x, %v, want %d", c.text, at, err, c.want)
		}
	}
}

// TestCovered: where a payload may be.
func TestCovered(t *testing.T) {
	const maps = `10000-20000 rw-p 00000000 fe:01 7 /bin/shop
20000-30000 rw-p 00000000 00:00 0 [heap]
30000-40000 rw-p 00000000 00:2b 7 /home/user/mount/file
40000-50000 rw-p 00000000 00:2b 0 /home/user/mount/other
50000-60000 rw-s 00000000 00:1a 7 /memfd:x (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
`
	for _, c := range []struct {
		lo, hi uint64
		want   bool
	}{
		{0x10000, 0x20000, true}, {0x1fff0, 0x20010, true}, {0x20000, 0x20000, true}, {0x2fff0, 0x30001, false}, {0x30000, 0x30010, false}, {0x3fff0, 0x50010, false}, {0x40000, 0x40010, false},
		{0x50000, 0x60000, true}, {0x5fff0, 0x60001, false}, {0xfff0, 0x10010, false}, {1<<64 - 8, 8, false}, {0, 8, false},
	} {
		if got := covered(strings.NewReader(maps), device{0, 0x1a}, c.lo, c.hi); got != c.want {
			t.Errorf("%x-%x: %v, want %v", c.lo, c.hi, got, c.want)
		}
	}
}

func FuzzCandidates(f *testing.F) {
	f.Add("7f0000000000-7f0000001000 rw-s 00000000 00:1a 7     /memfd:OTEL_CTX (deleted)\n", uint64(0x7f0000000000))
	f.Fuzz(func(t *testing.T, s string, lo uint64) {
		if at, err := candidates(strings.NewReader(s), device{0, 0x1a}); err != nil || len(at) > maxCandidates {
			t.Errorf("%q: %x, %v", s, at, err)
		}
		covered(strings.NewReader(s), device{0, 0x1a}, lo, lo+64)
	})
}

// A memory is that of a process: a header at 0x1000, a payload at 0x2000. It changes by itself before each read.
type memory struct {
	header, payload []byte
	before          func(n int)
	n               int
}

func (m *memory) ReadAt(b []byte, at int64) (int, error) {
	if m.before != nil {
		m.before(m.n)
	}
	m.n++
	from := m.header
	if at -= 0x1000; at >= 0x1000 {
		at, from = at-0x1000, m.payload
	}
	if at < 0 || at >= int64(len(from)) {
		return 0, io.EOF
	}
	n := copy(b, from[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func newMemory(payload []byte, published uint64) *memory {
	m := &memory{payload: payload}
	m.header = append(m.header, signature...)
	m.header = binary.LittleEndian.AppendUint32(m.header, version)
	m.header = binary.LittleEndian.AppendUint32(m.header, uint32(len(payload)))
	m.header = binary.LittleEndian.AppendUint64(m.header, published)
	m.header = binary.LittleEndian.AppendUint64(m.header, 0x2000)
	return m
}

func anywhere(lo, hi uint64) bool { return true }

// TestReadContext: a context counts only if its header is the same before and after, and is not being written.
func TestReadContext(t *testing.T) {
	good := payload(t, all...)
	try := func(what string, m *memory, known uint64, want Service, wrong error) {
		t.Helper()
		s, published, err := readContext(m, 0x1000, known, anywhere)
		if s != want || !errors.Is(err, wrong) || err == nil && published != 5 {
			t.Errorf("%s: %+v, %d, %v, want %+v, %v", what, s, published, err, want, wrong)
		}
	}
	try("good", newMemory(good, 5), 0, shop, nil)
	m := newMemory(good, 5)
	if try("known", m, 5, Service{}, nil); m.n != 1 {
		t.Errorf("what is known is read %d times", m.n)
	}
	try("being written", newMemory(good, 0), 0, Service{}, errBusy)
	m = newMemory(nil, 5)
	m.before = func(n int) { m.header[16] = byte(n + 1) }
	try("always changed", m, 0, Service{}, errBusy)
	m = newMemory(payload(t, "service.name", "x"), 4)
	m.before = func(n int) {
		if n == 2 { // the payload has been read
			*m = *newMemory(good, 5)
		}
	}
	try("changed once", m, 0, shop, nil)
	m = newMemory(good, 5)
	m.header[0] = 'o'
	try("another signature", m, 0, Service{}, errNone)
	m = newMemory(good, 5)
	m.header[8] = 1
	try("another version", m, 0, Service{}, errFormat)
	m = newMemory(good, 5)
	m.header = m.header[:31]
	try("a short header", m, 0, Service{}, io.EOF)
	m = newMemory(good, 5)
	m.header[12]++
	try("a short payload", m, 0, Service{}, io.EOF)
	m = newMemory(good, 5)
	m.header[31] = 0xff
	try("no address", m, 0, Service{}, io.EOF)
	m = newMemory(good, 5)
	m.header[14] = 0xff
	if s, published, err := readContext(m, 0x1000, 0, anywhere); err == nil {
		t.Errorf("a payload of 16 MB is read: %+v, %d; want an error", s, published)
	}
}

func FuzzReadContext(f *testing.F) {
	m := newMemory(payload(f, all...), 5)
	f.Add(m.header, m.payload, m.header)
	f.Fuzz(func(t *testing.T, header, payload, later []byte) {
		m := &memory{header: header, payload: payload}
		m.before = func(n int) {
			if n%3 == 2 {
				m.header = later
			}
		}
		if s, _, err := readContext(m, 0x1000, 0, anywhere); err != nil && s != (Service{}) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// publish starts a program that publishes payloads: see testdata/publish.c. next gives it a line, and waits until it has done what the line asks for.
func publish(t *testing.T, mode string, payloads ...[]byte) (pid int32, next func()) {
	t.Helper()
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	exe := filepath.Join(dir, "publish")
	if out, err := exec.Command("gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", exe, "testdata/publish.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	args := []string{mode}
	for i, p := range payloads {
		args = append(args, filepath.Join(dir, fmt.Sprint(i)))
		if p == nil { // a directory
			if err := os.Mkdir(args[i+1], 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(args[i+1], p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command(exe, args...)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	lines := bufio.NewScanner(out)
	read := func() {
		t.Helper()
		lines.Scan()
		switch text := lines.Text(); text {
		case "ready":
		case "no name":
			t.Skip("this kernel has no CONFIG_ANON_VMA_NAME")
		case "no userfaultfd", "no fuse":
			oracle.Lacks(t, text[3:])
		default:
			t.Fatalf("%q, %v", text, lines.Err())
		}
	}
	read()
	return int32(c.Process.Pid), func() {
		t.Helper()
		io.WriteString(in, "\n")
		read()
	}
}

// newReader returns a Reader that looks at young processes, too.
func newReader() *Reader {
	r := NewReader()
	r.age = func(uint64) time.Duration { return young }
	return r
}

// TestYoung: a process is looked at when it has run for a second.
func TestYoung(t *testing.T) {
	oracle.Long(t)
	began := time.Now()
	pid, _ := publish(t, "memfd", payload(t, all...))
	r := NewReader()
	if s := r.Of(pid); s != (Service{}) && time.Since(began) < young {
		t.Errorf("%+v, after %v", s, time.Since(began))
	}
	if a := age(started(int32(os.Getpid()))); a <= 0 || a > time.Hour {
		t.Errorf("this process is %v old", a)
	}
	for of(r, pid) != shop {
		if time.Since(began) > 20*time.Second {
			t.Fatalf("%+v", r.Stats())
		}
		time.Sleep(10 * time.Millisecond)
	}
	if d := time.Since(began); d < young-20*time.Millisecond {
		t.Errorf("after %v", d)
	}
}

// of asks a Reader on a machine that may be busy: it asks again until it has been answered in time.
func of(r *Reader, pid int32) Service {
	r.Of(pid)
	for range 20000 {
		r.mu.Lock()
		reading := r.known[pid] != nil && r.known[pid].reading
		r.mu.Unlock()
		if !reading {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return r.Of(pid)
}

// soon has a Reader look at all processes when it is asked.
func soon(r *Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.known {
		e.next = time.Time{}
	}
}

// TestFile: a payload in a file is read only where the file is a block device's: others may be of a file system that holds up the reader.
func TestFile(t *testing.T) {
	pid, _ := publish(t, "file", payload(t, all...))
	var st unix.Stat_t
	if err := unix.Stat(t.TempDir(), &st); err != nil {
		t.Fatal(err)
	}
	got, err := look(pid, 0)
	if block := unix.Major(st.Dev) != 0; block && got.service != shop || !block && !errors.Is(err, errPlace) {
		t.Errorf("a file of device %d:%d: %+v, %v", unix.Major(st.Dev), unix.Minor(st.Dev), got, err)
	}
}

// TestFUSE: memory of a file system that never answers holds up who reads it, until the file system has gone. It is not read.
func TestFUSE(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	pid, _ := publish(t, "fuse", payload(t, all...), nil)
	if got, err := look(pid, 0); !errors.Is(err, errPlace) {
		t.Errorf("%+v, %v", got, err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	at, err := candidates(maps, sharedMemory())
	if err != nil || len(at) != 1 {
		t.Fatalf("%x, %v", at, err)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := readContext(memory, at[0], 0, anywhere)
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Errorf("a read is not held up: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := unix.Kill(int(pid), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Errorf("a read of process %d at %#x goes on 20 s after its file system has gone", pid, at[0])
	}
}

// TestReader: a process that publishes by a memfd, changes its context, and ends; and one that publishes in private memory.
func TestReader(t *testing.T) {
	oracle.Long(t)
	for _, mode := range []string{"memfd", "anon"} {
		t.Run(mode, func(t *testing.T) {
			pid, next := publish(t, mode, payload(t, all...), payload(t, "service.name", "bank"))
			r := newReader()
			if s := of(r, pid); s != shop {
				t.Fatalf("%+v, want %+v, %+v", s, shop, r.Stats())
			}
			next()
			soon(r)
			if s := of(r, pid); s != (Service{Name: "bank"}) {
				t.Errorf("changed: %+v", s)
			}
			next()
			soon(r)
			if s := of(r, pid); s != shop {
				t.Errorf("changed back: %+v", s)
			}
			if s := r.Stats(); s.Failed != 0 || s.Contexts != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
	r := newReader()
	if s := of(r, int32(os.Getpid())); s != (Service{}) || r.Stats().Failed != 0 || r.Stats().Contexts != 0 {
		t.Errorf("a process without a context: %+v, %+v", s, r.Stats())
	}
	if s := r.Of(1 << 30); s != (Service{}) {
		t.Errorf("no process: %+v", s)
	}
	var none *Reader
	if s := none.Of(1); s != (Service{}) {
		t.Errorf("no reader: %+v", s)
	}
}

// TestChurn: a process changes its context, in place, as fast as it can. What is read is one context or the other.
func TestChurn(t *testing.T) {
	oracle.Long(t)
	other := Service{strings.Repeat("b", 250), strings.Repeat("c", 250), strings.Repeat("d", 250), strings.Repeat("e", 250), strings.Repeat("f", 250)}
	pid, _ := publish(t, "churn", payload(t, all...),
		payload(t, "service.name", other.Name, "service.namespace", other.Namespace, "service.instance.id", other.Instance, "service.version", other.Version, "deployment.environment.name", other.Environment))
	var read, busy int
	seen := map[Service]int{}
	for began := time.Now(); time.Since(began) < time.Second || len(seen) < 2 && time.Since(began) < 20*time.Second; { // on a busy machine, few reads are in time
		got, err := look(pid, 0)
		switch {
		case errors.Is(err, errBusy):
			busy++
		case err != nil:
			t.Fatal(err)
		default:
			read++
			seen[got.service]++
		}
	}
	if len(seen) != 2 || seen[shop] == 0 || seen[other] == 0 {
		t.Errorf("%d contexts: %v", len(seen), seen)
	}
	t.Logf("%d reads of one, %d of the other, %d times always changed", seen[shop], seen[other], busy)
}

// TestUserfault: memory that would hold up a reader by userfaultfd(2) does not: /proc/PID/mem does not wait for it, as process_vm_readv(2) does.
func TestUserfault(t *testing.T) {
	pid, next := publish(t, "stall", payload(t, all...))
	if got, err := look(pid, 0); !errors.Is(err, unix.EIO) {
		t.Errorf("%+v, %v", got, err)
	}
	next() // there are zeros now: no message
	if got, err := look(pid, 0); err == nil || errors.Is(err, unix.EIO) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestStall: processes hold up who reads their memory, as a file system of their own can. The reader waits once, reads others, knows the contexts
// when they come, and has a bounded number of threads.
func TestStall(t *testing.T) {
	var pids []int32
	for range 2 * maxStuck {
		c := exec.Command("sleep", "100")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Wait()
		defer c.Process.Kill()
		pids = append(pids, int32(c.Process.Pid))
	}
	quick := int32(os.Getpid())
	r := newReader()
	stall := make(chan bool)
	r.read = func(pid int32, _ uint64) (result, error) {
		if pid != quick {
			<-stall
		}
		return result{shop, 5}, nil
	}
	began := time.Now()
	if s := r.Of(pids[0]); s != (Service{}) {
		t.Errorf("%+v", s)
	}
	first := time.Since(began)
	for range 100 {
		r.Of(pids[0])
	}
	if first < patience {
		t.Errorf("waited %v", first)
	}
	if s := of(r, quick); s != shop {
		t.Errorf("another process: %+v, %+v", s, r.Stats())
	}
	for _, pid := range pids {
		r.Of(pid)
	}
	if s := r.Stats(); s.Slow != 1 || s.Skipped < maxStuck || s.Skipped > maxStuck+1 { // the last read of quick may go on
		t.Errorf("%+v", s)
	}
	close(stall)
	for _, pid := range pids {
		if s := of(r, pid); s != shop {
			t.Errorf("%+v", s)
		}
	}
}

// TestPolicy: how often a process is looked at, and how many are known.
func TestPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReader()
		r.now = time.Now
		reads := 0
		got, fail := result{}, error(errNone)
		r.read = func(int32, uint64) (result, error) {
			reads++
			return got, fail
		}
		pid := int32(os.Getpid())
		during := func(d time.Duration) int {
			reads = 0
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Second) {
				r.Of(pid)
			}
			return reads
		}
		if n := during(time.Hour); n < 8 || n > 15 {
			t.Errorf("%d looks in an hour at a process without a context", n)
		}
		got, fail = result{shop, 5}, nil
		during(15 * time.Minute)
		if s := r.Of(pid); s != shop {
			t.Errorf("15 minutes after a process got its context: %+v, want %+v; %+v", s, shop, r.Stats())
		}
		if n := during(10 * time.Minute); n != 10 {
			t.Errorf("%d looks in ten minutes at a process with a context", n)
		}
		time.Sleep(changed)
		fail = errBusy
		if s := r.Of(pid); s != shop {
			t.Errorf("while a context is being changed: %+v, want %+v; %+v", s, shop, r.Stats())
		}
		fail = errNone
		if s := r.Of(pid); s != (Service{}) {
			t.Errorf("a context that has gone is kept: %+v, want none; %+v", s, r.Stats())
		}
		for i := range int32(3 * maxKnown) {
			r.known[i+1<<20] = &entry{asked: time.Now()}
			r.sweep(time.Now())
		}
		if len(r.known) > maxKnown {
			t.Errorf("%d processes", len(r.known))
		}
		time.Sleep(2 * forgotten)
		if r.sweep(time.Now()); len(r.known) > 0 {
			t.Errorf("%d processes that nobody asks for", len(r.known))
		}
	})
}

// TestTracer: an instrumented program's own library publishes the context.
func TestTracer(t *testing.T) {
	oracle.Long(t)
	c := exec.Command(oracle.Engine(t, "tracer"))
	c.Env = append(os.Environ(), "DD_SERVICE=shop", "DD_ENV=production", "DD_VERSION=1.2", "DD_TRACE_AGENT_URL=http://127.0.0.1:9", "DD_TRACE_STARTUP_LOGS=false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED=false")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	got, err := look(int32(c.Process.Pid), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.service.Instance == "" {
		t.Errorf("service.Instance is empty, want an ID: %+v", got.service)
	}
	got.service.Instance = ""
	if d := cmp.Diff(Service{Name: "shop", Version: "1.2", Environment: "production"}, got.service); d != "" {
		t.Errorf("look(%d).service: -want +got:\n%s", c.Process.Pid, d)
	}
}

func BenchmarkLook(b *testing.B) {
	pid := int32(os.Getpid())
	for b.Loop() {
		look(pid, 0)
	}
}

// asAgent, in the environment, has this test binary look at the process of that number, or of the number that is its argument.
const asAgent = "UNSPOOL_TEST_OTELCTX"

func TestMain(m *testing.M) {
	number := os.Getenv(asAgent)
	if number == "argument" && len(os.Args) > 1 {
		number = os.Args[1]
	}
	if pid, err := strconv.Atoi(number); err == nil {
		got, err := look(int32(pid), 0)
		fmt.Println(got.service.Name, err)
		return
	}
	os.Exit(m.Run())
}

// TestRights: the capabilities that an agent keeps suffice to read the context of a process of another user.
func TestRights(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	oracle.Need(t, "setpriv")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "otelctx") // whose parents all users may read
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe := filepath.Join(dir, "agent")
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(exe, program, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	pid, _ := publish(t, "memfd", payload(t, all...))
	for caps, want := range map[string]string{"+bpf,+perfmon,+sys_ptrace,+dac_read_search": "shop <nil>", "+bpf": "permission denied"} {
		c := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all,"+caps, "--ambient-caps=-all,"+caps, "--bounding-set=-all,"+caps, "--no-new-privs", exe)
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asAgent, pid))
		if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("with %s: %s, %v; want %s", caps, out, err, want)
		}
	}
}
