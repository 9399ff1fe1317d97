package fleet

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// A collector is an OpenTelemetry collector that can be stopped and started again at the same address.
type collector struct {
	exe, config, at string
	out             string // the file that it writes now; "": it writes none
	runs            int
	cmd             *exec.Cmd
	log             bytes.Buffer
}

// newCollector prepares a collector that takes OTLP by http or grpc. It writes what it takes to a file for each start, or, without files, nowhere.
func newCollector(t *testing.T, scheme string, files bool) *collector {
	t.Helper()
	dir := t.TempDir()
	c := &collector{exe: oracle.Engine(t, "collector"), config: filepath.Join(dir, "c.yaml")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.at = l.Addr().String()
	l.Close()
	if files {
		c.out = filepath.Join(dir, "out")
	}
	exporter := "nop"
	if files {
		exporter = "file"
	}
	for kind, processor := range map[string]string{"": "", full: "memory_limiter"} {
		config := fmt.Sprintf(`
receivers: {otlp: {protocols: {%s: {endpoint: %q}}}}
processors: {memory_limiter: {check_interval: 100ms, limit_mib: 1}}
exporters: {nop: , file: {path: %q}}
service:
  telemetry: {logs: {level: fatal}, metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], processors: [%s], exporters: [%s]}}
`, scheme, c.at, filepath.Join(dir, "out"), processor, exporter)
		if err := os.WriteFile(c.config+kind, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if c.cmd != nil {
			c.cmd.Process.Kill()
			c.cmd.Wait()
		}
	})
	return c
}

// full is the end of the name of a configuration: of a collector whose memory is always full, so that it asks all to come again.
const full = ".full"

// start starts the collector with a configuration, and waits until it listens.
func (c *collector) start(t *testing.T, kind string) {
	t.Helper()
	c.log.Reset()
	c.cmd = exec.Command(c.exe, "--config", "file:"+c.config+kind, "--feature-gates=service.profilesSupport")
	c.cmd.Stdout, c.cmd.Stderr = &c.log, &c.log
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", c.at); err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			c.cmd.Process.Kill()
			c.cmd.Wait()
			t.Fatalf("the collector does not listen:\n%s", &c.log)
		}
	}
}

// stop ends the collector, which answers what it has begun, and returns the file that it has written.
func (c *collector) stop(t *testing.T) (file string) {
	t.Helper()
	c.cmd.Process.Signal(os.Interrupt)
	killed := time.AfterFunc(time.Minute, func() { c.cmd.Process.Kill() })
	c.cmd.Wait()
	if !killed.Stop() {
		t.Errorf("the collector did not end:\n%s", &c.log)
	}
	c.cmd = nil
	if c.out == "" {
		return ""
	}
	c.runs++
	file = fmt.Sprint(c.out, c.runs)
	if err := os.Rename(c.out, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// A use is what a process has used.
type use struct {
	cpu time.Duration
	kib int // resident memory
}

// useOf returns what a process has used so far, its CPU time to the hundredth of a second.
func useOf(t *testing.T, pid int) (u use) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	if u.kib, err = strconv.Atoi(strings.TrimSuffix(procfs.Status(pid, "VmRSS"), " kB")); err != nil {
		t.Fatal(err)
	}
	return u
}
