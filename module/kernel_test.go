package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// bzImage makes a kernel image of a payload, which is followed by the length of what comes out of it, if that is not in the payload.
func bzImage(payload []byte, size int) []byte {
	le := binary.LittleEndian
	b := make([]byte, 3*bzSector)
	b[bzSetupSects] = 1
	copy(b[bzBootFlag:], "\x55\xaa")
	copy(b[bzMagic:], "HdrS")
	le.PutUint16(b[bzVersion:], 0x20f)
	le.PutUint32(b[bzPayloadOffset:], bzSector)
	if size >= 0 {
		payload = le.AppendUint32(slices.Clone(payload), uint32(size))
	}
	le.PutUint32(b[bzPayloadSize:], uint32(len(payload)))
	return append(append(b, payload...), "what follows"...)
}

// expanded opens an image in memory as Open does a file.
func expanded(name string, b []byte) (*Image, error) { return newImage(name, b, uint64(len(b)), true) }

// kernelELF is a vmlinux of two sections, of so many bytes of code.
func kernelELF(code []byte) []byte {
	e := synth{is64: true, order: binary.LittleEndian, typ: elf.ET_EXEC, machine: elf.EM_X86_64, secs: []synthSection{
		{name: ".text", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, addr: 0x1000, data: code},
		{name: ".rodata", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, addr: 0x9000000, data: bytes.Repeat([]byte("constants "), 50)},
	}}
	return e.bytes()
}

// lz4Packed makes blocks of literals and matches that repeat the last bytes.
func lz4Packed(b []byte) []byte {
	le := binary.LittleEndian
	out := []byte("\x02\x21\x4c\x18")
	for len(b) > 0 {
		block := b[:min(len(b), 8<<20)]
		b = b[len(block):]
		var seq []byte
		length := func(n int) {
			if n >= 15 {
				for n -= 15; n >= 255; n -= 255 {
					seq = append(seq, 255)
				}
				seq = append(seq, byte(n))
			}
		}
		for len(block) > 0 {
			// A run of one byte, behind at least one literal, is a match that overlaps itself.
			lit := 1
			for lit < len(block) && (lit < 5 || block[lit] != block[lit-1]) {
				lit++
			}
			run := 0
			for lit+run < len(block) && block[lit+run] == block[lit-1] {
				run++
			}
			if run < 4 || lit+run == len(block) {
				lit, run = len(block), 0
			}
			token := byte(min(lit, 15) << 4)
			if run > 0 {
				token |= byte(min(run-4, 15))
			}
			seq = append(seq, token)
			length(lit)
			seq = append(seq, block[:lit]...)
			if run > 0 {
				seq = le.AppendUint16(seq, 1)
				length(run - 4)
			}
			block = block[lit+run:]
		}
		out = append(le.AppendUint32(out, uint32(len(seq))), seq...)
	}
	return out
}

// packed returns what a program makes of data.
func packed(t testing.TB, data []byte, args ...string) []byte {
	t.Helper()
	oracle.Need(t, args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

// kernels are images of a vmlinux, by how it is compressed: with the options of Linux's build (scripts/Makefile.lib, scripts/xz_wrap.sh).
func kernels(t testing.TB, vmlinux []byte) map[string][]byte {
	n := len(vmlinux)
	z, err := zstd.NewWriter(nil, zstd.WithWindowSize(128<<20), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var streamed bytes.Buffer // with a window that is larger than the kernel
	z.Reset(&streamed)
	for part := range slices.Chunk(vmlinux, 1<<16) {
		z.Write(part)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"gzip":           bzImage(packed(t, vmlinux, "gzip", "-n", "-f", "-9"), -1),
		"bzip2":          bzImage(packed(t, vmlinux, "bzip2", "-9"), n),
		"lzma":           bzImage(packed(t, vmlinux, "xz", "--format=lzma", "-9"), n),
		"xz":             bzImage(packed(t, vmlinux, "xz", "--check=crc32", "--x86", "--lzma2=,dict=32MiB"), n),
		"lz4":            bzImage(lz4Packed(vmlinux), n),
		"zstd":           bzImage(streamed.Bytes(), n),
		"not compressed": bzImage(vmlinux, n),
	}
}

// TestKernelImage: a kernel that boots is opened as the vmlinux in it, however that is compressed, from a file and from memory.
func TestKernelImage(t *testing.T) {
	oracle.Long(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile(exe) // x86's filter has work to do
	if err != nil {
		t.Fatal(err)
	}
	vmlinux := kernelELF(append(code[:min(len(code), 1<<19)], make([]byte, 8<<20)...))
	before, all := inflating.Load(), []*Image{}
	for name, b := range kernels(t, vmlinux) {
		path := filepath.Join(t.TempDir(), "vmlinuz")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		mapped, err := Open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		inMemory, err := expanded("vmlinuz", b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, img := range []*Image{mapped, inMemory} {
			if s := img.Section(".rodata"); !bytes.Equal(img.Bytes(), vmlinux) || s == nil || s.Addr != 0x9000000 || img.Machine() != arch.AMD64 {
				t.Errorf("%s: %d bytes, %d sections, section %v", name, len(img.Bytes()), len(img.Sections()), s)
			}
			if got := img.Inflated(); got != int64(len(vmlinux)) {
				t.Errorf("%s: %d bytes inflated, want %d", name, got, len(vmlinux))
			}
			ReleasePages()
			exercise(img)
		}
		all = append(all, mapped, inMemory)
		if err := mapped.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, want := inflating.Load()-before, int64(len(all)*len(vmlinux)); got != want {
		t.Errorf("%d images count as %d bytes, want %d", len(all), got, want)
	}
	runtime.KeepAlive(all)
}

// TestCompressedModule: a compressed module is opened as the module, by its name and its first bytes; a damaged one is an error.
func TestCompressedModule(t *testing.T) {
	ko := kernelELF(bytes.Repeat([]byte("\xe8\x00\x00\x00\x00\x90"), 5000))
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{"m.ko.xz": packed(t, ko, "xz", "--check=crc32", "--lzma2=dict=1MiB"), "m.ko.gz": packed(t, ko, "gzip"), "m.ko.zst": z.EncodeAll(ko, nil), "plain.ko.xz": ko}
	z.Close()
	for name, b := range files {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		img, err := Open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(img.Bytes(), ko) || img.Section(".rodata") == nil {
			t.Errorf("%s: %d bytes, want %d", name, len(img.Bytes()), len(ko))
		}
		exercise(img)
		if err := img.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "plain.ko.xz" {
			continue
		}
		if _, err := expanded(name, b[:len(b)/2]); err == nil {
			t.Errorf("half of %s is opened", name)
		}
		if _, err := expanded("m.xz", b); !errors.Is(err, ErrFormat) {
			t.Errorf("%s, called m.xz: %v", name, err)
		}
	}
	// 100 times as long, and 4 MiB more, is the limit.
	bomb := packed(t, make([]byte, 12<<20), "gzip")
	if _, err := expanded("bomb.ko.gz", bomb); err == nil || !strings.Contains(err.Error(), "expands to more than") {
		t.Errorf("a bomb of %d bytes: %v", len(bomb), err)
	}
}

// TestNotExpanded: a kernel or module that no user names is not expanded, whoever maps it: any process of any user can.
func TestNotExpanded(t *testing.T) {
	code := make([]byte, 1<<20)
	ko := kernelELF(code)
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	dir := t.TempDir()
	for name, b := range map[string][]byte{"vmlinuz": bzImage(lz4Packed(ko), len(ko)), "m.ko.zst": z.EncodeAll(ko, nil)} {
		path := filepath.Join(dir, name)
		debug := filepath.Join(dir, ".build-id", "12", "34.debug")
		if err := errors.Join(os.WriteFile(path, b, 0o600), os.MkdirAll(filepath.Dir(debug), 0o700), os.WriteFile(debug, b, 0o600)); err != nil {
			t.Fatal(err)
		}
		f, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l := Locator{DebugDirs: []string{dir}}
		defer l.Close()
		runtime.GC()
		for what, open := range map[string]func() (*Image, error){
			"Map":        func() (*Image, error) { return Map(f) },
			"New":        func() (*Image, error) { return New(path, b) },
			"OpenMapped": func() (*Image, error) { return OpenMapped(path) },
			"Find":       func() (*Image, error) { img, _, err := l.Find(path, "", 0); return img, err },
			"Debug":      func() (*Image, error) { return l.Debug("1234") },
		} {
			before := inflating.Load()
			if img, err := open(); img != nil || !errors.Is(err, ErrFormat) {
				t.Errorf("%s of %s: %v, %v", what, name, img, err)
			}
			if n := inflating.Load() - before; n > 0 {
				t.Errorf("%s of %s: %d bytes expanded", what, name, n)
			}
		}
	}
}

// TestKernelDamage: errors say where, and what is not read is named.
func TestKernelDamage(t *testing.T) {
	oracle.Need(t, "gzip")
	vmlinux := kernelELF(make([]byte, 5000))
	lz4 := lz4Packed(vmlinux)
	edit := func(at int, value byte) []byte {
		b := bzImage(lz4, len(vmlinux))
		b[at] = value
		return b
	}
	zboot := slices.Concat([]byte("MZ\x00\x00zimg\x00\x10\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00zstd"), make([]byte, 100))
	for _, c := range []struct {
		name string
		b    []byte
		want string
		is   error
	}{
		{"protocol", edit(bzVersion, 7), "k+0x206: bzImage of protocol 2.07", ErrUnsupported},
		{"offset", edit(bzPayloadOffset+3, 0xff), "k+0xff000600: kernel of ", ErrTruncated},
		{"size", edit(bzPayloadSize+3, 1), "k+0x600: kernel of 0x1", ErrTruncated},
		{"empty", bzImage(nil, -1), "k+0x600: kernel of 0x0 bytes", ErrTruncated},
		{"lzo", bzImage([]byte("\x89LZO\x00\r\n\x1a\n"), 100), "kernel, lzo: unsupported", ErrUnsupported},
		{"format", bzImage([]byte("other"), 100), "kernel, compressed as 6f 74 68 65: unsupported", ErrUnsupported},
		{"bomb", bzImage(lz4, 1<<31), "would expand to 2147483648", ErrUnsupported},
		{"too long", bzImage(lz4, len(vmlinux)-1), "kernel, lz4: malformed", ErrMalformed},
		{"too short", bzImage(lz4, len(vmlinux)+1), "kernel, lz4: malformed", ErrMalformed},
		{"gzip too long", bzImage(append(packed(t, vmlinux, "gzip")[:100], 1, 2, 0, 0), -1), "kernel, gzip: malformed", ErrMalformed},
		{"no ELF", bzImage(lz4Packed(make([]byte, 100)), 100), ErrFormat.Error(), ErrFormat},
		{"zboot", zboot, `k+0x4: an EFI program (zboot, "zstd"): the kernel in it has no sections: unsupported`, ErrUnsupported},
	} {
		before := inflating.Load()
		img, err := expanded("k", c.b)
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.is) {
			t.Errorf("%s: %v, %v, want %s", c.name, img, err, c.want)
		}
		if got := inflating.Load() - before; got != 0 && c.name != "no ELF" {
			t.Errorf("%s: counted as %d bytes", c.name, got)
		}
	}
}

// TestKernelFault: a kernel that cannot be read while it is expanded, as in a file that was truncated, does not count as expanded.
func TestKernelFault(t *testing.T) {
	const page = 1 << 16 // no less than any machine's
	code := make([]byte, 8*page)
	for i, x := 0, uint32(1); i < len(code); i++ { // it does not shrink
		x = x*1664525 + 1013904223
		code[i] = byte(x >> 24)
	}
	image := bzImage(lz4Packed(kernelELF(code)), len(kernelELF(code)))
	b, err := unix.Mmap(-1, 0, len(image), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	copy(b, image)
	if err := unix.Mprotect(b[4*page:5*page], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	before := inflating.Load()
	if err := Guard(func() error { _, err := expanded("vmlinuz", b); return err }); !errors.Is(err, ErrTruncated) {
		t.Errorf("a kernel that cannot be read: %v", err)
	}
	if got := inflating.Load() - before; got > 0 { // the garbage collector may give back what other tests expanded
		t.Errorf("it counts as %d bytes", got)
	}
}

// FuzzKernel reads arbitrary kernel images. They cost no more than their size allows.
func FuzzKernel(f *testing.F) {
	for _, b := range kernels(f, kernelELF(bytes.Repeat([]byte("\xe8\x00\x00\x00\x00\x90"), 20))) {
		f.Add(b[3*bzSector : len(b)-len("what follows")]) // modules, too, where a format is theirs
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		le := binary.LittleEndian
		if len(b) < 8 {
			return
		}
		image := bzImage(b, -1)
		bytes, took := try(image, true)
		// Windows and tables of the decoders, and what comes out, twice while it grows.
		grown := uint64(le.Uint32(b[len(b)-4:]))
		if grown > maxGrowth+maxRatio*uint64(len(b)) {
			grown = 0
		}
		for suffix := range moduleFormats {
			if img, err := expanded("m"+suffix, b); err == nil {
				exercise(img)
			}
		}
		if bytes > 64<<20+6*grown || took > 5*time.Second {
			t.Errorf("%d bytes allocated in %v, for %d bytes that become %d", bytes, took, len(image), grown)
		}
	})
}
