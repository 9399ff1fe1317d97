package main

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAgentHangupAtStart: a SIGHUP that comes while the agent reads its configuration, long before it records, does not end it: the agent reads the file
// again when it has started, and tells systemd that it has.
func TestAgentHangupAtStart(t *testing.T) {
	canRecord(t)
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "agent.toml"), filepath.Join(dir, "notify")
	if err := unix.Mkfifo(file, 0o600); err != nil {
		t.Fatal(err)
	}
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	c := program(t, "agent", "--config", file)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+socket)
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	// answer opens the file, which waits until the agent does, and writes it.
	answer := func(interval string, opened func()) {
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		opened()
		if _, err := f.WriteString("listen = \"\"\noutput = [\"files=" + dir + "/ring\"]\ninterval = \"" + interval + "\"\n"); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	answer("20s", func() {
		if err := c.Process.Signal(syscall.SIGHUP); err != nil {
			t.Error(err)
		}
	})
	systemd.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if n, err := systemd.Read(b); string(b[:n]) != "READY=1" {
		t.Errorf("systemd hears %q, %v; want READY=1", b[:n], err)
	}
	answer("30s", func() {})
	var log strings.Builder
	for in := bufio.NewScanner(pipe); in.Scan(); {
		if log.WriteString(in.Text() + "\n"); strings.Contains(in.Text(), "read again") {
			c.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := c.Wait(); err != nil || !strings.Contains(log.String(), `msg="read again"`) || !strings.Contains(log.String(), "interval=30s") {
		t.Errorf("%v\n%s", err, log.String())
	}
}
