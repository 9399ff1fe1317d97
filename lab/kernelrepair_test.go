package lab

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/unwind"
)

// TestKernelRepair stops the profiler while its command starts a program that loads 300 shared objects, and the records of that find no room. When
// the profiler goes on, the kernel soon walks stacks through all of them, and perf finds them in the recording.
func TestKernelRepair(t *testing.T) {
	oracle.Long(t)
	needKernel(t)
	oracle.Need(t, "perf", "taskset")
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	const n, chain = 300, 250
	program, many, dir := build(t), compiled(t, "gcc", "many.c"), t.TempDir()
	so := compiled(t, "gcc", "module.c", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-DPAD=600") // too much stack for a copy
	img, err := os.ReadFile(so)
	if err != nil {
		t.Fatal(err)
	}
	_, id := section(t, so, ".note.gnu.build-id")
	var files []string
	for i := range n {
		binary.LittleEndian.PutUint64(img[id-8:], uint64(i))
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.so", i)))
		if err := os.WriteFile(files[i], img, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	// A program whose execve nobody has heard of is copied with all of its stack: it fills the ring of the processor that all stay on,
	// but for less than one such copy; small records fill that.
	var on unix.CPUSet
	if err := unix.SchedGetaffinity(0, &on); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !on.IsSet(cpu) {
		cpu++
	}
	script := fmt.Sprintf("echo $$; read x; %s 500 2 %s %s; for i in $(seq 150); do /bin/true; done; exec %s 3000 %d %s", many, files[0], files[1], many, chain, strings.Join(files, " "))
	out := filepath.Join(dir, "x.data")
	cmd := exec.Command(program, "record", "--source", "ebpf", "-o", out, "--", "taskset", "-c", strconv.Itoa(cpu), "sh", "-c", script)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	tell, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	line, err := bufio.NewReader(said).ReadString('\n')
	pid, nerr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || nerr != nil {
		cmd.Process.Kill()
		cmd.Wait() // it writes complaints
		t.Fatalf("%q: %v\n%s", line, err, complaints.Bytes())
	}
	go io.Copy(io.Discard, said)
	time.Sleep(500 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGSTOP)
	io.WriteString(tell, "\n")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)); bytes.Contains(maps, []byte(files[n-1])) {
			break
		}
		if time.Now().After(deadline) {
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
			loaded := 0
			for _, file := range files {
				if bytes.Contains(maps, []byte(file)) {
					loaded++
				}
			}
			t.Fatalf("process %d has loaded %d of %d objects after a minute, %s not among them (%v)", pid, loaded, len(files), filepath.Base(files[n-1]), err)
		}
	}
	time.Sleep(100 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGCONT)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, complaints.Bytes())
	}

	in, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := perfdata.New(in, out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, whole := 0, 0
	st, err := source.Run(t.Context(), f, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
		if int(s.PID) != pid || s.From == source.NoStack || s.Comm != "many" {
			return nil
		}
		if all++; s.Stop == unwind.Outermost && len(s.User) > chain {
			whole++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d stacks are whole; lost %d and %d; made up for %+v\n%s", whole, all, st.Lost, st.LostSamples, st.Repairs, complaints.Bytes())
	if st.Lost == 0 || st.Repairs.Mappings < n || st.Disordered > 0 {
		t.Errorf("%d lost, %+v made up for, %d out of order", st.Lost, st.Repairs, st.Disordered)
	}
	if all < 500 || whole < all/2 {
		t.Errorf("%d of %d stacks are whole, want half of 500 or more", whole, all)
	}
	if !strings.Contains(complaints.String(), "read from /proc, because no record told of them: ") {
		t.Errorf("no note says what was read from /proc:\n%s", complaints.String())
	}
	events, err := exec.Command("perf", "script", "-i", out, "-F", "pid,time", "--show-mmap-events").Output()
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for line := range strings.Lines(string(events)) {
		if i := strings.Index(line, dir+"/"); i >= 0 && strings.Contains(line, "PERF_RECORD_MMAP2") && strings.Contains(line, fmt.Sprintf(" %d/", pid)) {
			told[strings.TrimSpace(line[i:])] = true
		}
	}
	if len(told) < n {
		t.Errorf("perf knows %d of %d objects", len(told), n)
	}
}
