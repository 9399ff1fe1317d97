package procfs

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestAsker: file systems that do not answer hold up whoever asks for a while, and nobody asks them again before they have answered. This does not
// concern files of local file systems, or those whose file systems answer.
func TestAsker(t *testing.T) {
	var a Asker
	const ext4, silent, silent2, nfs, overlay = 1, 2, 3, 4, 5
	a.kinds = map[device]kind{{0, ext4}: local, {0, silent}: other, {0, silent2}: other, {0, nfs}: other, {0, overlay}: layered}
	free := make(chan struct{})
	var asked [overlay + 1]atomic.Int32
	ask := func(dev uint32, blocks bool) bool {
		_, ok := a.AskOf(0, &Mapping{Min: dev}, func() ([]byte, bool) {
			asked[dev].Add(1)
			if blocks {
				<-free
			}
			return []byte{byte(dev)}, true
		})
		return ok
	}
	// Who answers has seconds on a busy machine.
	answers := func(dev uint32) bool {
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if ask(dev, false) {
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
		if ask(silent, true) {
			t.Fatal("a file system that is silent has answered")
		}
	}
	if n := asked[silent].Load(); n > 1 {
		t.Errorf("a file system that does not answer was asked %d times", n)
	}
	if !answers(nfs) || !answers(ext4) {
		t.Error("others, which answer, are not asked any more")
	}
	for range 100 {
		ask(silent2, true)
	}
	if was := asked[nfs].Load(); ask(nfs, false) || asked[nfs].Load() != was {
		t.Errorf("with %d questions that are late, another is asked", maxLate)
	}
	if !answers(ext4) || !answers(overlay) {
		t.Error("a local or a layered file system is not asked, because others do not answer")
	}
	close(free)
	if !answers(silent) || !answers(silent2) || !answers(nfs) {
		t.Error("file systems that answer now are not asked")
	}
}

// TestAskerSlow: answers that all come late, but in time, are not waited for for more than slowTime in slowPeriod.
func TestAskerSlow(t *testing.T) {
	a := Asker{kinds: map[device]kind{{}: other}}
	began := time.Now()
	var waited atomic.Int32
	for range 1000 {
		a.AskOf(0, &Mapping{}, func() ([]byte, bool) {
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
		if got := kindIn([]byte(text), c.dev); got != c.want {
			t.Errorf("device %v has kind %d, want %d", c.dev, got, c.want)
		}
	}
}
