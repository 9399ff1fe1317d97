package lab

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// TestKernelReplaced: plug-ins that come and go at the same addresses, and that replace each other under one name, with build IDs
// and without.
func TestKernelReplaced(t *testing.T) {
	needKernel(t)
	dir := t.TempDir()
	t.Setenv("UNSPOOL_CACHE", dir)
	for _, id := range []string{"sha1", "none"} {
		var so []string
		for _, pad := range []string{"40", "328", "1000"} {
			so = append(so, compiled(t, "gcc", "plugin.c", "-shared", "-fPIC", "-Wl,--build-id="+id, "-DPAD="+pad))
		}
		check := func(t *testing.T, turns, ms string, plugins ...string) {
			c := newTally()
			cmd := append([]string{compiled(t, "gcc", "dlopen.c"), turns, ms}, plugins...)
			for run := 0; run < busyRuns && c.user < 500; run++ {
				_, ks := kernelRecording(t, ebpf.Options{}, perfevent.Options{Command: cmd, Frequency: 3999}, func(s *source.Sample) error { c.add(s); return nil })
				if ks.Failed > 0 {
					t.Errorf("%d failed: %v", ks.Failed, ks.Err)
				}
			}
			t.Logf("%v", c)
			if c.user < 500 || c.share() < most {
				t.Errorf("%.3f %% of %d stacks are whole", 100*c.share(), c.user)
			}
		}
		t.Run("loops, build ID "+id, func(t *testing.T) { check(t, fmt.Sprint(shortly(100, 2000)), "3", so...) })
		t.Run("renamed, build ID "+id, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "plugin.so")
			check(t, "1", "800", name+"="+so[0], name+"="+so[1], name+"="+so[2])
		})
	}
}

// hostile records a program, and wants nothing of its stacks but that all have a reason to end. It returns the share of those that are
// whole.
func hostile(t *testing.T, o perfevent.Options, alter func()) float64 {
	t.Helper()
	c := newTally()
	r := startKernel(t, o, func(s *source.Sample) error { c.add(s); return nil })
	if alter != nil {
		alter()
	}
	if len(o.PIDs) > 0 { // which go on, and are sampled as often as they compute
		computes(o.PIDs[0], 300*time.Millisecond)
		r.rec.Stop()
	}
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
	t.Logf("%v", c)
	if ks := r.prog.Stats(); ks.Failed > 0 {
		t.Errorf("%d failed: %v", ks.Failed, ks.Err)
	}
	if c.user < 100 {
		t.Errorf("%d samples of the target, want 100 or more: %v", c.user, c)
	}
	return c.share()
}

// computes waits until a process has computed for so long, for a minute at most.
func computes(pid int, long time.Duration) {
	ran := func() (ns int64) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		fmt.Sscan(string(b), &ns)
		return ns
	}
	for from, until := ran(), time.Now().Add(time.Minute); ran() < from+int64(long) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// TestKernelHostile: files that are not what they were, or never were right, and code that is no file's.
func TestKernelHostile(t *testing.T) {
	needKernel(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	host := compiled(t, "gcc", "dlopen.c")
	plugin := func(t *testing.T) (path string, img []byte) {
		path = compiled(t, "gcc", "plugin.c", "-shared", "-fPIC", "-g", "-Wl,--build-id=sha1")
		img, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return path, img
	}
	// begun starts a program that runs already when it is recorded.
	begun := func(t *testing.T, args ...string) int {
		cmd := exec.Command(args[0], args[1:]...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		time.Sleep(50 * time.Millisecond)
		return cmd.Process.Pid
	}
	t.Run("deleted while it runs", func(t *testing.T) {
		so, _ := plugin(t)
		hostile(t, perfevent.Options{Command: []string{host, "1", "500", so}, Frequency: 1999}, func() {
			time.Sleep(20 * time.Millisecond)
			os.Remove(so)
		})
	})
	t.Run("deleted before it is recorded", func(t *testing.T) {
		deep := compiled(t, "gcc", "deep.c")
		pid := begun(t, deep, "50")
		os.Remove(deep)
		hostile(t, perfevent.Options{PIDs: []int{pid}, Frequency: 1999}, nil)
	})
	t.Run("truncated", func(t *testing.T) {
		so, _ := plugin(t)
		pid := begun(t, host, "1", "1000000", so)
		// The sections at the end, which nobody maps, and what leads to them.
		if err := os.Truncate(so, int64(loadedEnd(t, so))); err != nil {
			t.Fatal(err)
		}
		hostile(t, perfevent.Options{PIDs: []int{pid}, Frequency: 1999}, nil)
	})
	t.Run("overwritten", func(t *testing.T) {
		so, img := plugin(t)
		pid := begun(t, host, "1", "1000000", so)
		lo := loadedEnd(t, so)
		rnd := rand.New(rand.NewPCG(1, 5))
		for i := range img[lo:] {
			img[lo+uint64(i)] = byte(rnd.Uint32())
		}
		f, err := os.OpenFile(so, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(img[lo:], int64(lo))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		hostile(t, perfevent.Options{PIDs: []int{pid}, Frequency: 1999}, nil)
	})
	t.Run("truncated where it is mapped", func(t *testing.T) {
		so, img := plugin(t)
		r := startKernel(t, perfevent.Options{Command: []string{host, "1", "3000", so}, Frequency: 1999}, nil)
		time.Sleep(50 * time.Millisecond)
		os.Truncate(so, int64(len(img)/20)) // SIGBUS
		if err := r.wait(t); err != nil {
			t.Error(err)
		}
	})
	t.Run("damaged information", func(t *testing.T) {
		so, img := plugin(t)
		rnd := rand.New(rand.NewPCG(2, 5))
		args := []string{host, "1", "40"}
		for i := range 20 {
			b := slices.Clone(img)
			_, id := section(t, so, ".note.gnu.build-id")
			b[id-1] = byte(i) // each is a file of its own
			for _, name := range []string{".eh_frame", ".eh_frame_hdr"}[:1+i%2] {
				lo, hi := section(t, so, name)
				for range 1 + (hi-lo)/40 {
					b[lo+rnd.Uint64N(hi-lo)] = byte(rnd.Uint32())
				}
			}
			args = append(args, fmt.Sprintf("%s.%d", so, i))
			if err := os.WriteFile(args[len(args)-1], b, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		hostile(t, perfevent.Options{Command: args, Frequency: 1999}, nil)
	})
	for _, way := range []struct {
		name  string
		whole float64
	}{
		{"written", most},
		{"moved", 0},  // the kernel says nothing of mremap
		{"copied", 0}, // the code lies in no file any more, and has no frame pointers
	} {
		t.Run("code that is "+way.name, func(t *testing.T) {
			so, _ := plugin(t)
			share := hostile(t, perfevent.Options{Command: []string{compiled(t, "gcc", "remap.c"), way.name, "500", so}, Frequency: 3999}, nil)
			if share < way.whole {
				t.Errorf("%.3f %% of the stacks are whole", 100*share)
			}
		})
	}
}

// loadedEnd is where the last segment of a file ends that is loaded.
func loadedEnd(t *testing.T, path string) (end uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			end = max(end, p.Off+p.Filesz)
		}
	}
	return end
}

// section is where a section lies in a file.
func section(t *testing.T, path, name string) (lo, hi uint64) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := f.Section(name)
	if s == nil || s.Size == 0 {
		t.Fatalf("%s has no %s", path, name)
	}
	return s.Offset, s.Offset + s.Size
}

// TestKernelModules: a process that has 2,000 shared objects, each of its own build ID, with stacks that lead through 900 of them.
func TestKernelModules(t *testing.T) {
	needKernel(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	const n, chain = 2000, 900
	dir := t.TempDir()
	args := []string{compiled(t, "gcc", "many.c"), "120000", fmt.Sprint(chain)}
	var images [][]byte
	var ids []uint64
	for _, pad := range []string{"24", "72", "200", "3000"} {
		so := compiled(t, "gcc", "module.c", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-DPAD="+pad)
		b, err := os.ReadFile(so)
		if err != nil {
			t.Fatal(err)
		}
		_, hi := section(t, so, ".note.gnu.build-id")
		images, ids = append(images, b), append(ids, hi-8)
	}
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("%d.so", i))
		b := images[i%len(images)]
		binary.LittleEndian.PutUint64(b[ids[i%len(images)]:], uint64(i))
		if err := os.WriteFile(path, b, 0o700); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	// First come stacks that lead through modules whose tables are not there, and that are too large for copies. Soon after the last
	// table, as good as all have to be whole.
	var settled atomic.Bool
	before, user, whole, deepest := 0, 0, 0, 0
	began := time.Now()
	r := startKernel(t, perfevent.Options{Command: args, Frequency: 999}, func(s *source.Sample) error {
		if s.From == source.NoStack {
			return nil
		}
		if !settled.Load() {
			before++
			return nil
		}
		user++
		deepest = max(deepest, len(s.User))
		if s.Stop == unwind.Outermost {
			whole++
		}
		if user == shortly(1000, 20000) {
			return errEnough
		}
		return nil
	})
	tables := 0 // before the process ends, and they with it
	for more := began; tables < n && time.Since(more) < 10*time.Second && time.Since(began) < 100*time.Second; time.Sleep(10 * time.Millisecond) {
		if now := int(r.prog.Stats().Tables); now > tables {
			tables, more = now, time.Now()
		}
	}
	took := time.Since(began)
	time.Sleep(time.Second) // address spaces follow the tables
	settled.Store(true)
	if err := r.wait(t); err != nil && err != errEnough {
		t.Error(err)
	}
	ks := r.prog.Stats()
	t.Logf("all tables are there after %v and %d samples; then %d of %d are whole, the deepest of %d frames", took, before, whole, user, deepest)
	t.Logf("%d tables, %d KB, %d KB of maps; %d by copies; lost %d and %d", ks.Tables, ks.TableBytes>>10, ks.MapBytes>>10, ks.Copied, ks.RingFull, ks.Nested)
	if ks.Failed > 0 {
		t.Errorf("%d failed: %v", ks.Failed, ks.Err)
	}
	if tables < n {
		t.Errorf("%d tables for %d modules", tables, n)
	}
	if user < 500 || float64(whole) < most*float64(user) || deepest <= chain {
		t.Errorf("%d of %d are whole, the deepest of %d frames; want %.0f%% of 500 or more, and more than %d frames", whole, user, deepest, 100*most, chain)
	}
}

var errEnough = errors.New("enough")
