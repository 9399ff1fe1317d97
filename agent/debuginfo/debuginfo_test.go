package debuginfo

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/parca"
	"github.com/unspool/unspool/agent/pyroscope"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
)

// of is a profile with a stack in each module, of a process.
func of(pid int32, modules ...profile.Module) *profile.Profile {
	p := &profile.Profile{Modules: modules}
	for i := range modules {
		p.Locs = append(p.Locs, profile.Loc{Module: int32(i), Mapping: -1})
		p.Stacks = append(p.Stacks, profile.Stack{PID: pid, Frames: []uint32{uint32(i)}, Count: 1})
	}
	return p
}

// program builds a program that waits, with a build ID in hex.
func program(t *testing.T, dir, id string, flags ...string) profile.Module {
	t.Helper()
	oracle.Need(t, "gcc")
	src, exe := filepath.Join(dir, id+".c"), filepath.Join(dir, id)
	if err := os.WriteFile(src, []byte("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", append(flags, "-Wl,--build-id=0x"+id, "-o", exe, src)...)
	return profile.Module{Path: exe, BuildID: id}
}

// start runs a program, as another user if uid is not 0.
func start(t *testing.T, exe string, uid uint32) int32 {
	t.Helper()
	cmd := exec.Command(exe)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		cmd.Dir = "/"
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return int32(cmd.Process.Pid)
}

// listening starts an engine. lines returns what it has printed until it prints end.
func listening(t *testing.T, name string) (address string, lines func(end string) []string) {
	t.Helper()
	cmd := exec.Command(oracle.Engine(t, name))
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	in := bufio.NewScanner(pipe)
	if !in.Scan() {
		t.Fatalf("%s ends without a line: %v", name, in.Err())
	}
	return in.Text(), func(end string) (out []string) {
		t.Helper()
		for in.Scan() {
			// protojson puts spaces after some commas, by chance.
			if out = append(out, strings.ReplaceAll(in.Text(), ", ", ",")); strings.HasPrefix(in.Text(), end) {
				return out
			}
		}
		t.Fatalf("the server has ended after %q", out)
		return nil
	}
}

func at(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func digest(t *testing.T, path string) (size int, sum string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(b), fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestParca sends files to a server of Parca's own generated code: what it asks for, in its order, and whatever it answers.
func TestParca(t *testing.T) {
	oracle.Long(t)
	address, lines := listening(t, "debuginfo")
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	engine, err := parca.New(at(t, address), export.Options{Names: export.Uploaded, TokenFile: token, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var told []string
	u := New(engine)
	send := func(m profile.Module) (s Stats, err error) {
		t.Helper()
		before := u.Stats()
		told = nil
		err = u.Send(t.Context(), of(start(t, m.Path, 0), m), func(err error) { told = append(told, fmt.Sprint(err)) })
		s = u.Stats()
		s.Uploads -= before.Uploads
		s.Bytes -= before.Bytes
		s.Unneeded -= before.Unneeded
		s.Refused -= before.Refused
		s.Failed -= before.Failed
		return s, err
	}
	want := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
		}
	}

	m := program(t, dir, "aabbcc", "-g")
	size, sum := digest(t, m.Path)
	if s, err := send(m); err != nil || s.Uploads != 1 || s.Bytes != uint64(size) {
		t.Errorf("%+v, %v", s, err)
	}
	want(lines("finished"),
		`should {"buildId":"aabbcc","buildIdType":"BUILD_ID_TYPE_GNU"}`,
		fmt.Sprintf(`initiate {"buildId":"aabbcc","size":"%d","hash":"%s","buildIdType":"BUILD_ID_TYPE_GNU"}`, size, sum),
		fmt.Sprintf("upload aabbcc %d %s", size, sum),
		`finished {"buildId":"aabbcc","uploadId":"id of aabbcc"}`)
	if s, err := send(m); err != nil || s.Uploads != 0 || s.Unneeded != 0 {
		t.Errorf("asked again: %+v, %v", s, err)
	}

	for _, id := range []string{"001122", "011122"} {
		if s, err := send(program(t, dir, id)); err != nil || s.Unneeded != 1 {
			t.Errorf("%+v, %v", s, err)
		}
		lines("should")
	}

	// The file goes to the URL without the token.
	m = program(t, dir, "021122")
	size, sum = digest(t, m.Path)
	if s, err := send(m); err != nil || s.Uploads != 1 {
		t.Errorf("%+v, %v, %v", s, err, told)
	}
	if got := lines("finished"); len(got) != 4 || got[2] != fmt.Sprintf(`PUT /021122?signature=x %d %s ""`, size, sum) {
		t.Errorf("%q", got)
	}

	if s, err := send(program(t, dir, "031122")); err != nil || s.Refused != 1 || fmt.Sprint(told) != "[refused: Parca's instructions are for another file]" {
		t.Errorf("%+v, %v, %v", s, err, told)
	}
	if s, err := send(program(t, dir, "041122")); err != nil || s.Refused != 1 || fmt.Sprint(told) != "[refused: Parca has not kept the whole file]" {
		t.Errorf("%+v, %v, %v", s, err, told)
	}
	if s, err := send(program(t, dir, "051122")); err == nil || s.Failed != 1 || fmt.Sprint(told) != "[gRPC status 14: away (try again)]" {
		t.Errorf("%+v, %v, %v", s, err, told)
	}
	if s, err := send(program(t, dir, "061122")); err == nil || s.Failed != 1 || fmt.Sprint(told) != "[no answer in time (try again)]" {
		t.Errorf("%+v, %v, %v", s, err, told)
	}
}

// TestPyroscope sends a file to the handler of Pyroscope's own API module.
func TestPyroscope(t *testing.T) {
	oracle.Long(t)
	address, lines := listening(t, "pyroscope")
	engine, err := pyroscope.New(at(t, address), export.Options{Names: export.Uploaded})
	if err != nil {
		t.Fatal(err)
	}
	m := program(t, t.TempDir(), "aabbcc", "-g")
	size, sum := digest(t, m.Path)
	p := of(start(t, m.Path, 0), m)
	tell := func(err error) { t.Error(err) }
	u := New(engine)
	if err := u.Send(t.Context(), p, tell); err != nil || u.Stats().Uploads != 1 {
		t.Errorf("%v, %+v", err, u.Stats())
	}
	got, want := lines(`{"gnuBuildId"`), []string{
		`{"file":{"gnuBuildId":"aabbcc","name":"aabbcc","type":"TYPE_EXECUTABLE_FULL"}}`, fmt.Sprintf("upload aabbcc %d %s <nil>", size, sum), `{"gnuBuildId":"aabbcc"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	if u = New(engine); u.Send(t.Context(), p, tell) != nil || u.Stats().Unneeded != 1 {
		t.Errorf("%+v", u.Stats())
	}
}

// TestAnswerBrokenOff: what the engine wants is not known from an answer that broke off, so it is asked again; it does not count as one that is nonsense.
func TestAnswerBrokenOff(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"shouldInitiateUpload":`)
	}))
	defer s.Close()
	engine, err := pyroscope.New(at(t, s.Listener.Addr().String()), export.Options{Names: export.Uploaded})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = engine.Wants(t.Context(), &export.DebugFile{BuildID: "aabb", Name: "a", Size: 1})
	var later *export.Later
	if !errors.As(err, &later) || later.Times == 0 {
		t.Errorf("%#v", err)
	}
}

// TestRights: a file is only sent if the user of the process that has mapped it may read it; without a process, if all may.
func TestRights(t *testing.T) {
	if os.Getuid() != 0 {
		oracle.Lacks(t, "root, to run programs as other users")
	}
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		os.Chmod(d, 0o755)
	}
	const user = 54321
	m := program(t, dir, "aabbcc")
	check := func(name string, pids []int32, want error) {
		t.Helper()
		f, err := find(wanted{m.Path, m.BuildID, pids})
		if f != nil {
			f.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	mode := func(path string, bits os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, bits); err != nil {
			t.Fatal(err)
		}
	}
	mode(m.Path, 0o755)
	pid, root := start(t, m.Path, user), start(t, m.Path, 0)
	check("all may read it", []int32{pid}, nil)
	check("no process", nil, nil)
	mode(m.Path, 0o711)
	check("only root may read it", []int32{pid}, errRights)
	check("only root may read it, and root runs it", []int32{pid, root}, nil)
	check("only root may read it, and nobody runs it", nil, errRights)
	if err := os.Chown(m.Path, 0, user); err != nil {
		t.Fatal(err)
	}
	mode(m.Path, 0o750)
	check("its group may read it", []int32{pid}, nil)
	mode(m.Path, 0o755)
	mode(dir, 0o711)
	check("a directory may be passed", []int32{pid}, nil)
	// A process has its program, whatever directory leads there.
	mode(dir, 0o700)
	check("a directory is closed", []int32{pid}, nil)
	check("a directory is closed, and nobody runs it", nil, errRights)
	mode(dir, 0o755)
	m.BuildID = "ddeeff"
	check("another file", []int32{pid, root}, errGone)
	m.BuildID = "aabbcc"

	// Where others' file lies in the program's place, its process does not lead there.
	other := program(t, dir, "001122")
	mode(other.Path, 0o700)
	check("another's file at a path", []int32{pid}, nil)
	m = other
	check("another's file", []int32{pid}, errRights)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(other.Path, link); err != nil {
		t.Fatal(err)
	}
	m.Path = link
	check("a link to another's file", []int32{pid}, errRights)
}

// TestNames: the separate debug file is sent in the place of a file without debug information, if the process's user reaches it.
func TestNames(t *testing.T) {
	oracle.Need(t, "objcopy")
	dir := t.TempDir()
	m := program(t, dir, "aabbcc", "-g")
	pid := start(t, m.Path, 0)
	sent := func() string {
		t.Helper()
		f, err := find(wanted{m.Path, m.BuildID, []int32{pid}})
		if err != nil {
			return err.Error()
		}
		defer f.Close()
		return filepath.Base(f.File.Name())
	}
	if got := sent(); got != "aabbcc" {
		t.Errorf("with debug information: %s", got)
	}
	debugDir = filepath.Join(dir, "debug")
	defer func() { debugDir = module.DebugDir }()
	at := filepath.Join(debugDir, ".build-id", "aa", "bbcc.debug")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "objcopy", "--only-keep-debug", m.Path, at)
	stripped := filepath.Join(dir, "stripped")
	oracle.Run(t, "objcopy", "--strip-all", m.Path, stripped)
	m.Path = stripped
	pid = start(t, m.Path, 0)
	if got := sent(); got != "bbcc.debug" {
		t.Errorf("stripped: %s", got)
	}
	f, err := find(wanted{m.Path, m.BuildID, []int32{pid}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var both [2][]elf.ProgHeader
	for i, r := range []io.ReaderAt{f.DebugFile, mustOpen(t, m.Path)} {
		e, err := elf.NewFile(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range e.Progs {
			both[i] = append(both[i], p.ProgHeader)
		}
	}
	if len(both[0]) == 0 || !slices.Equal(both[0], both[1]) {
		t.Errorf("the program's headers\n got %v\nwant %v", both[0], both[1])
	}
	if err := os.Remove(at); err != nil {
		t.Fatal(err)
	}
	if got := sent(); got != "stripped" {
		t.Errorf("without a debug file: %s", got)
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// FuzzHeaders: whatever the files are, the debug file is read as it is but for its program headers.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01"), []byte{}, uint8(0))
	if b, err := os.ReadFile("/proc/self/exe"); err == nil {
		f.Add(b[:4096], b[:4096], uint8(3))
	}
	f.Fuzz(func(t *testing.T, debug, program []byte, at uint8) {
		r := withHeaders(bytes.NewReader(debug), bytes.NewReader(program))
		b := make([]byte, len(debug))
		if n, err := r.ReadAt(b[min(int(at), len(b)):], int64(min(int(at), len(b)))); n != len(b)-min(int(at), len(b)) || err != nil && err != io.EOF {
			t.Errorf("%d, %v", n, err)
		}
	})
}

// A fake is an engine that answers as a test says.
type fake struct {
	wants  func(n int) (bool, time.Duration, error)
	upload func() error
	asked  []time.Time
	sent   int
}

func (f *fake) Wants(context.Context, *export.DebugFile) (bool, time.Duration, error) {
	f.asked = append(f.asked, time.Now())
	return f.wants(len(f.asked))
}

func (f *fake) Upload(ctx context.Context, d *export.DebugFile) error {
	f.sent++
	if _, err := io.Copy(io.Discard, d.Body(ctx)); err != nil {
		return err
	}
	if f.upload != nil {
		return f.upload()
	}
	return nil
}

// sleep is a program of the machine.
func sleep(t *testing.T) profile.Module {
	t.Helper()
	path := oracle.Tool(t, "sleep")
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if img.BuildID() == nil {
		oracle.Lacks(t, "a sleep with a build ID")
	}
	return profile.Module{Path: path, BuildID: hex.EncodeToString(img.BuildID())}
}

// TestPauses: an engine that is away is asked ever more seldom; its answers are remembered; one that does not keep a file is asked again when it may have
// forgotten the attempt.
func TestPauses(t *testing.T) {
	m := sleep(t)
	away, full := &export.Later{Err: errors.New("away")}, &export.Refused{Status: "full"}
	run := func(name string, f *fake, hours int, judge func(Stats, []time.Duration)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := New(f)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { u.Run(ctx, func(error) {}); close(done) }()
				began := time.Now()
				for time.Since(began) < time.Duration(hours)*time.Hour {
					u.Offer(of(0, m))
					time.Sleep(10 * time.Second)
				}
				cancel()
				<-done
				var pauses []time.Duration
				for i, at := range f.asked[1:] {
					pauses = append(pauses, at.Sub(f.asked[i]))
				}
				judge(u.Stats(), pauses)
			})
		})
	}
	no := func(int) (bool, time.Duration, error) { return false, 0, nil }
	yes := func(int) (bool, time.Duration, error) { return true, 0, nil }
	run("has it", &fake{wants: no}, 24, func(s Stats, pauses []time.Duration) {
		for _, p := range pauses {
			if p < remembered/2 || p > remembered+time.Minute {
				t.Errorf("asked again after %v", p)
			}
		}
		if s.Unneeded < 4 || s.Unneeded > 9 || s.Uploads != 0 {
			t.Errorf("%+v", s)
		}
	})
	f := &fake{wants: yes}
	run("lies: always wants it", f, 24, func(s Stats, _ []time.Duration) {
		if s.Uploads < 4 || s.Uploads > 9 {
			t.Errorf("%+v", s)
		}
	})
	run("refuses", &fake{wants: yes, upload: func() error { return full }}, 24, func(s Stats, _ []time.Duration) {
		if s.Refused < 4 || s.Refused > 9 || s.Uploads != 0 || s.Err == nil {
			t.Errorf("%+v", s)
		}
	})
	run("breaks off", &fake{wants: yes, upload: func() error { return away }}, 2, func(s Stats, pauses []time.Duration) {
		for _, p := range pauses {
			if p < export.StaleUpload || p > export.StaleUpload+time.Minute {
				t.Errorf("asked again after %v", p)
			}
		}
		if s.Failed < 5 || s.Uploads != 0 {
			t.Errorf("%+v", s)
		}
	})
	run("another sends it", &fake{wants: func(n int) (bool, time.Duration, error) {
		if n == 1 {
			return false, export.StaleUpload, nil
		}
		return true, 0, nil
	}}, 1, func(s Stats, pauses []time.Duration) {
		if s.Unneeded != 1 || s.Uploads != 1 {
			t.Errorf("%+v", s)
		}
	})
	run("away", &fake{wants: func(n int) (bool, time.Duration, error) {
		if n <= 4 {
			return false, 0, away
		}
		return true, 0, nil
	}}, 1, func(s Stats, pauses []time.Duration) {
		for i, p := range pauses {
			if most := leastPause << i; p < most/2 || p > most {
				t.Errorf("try %d came after %v, want %v to %v", i+2, p, most/2, most)
			}
		}
		if s.Failed != 4 || s.Uploads != 1 || s.Err != nil {
			t.Errorf("%+v", s)
		}
	})
}

// TestSilent: a file system that never answers costs a thread for each of a few calls, and no time at the end.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, release := make(chan struct{}, maxCalls), make(chan struct{})
		var went atomic.Int32
		for i := range 2 * maxCalls {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			_, err := limited(ctx, calls, func() (int, error) { went.Add(1); <-release; return 1, nil })
			if took := time.Since(began); !errors.Is(err, errSilent) || i < maxCalls && took != time.Second || i >= maxCalls && took != 0 {
				t.Errorf("call %d: %v, after %v", i, err, took)
			}
			cancel()
		}
		close(release)
		synctest.Wait()
		if n, err := limited(t.Context(), calls, func() (int, error) { return 7, nil }); n != 7 || err != nil || went.Load() != maxCalls {
			t.Errorf("%d, %v, after %d", n, err, went.Load())
		}
	})
}

// TestBounds: numbers of modules that are kept are bounded, and files are sent no faster than told.
func TestBounds(t *testing.T) {
	u := New(&fake{})
	var many []profile.Module
	for i := range 3 * maxWaiting {
		many = append(many, profile.Module{Path: fmt.Sprintf("/a/%d", i), BuildID: fmt.Sprintf("%08x", i)})
	}
	u.Offer(of(1, many...))
	if s := u.Stats(); s.Waiting != maxWaiting || s.Dropped != 2*maxWaiting {
		t.Errorf("%+v", s)
	}
	now := time.Now()
	for i := range 3 * maxKnown {
		u.remember(fmt.Sprint(i), now.Add(time.Hour))
	}
	if len(u.known) != maxKnown {
		t.Errorf("%d are known", len(u.known))
	}
	for _, m := range []profile.Module{{Path: "[vdso]", BuildID: "aabb"}, {Path: "/a"}, {Path: "//anon", BuildID: "aabb"}, {Path: "[kernel]", Kernel: true, BuildID: "aabb"}} {
		if v := New(&fake{}); v.offer(of(1, m), now) {
			t.Errorf("%+v is offered", m)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		d := export.DebugFile{Size: 100_000, ReaderAt: strings.NewReader(strings.Repeat("x", 100_000)), Rate: 10_000}
		began := time.Now()
		if n, err := io.Copy(io.Discard, d.Body(t.Context())); n != d.Size || err != nil || time.Since(began) < 9*time.Second || time.Since(began) > 11*time.Second {
			t.Errorf("%d bytes in %v: %v", n, time.Since(began), err)
		}
		d.Size++
		if _, err := io.Copy(io.Discard, d.Body(t.Context())); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a file that has become shorter: %v", err)
		}
	})
}
