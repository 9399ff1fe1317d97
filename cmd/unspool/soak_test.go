package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// churn starts processes, some in namespaces of their own, and opens and closes libraries, until there is a file or it has lasted for an hour more
// than it should. A process works for a millisecond.
const churn = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long n;
__attribute__((noinline)) void work(int k) { for (int i = 0; i < k; i++) n += i; }
int main(int argc, char **argv) {
	if (argc == 2) {
		work(300000);
		return 0;
	}
	time_t end = time(NULL) + atoi(argv[3]);
	for (int k = 0; access(argv[1], F_OK) && time(NULL) < end; k++) {
		pid_t p = fork();
		if (p == 0) {
			if (k % 4 == 0)
				unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC);
			execl("/proc/self/exe", "child", "x", (char *)NULL);
			_exit(1);
		}
		char path[4096];
		snprintf(path, sizeof path, "%s/lib%d.so", argv[2], k % 20);
		void *h = dlopen(path, RTLD_NOW);
		if (h) {
			((void (*)(int))dlsym(h, "in_library"))(300000);
			dlclose(h);
		}
		work(100000);
		waitpid(p, NULL, 0);
		usleep(1000);
	}
	return 0;
}
`

// A moody engine takes profiles, talks nonsense, or is busy, silent, or away, each for a while.
type moody struct {
	mood atomic.Int32
	took [5]atomic.Int64
}

func (m *moody) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mood := m.mood.Load()
	m.took[mood].Add(1)
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	switch mood {
	case 0:
		io.WriteString(w, "{}")
	case 1:
		w.Header().Set("Location", "http://127.0.0.1:1/")
		w.WriteHeader(http.StatusTemporaryRedirect)
	case 2:
		w.Header().Set("Retry-After", "1")
		http.Error(w, strings.Repeat("busy", 1<<18), http.StatusTooManyRequests)
	case 3:
		select {
		case <-r.Context().Done():
		case <-time.After(3 * time.Second):
		}
		panic(http.ErrAbortHandler)
	case 4:
		http.Error(w, "away", http.StatusServiceUnavailable)
	}
}

// A footprint is what an agent takes.
type footprint struct{ kib, descriptors, mappings int }

func footprintOf(t *testing.T, pid int) (f footprint) {
	t.Helper()
	var err error
	if f.kib, err = strconv.Atoi(strings.TrimSuffix(procfs.Status(pid, "VmRSS"), " kB")); err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	f.descriptors, f.mappings = len(fds), strings.Count(string(maps), "\n")
	return f
}

// median returns the middle of a part of the measurements.
func median(list []footprint, from, to float64, of func(footprint) int) int {
	var v []int
	for _, f := range list[int(from*float64(len(list))):int(to*float64(len(list)))] {
		v = append(v, of(f))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// TestSoak: for a minute, or UNSPOOL_SOAK, processes come and go, namespaces and libraries, too, and an engine takes profiles, talks nonsense,
// or is busy, silent, or away. From the middle on, the agent takes no more memory, descriptors and mappings; it loses nothing, and says what its engine did
// not take.
func TestSoak(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	length := time.Minute
	if s := os.Getenv("UNSPOOL_SOAK"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	exe, enough := filepath.Join(dir, "churn"), filepath.Join(dir, "enough")
	if err := os.WriteFile(exe+".c", []byte(churn), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, exe+".c", "-ldl")
	for i := range 20 {
		lib := filepath.Join(dir, fmt.Sprintf("lib%d", i))
		if err := os.WriteFile(lib+".c", fmt.Appendf(nil, "static volatile unsigned long n; void in_library(int k) { for (int i = 0; i < k; i++) n += i + %d; }", i), 0o600); err != nil {
			t.Fatal(err)
		}
		oracle.Run(t, "gcc", "-O1", "-g", "-shared", "-fPIC", "-o", lib+".so", lib+".c")
	}
	m := &moody{}
	server := httptest.NewServer(m)
	defer server.Close()
	c := program(t, "agent", "--output", "pyroscope="+server.URL, "--output", "files="+filepath.Join(dir, "ring")+"?size=512K", "--interval", "1s", "--queue", "256K",
		"--listen", "127.0.0.1:0", "--page", "10s", "-F", "49", "--log-format", "json", "--", exe, enough, dir, strconv.Itoa(int(length.Seconds())+3600))
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	defer os.WriteFile(enough, nil, 0o600)
	type line struct {
		Msg, Level, Address              string
		Samples, Lost, Dropped, Profiles int64
	}
	var said []string
	var done, missing line
	ended, page := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(pipe); in.Scan(); {
			var l line
			if json.Unmarshal(in.Bytes(), &l) != nil || l.Level == "ERROR" {
				said = append(said, in.Text())
			}
			switch l.Msg {
			case "listening":
				page <- "http://" + l.Address
			case "done":
				done = l
			case "profiles are missing":
				missing = l
			}
		}
	}()
	// Memory is looked at when Go has collected its garbage: how much of that there is, is another question.
	collect := <-page + "/debug/pprof/heap?gc=1"
	var list []footprint
	began := time.Now()
	mood := 0
	for tick := time.NewTicker(length / 120); time.Since(began) < length; <-tick.C {
		get(t, collect)
		list = append(list, footprintOf(t, c.Process.Pid))
		if next := int(10*time.Since(began)/length) % 5; next != mood { // each mood twice
			mood = next
			m.mood.Store(int32(mood))
		}
	}
	m.mood.Store(0)
	if err := os.WriteFile(enough, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := c.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	if len(said) > 0 {
		t.Errorf("the agent said\n%s", strings.Join(said, "\n"))
	}
	if done.Samples < 50 || done.Lost > 0 || done.Profiles < 10 {
		t.Errorf("%+v", done)
	}
	for _, mood := range []int{0, 1, 2} { // then the pauses are longer than a mood can be
		if m.took[mood].Load() == 0 {
			t.Errorf("in mood %d, the engine was sent nothing", mood)
		}
	}
	for name, of := range map[string]func(footprint) int{
		"KiB of memory": func(f footprint) int { return f.kib }, "descriptors": func(f footprint) int { return f.descriptors }, "mappings": func(f footprint) int { return f.mappings },
	} {
		var quarters [4]int
		for i := range quarters {
			quarters[i] = median(list, float64(i)/4, float64(i+1)/4, of)
		}
		t.Logf("%d %s, by quarters", quarters, name)
		// The engine has the moods of the last quarter in the second one, too, and others in the third. A queue of profiles that are not taken is no growth.
		if end := float64(quarters[3]); end > 1.05*float64(quarters[2]) && end > 1.05*float64(quarters[1]) {
			t.Errorf("%d %s, by quarters: the last one has more", quarters, name)
		}
	}
	t.Logf("%d samples, %d lost, %d profiles, %d not taken", done.Samples, done.Lost, done.Profiles, missing.Dropped)
}

// TestKilled: an agent that is killed at any moment leaves nothing in the kernel: no program, no map, no link.
func TestKilled(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	dir := t.TempDir()
	kills := oracle.Few(20, 200)
	programs, maps, links := 0, 0, 0
	for i := range kills {
		c := program(t, "agent", "--output", "files="+dir, "--interval", "1s", "--listen", "", "-F", "999")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(1500 * time.Millisecond))))
		if err := c.Process.Signal(syscall.SIGSTOP); err != nil { // what it has then is all that it has
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); !strings.HasPrefix(procfs.Status(c.Process.Pid, "State"), "T") && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		held := heldInKernel(t, c.Process.Pid)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		c.Wait()
		programs, maps, links = programs+len(held["prog_id"]), maps+len(held["map_id"]), links+len(held["link_id"])
		for _, k := range []struct {
			what string
			open func(id uint64) (io.Closer, error)
		}{
			{"prog_id", func(id uint64) (io.Closer, error) { return ebpf.NewProgramFromID(ebpf.ProgramID(id)) }},
			{"map_id", func(id uint64) (io.Closer, error) { return ebpf.NewMapFromID(ebpf.MapID(id)) }},
			{"link_id", func(id uint64) (io.Closer, error) { return link.NewFromID(link.ID(id)) }},
		} {
			for _, id := range held[k.what] {
				if err := gone(func() (io.Closer, error) { return k.open(id) }); err != nil {
					t.Errorf("kill %d: %s %d: %v", i, k.what, id, err)
				}
			}
		}
	}
	t.Logf("%d kills, %d programs, %d maps, %d links", kills, programs, maps, links)
	if programs < kills || maps < kills { // some were killed before they had any, and the others had several
		t.Errorf("only %d programs and %d maps were there", programs, maps)
	}
}

// gone waits until something does not exist: the kernel frees it a moment after its last user.
func gone(open func() (io.Closer, error)) error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := open()
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return err
		}
		c.Close()
		if time.Now().After(deadline) {
			return errors.New("it is still there")
		}
	}
}

// heldInKernel returns the numbers of the programs, maps and links that a process has open.
func heldInKernel(t *testing.T, pid int) map[string][]uint64 {
	t.Helper()
	out := map[string][]uint64{}
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fdinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]uint64{}
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32); err == nil {
				found[key] = n
			}
		}
		for _, key := range []string{"link_id", "map_id", "prog_id"} { // a link names its program, too
			if id, ok := found[key]; ok {
				out[key] = append(out[key], id)
				break
			}
		}
	}
	return out
}
