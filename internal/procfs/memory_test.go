package procfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMemoryLimit: the least limit of both versions' groups, also of a container that sees its group at the root.
func TestMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		cgroup string
		files  map[string]string
		want   uint64
	}{
		"version 2":       {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "67108864\n"}, 64 * mib},
		"of both":         {"0::/a/b\n", map[string]string{"a/b/memory.max": "1048576\n", "a/memory.max": "67108864\n"}, mib},
		"no limit":        {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0},
		"container":       {"0::/kubepods/x\n", map[string]string{"memory.max": "67108864\n"}, 64 * mib},
		"version 1":       {"8:cpu:/a\n7:memory:/a\n0::/\n", map[string]string{"memory/a/memory.limit_in_bytes": "67108864\n", "memory/memory.limit_in_bytes": "9223372036854771712\n"}, 64 * mib},
		"with others":     {"7:hugetlb,memory:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "2097152\n"}, 2 * mib},
		"not a number":    {"0::/a\n", map[string]string{"a/memory.max": "many\n"}, 0},
		"not in a group":  {"\n0:\n", nil, 0},
		"up out of there": {"0::/../../a\n", map[string]string{"a/memory.max": "1048576\n"}, mib},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(path, text string) {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", c.cgroup)
			for path, text := range c.files {
				write(filepath.Join("sys/fs/cgroup", path), text)
			}
			if got, ok := memoryLimit(root); got != c.want || ok != (c.want > 0) {
				t.Errorf("%d, %v; want %d", got, ok, c.want)
			}
		})
	}
}

// TestMachineShare: without a limit that is less, a program lives by a quarter of the machine's memory.
func TestMachineShare(t *testing.T) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	want := info.Totalram * uint64(info.Unit) / 4
	if group, ok := memoryLimit("/"); ok {
		want = min(want, group)
	}
	if got, ok := MemoryLimit(); got != want || !ok {
		t.Errorf("%d, %v; want %d", got, ok, want)
	}
}

// TestLimitMemory: a limit that is set holds where it is the least.
func TestLimitMemory(t *testing.T) {
	defer LimitMemory(0)
	machine, _ := MemoryLimit()
	for _, c := range []struct{ set, want uint64 }{{1 << 20, 1 << 20}, {1 << 62, machine}, {0, machine}} {
		LimitMemory(c.set)
		if got, ok := MemoryLimit(); got != c.want || !ok {
			t.Errorf("%d is set: %d, %v; want %d", c.set, got, ok, c.want)
		}
	}
}
