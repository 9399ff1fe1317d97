package unxz

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// packed returns what xz makes of data.
func packed(t testing.TB, data []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("xz", append([]string{"--format=xz", "-T1"}, args...)...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestXZ: what xz packed comes out as it was, through x86's filter too, which is at work in this program's own code and in bytes made to
// confuse it.
func TestXZ(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "xz")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	code = code[:min(len(code), 1<<20)]
	dense := make([]byte, 1<<16)
	for i, x := 0, uint32(1); i < len(dense); i++ {
		x = x*1664525 + 1013904223
		dense[i] = []byte{0xe8, 0xe9, 0, 0xff, 1, 0xfe, 0xe8, byte(x)}[x>>29]
	}
	for _, data := range [][]byte{nil, []byte("\xe8\x00"), code, dense} {
		for _, args := range [][]string{{"-1"}, {"--x86", "--lzma2=preset=1"}, {"--x86=start=4096", "--lzma2=preset=1"},
			{"--x86", "--lzma2=preset=1", "--block-size=60000", "--check=crc32"}, {"-1", "--check=none", "--block-size=60001"}} {
			b := append(packed(t, data, args...), "\x01\x02\x03\x04"...) // what follows is not read
			got, err := Decode(b, len(data))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("xz %v of %d bytes: %d bytes, %v", args, len(data), len(got), err)
			}
			if _, err := Decode(b, len(data)-1); len(data) > 0 && !errors.Is(err, ErrMalformed) {
				t.Errorf("xz %v of %d bytes, a byte too many: %v", args, len(data), err)
			}
		}
	}
	// A stream ends with an index and a footer, which know of all blocks.
	const size = 200
	b := packed(t, code[:size], "-1", "--block-size=100")
	for n := range b {
		if got, err := Decode(b[:n], size); err == nil {
			t.Fatalf("%d of %d bytes are decoded, to %d of %d", n, len(b), len(got), size)
		}
	}
	if got, err := Decode(b, size); err != nil || len(got) != size {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := Decode(packed(t, code, "--delta", "--lzma2=preset=1"), len(code)); !errors.Is(err, ErrMalformed) {
		t.Errorf("another filter: %v", err)
	}
}

// TestWindows: empty blocks that ask for large windows are not worth the memory.
func TestWindows(t *testing.T) {
	oracle.Long(t)
	block := []byte{2, 0, 0x21, 1, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // 40 is 4 GiB less one byte; the header's checksum is not looked at
	b := slices.Concat([]byte("\xfd7zXZ\x00\x00\x00\x00\x00\x00\x00"), bytes.Repeat(block, 1000))
	if _, err := Decode(b, 64<<20); !errors.Is(err, ErrMalformed) {
		t.Errorf("1000 windows of 64 MiB: %v", err)
	}
}

func FuzzXZ(f *testing.F) {
	if _, err := exec.LookPath("xz"); err == nil {
		data := bytes.Repeat([]byte("symbols \xe8\x00\x00\x00\x00"), 100)
		for _, args := range [][]string{{"-9"}, {"--check=none", "--block-size=100"}, {"--x86", "--lzma2=preset=1"}} {
			f.Add(packed(f, data, args...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		limit := 1<<20 + 100*len(b)
		if out, err := Decode(b, limit); err == nil && len(out) > limit {
			t.Errorf("%d bytes from %d", len(out), len(b))
		}
	})
}
