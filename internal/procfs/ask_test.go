package procfs

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestAsker: file systems that do not answer hold up whoever asks for a while, and are not asked for the same process before they have answered. This does
// not concern other processes, until many questions wait; and then no local or layered file systems.
func TestAsker(t *testing.T) {
	var a Asker
	const ext4, silent, overlay = 1, 2, 3
	a.kinds, a.since = map[device]kind{{0, ext4}: local, {0, silent}: other, {0, overlay}: layered}, time.Now().Add(time.Hour)
	free := make(chan struct{})
	var asked atomic.Int32
	ask := func(pid int, dev uint32, blocks bool) bool {
		_, ok := AskOf(&a, pid, &Mapping{Min: dev}, func() ([]byte, bool) {
			asked.Add(1)
			if blocks {
				<-free
			}
			return []byte{byte(dev)}, true
		})
		return ok
	}
	// Who answers has seconds on a busy machine.
	answers := func(pid int, dev uint32) bool {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if ask(pid, dev, false) {
				return true
			}
			a.mu.Lock()
			for i := range a.by {
				a.by[i].spent = 0
			}
			a.mu.Unlock()
		}
		return false
	}
	for range 100 {
		if ask(1, silent, true) {
			t.Fatal("a file system that is silent has answered")
		}
	}
	if n := asked.Load(); n > 1 {
		t.Errorf("a file system that does not answer was asked %d times for a process", n)
	}
	if !answers(2, silent) || !answers(2, ext4) {
		t.Error("others, which answer, are not asked any more")
	}
	for pid := 3; pid < maxLate+100; pid++ {
		ask(pid, silent, true)
		if pid < 40 {
			a.mu.Lock()
			a.by[other].spent = 0
			a.mu.Unlock()
		}
	}
	if was := asked.Load(); ask(2, silent, false) || asked.Load() != was {
		t.Errorf("with %d questions that are late, another is asked", maxLate)
	}
	if !answers(2, ext4) || !answers(2, overlay) {
		t.Error("a local or a layered file system is not asked, because others do not answer")
	}
	close(free)
	if !answers(1, silent) || !answers(2, silent) || !answers(3, silent) {
		t.Error("file systems that answer now are not asked")
	}
}

// TestAskerSlow: answers that all come late, but in time, are not waited for for more than slowTime in slowPeriod.
func TestAskerSlow(t *testing.T) {
	a := Asker{kinds: map[device]kind{{}: other, {1, 0}: local}, since: time.Now().Add(time.Hour)}
	began := time.Now()
	var waited atomic.Int32
	for range 1000 {
		AskOf(&a, 0, &Mapping{}, func() ([]byte, bool) {
			waited.Add(1)
			a.mu.Lock()
			a.by[other].spent += slowTime / 4 // as if it had waited for so long
			a.mu.Unlock()
			return nil, true
		})
	}
	if n := waited.Load(); n > 4 && time.Since(began) < slowPeriod {
		t.Errorf("%d answers were waited for that take %v each, want at most 4", n, slowTime/4)
	}
	a.by[local] = patience{since: time.Now().Add(time.Hour), spent: slowTime}
	for tries := 0; ; tries++ {
		if _, ok := AskOf(&a, 0, &Mapping{Maj: 1}, func() ([]byte, bool) { return nil, true }); ok {
			break
		} else if tries == 1000 {
			t.Fatal("local file systems, which answer at once, are not asked any more")
		}
	}
}

func TestKindIn(t *testing.T) {
	const text = `26 1 254:0 / / rw,relatime - ext4 /dev/vda rw
27 26 0:24 / /mnt rw,relatime shared:1 master:2 - fuse.sshfs x ro
28 26 0:25 / /tmp rw - tmpfs tmpfs rw
29 26 0:26 / /a rw - overlay overlay rw
30 26 0:27 / /b
31 26 0:28 / /c rw shared:1 -`
	for _, c := range []struct {
		dev  device
		want kind
	}{{device{254, 0}, local}, {device{0, 24}, other}, {device{0, 25}, local}, {device{0, 26}, layered}, {device{0, 27}, other}, {device{0, 28}, other},
		{device{0, 2}, other}, {device{54, 0}, other}} {
		listed := c.dev != device{0, 2} && c.dev != device{54, 0} && c.dev != device{0, 27} && c.dev != device{0, 28}
		if got, ok := kindIn([]byte(text), c.dev); got != c.want || ok != listed {
			t.Errorf("device %v has kind %d, %v, want %d, %v", c.dev, got, ok, c.want, listed)
		}
	}
}
