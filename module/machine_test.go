package module

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestMachine: files for another machine than the wanted one are not taken, whatever leads to them, and the error names both machines.
func TestMachine(t *testing.T) {
	host, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	m := arch.ByELF(binary.LittleEndian.Uint16(host[18:]))
	other := arch.ARM64
	if m == other {
		other = arch.AMD64
	}
	dir := t.TempDir()
	path, root := filepath.Join(dir, "program"), filepath.Join(dir, "root")
	foreign := append([]byte{}, host...)
	binary.LittleEndian.PutUint16(foreign[18:], other.ELF)
	below := filepath.Join(root, path)
	if err := errors.Join(os.WriteFile(path, foreign, 0o700), os.MkdirAll(filepath.Dir(below), 0o700), os.WriteFile(below, host, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		l    *Locator
		want *arch.Machine
		have *arch.Machine // nil: none is found
	}{
		{&Locator{}, nil, other}, {&Locator{}, other, other}, {&Locator{}, m, nil},
		{&Locator{Sysroot: root}, nil, m}, {&Locator{Sysroot: root}, m, m}, {&Locator{Sysroot: root}, other, other},
	} {
		c.l.For(c.want)
		img, _, err := c.l.Find(path, "", 0)
		var e *MachineError
		switch {
		case c.have != nil && (err != nil || img.Machine() != c.have):
			t.Errorf("%q, for %v: %v, want a file for %s", c.l.Sysroot, c.want, err, c.have.Name)
		case c.have == nil && (img != nil || !errors.As(err, &e) || e.Path != path || !strings.HasSuffix(err.Error(), " is for "+other.Name+", but was recorded on "+m.Name)):
			t.Errorf("%q, for %s: %v", c.l.Sysroot, c.want.Name, err)
		}
		if img != nil {
			img.Release()
		}
		searched, _, refused := c.l.Search(Wanted{Path: path})
		if (searched == nil) != (c.have == nil) || searched == nil && !(len(refused) == 1 && errors.As(refused[0].Err, &e)) {
			t.Errorf("Search below %q: %v, %+v", c.l.Sysroot, searched, refused)
		}
		if searched != nil {
			searched.Release()
		}
		// The vDSO of this machine is not another's.
		if vdso, _, err := c.l.Find("[vdso]", "", 0); (vdso != nil) != (c.want == nil || c.want == m) || err != nil {
			t.Errorf("[vdso] for %v: %v, %v", c.want, vdso, err)
		} else if vdso != nil {
			vdso.Release()
		}
		c.l.Close()
	}
}

// TestMachineAfterAnother: what was found for one machine is not handed to who reads for the next, and is there again for the first.
func TestMachineAfterAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, small(true, binary.LittleEndian), 0o700); err != nil {
		t.Fatal(err)
	}
	var l Locator
	defer l.Close()
	for _, id := range []string{"", hex.EncodeToString(smallID)} {
		for i, m := range []*arch.Machine{arch.AMD64, arch.ARM64, arch.AMD64} {
			before := l.For(m)
			img, _, err := l.Find(path, id, 0)
			if (img != nil) != (m == arch.AMD64) || (err == nil) != (img != nil) || i > 0 && before == m {
				t.Errorf("build ID %q, for %s after %v: %v, %v", id, m.Name, before, img, err)
			}
			if img != nil {
				img.Release()
			}
		}
	}
}

// TestMachine32: a 64-bit machine runs the 32-bit programs of its own kind, and no others.
func TestMachine32(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	for _, c := range []struct {
		m       *arch.Machine
		program uint16
		fits    bool
	}{
		{arch.AMD64, arch.EM_386, true}, {arch.AMD64, arch.EM_ARM, false}, {arch.ARM64, arch.EM_ARM, true}, {arch.ARM64, arch.EM_386, false},
		{arch.ByELF(arch.EM_S390), arch.EM_386, false}, {arch.ByELF(arch.EM_S390), 0, false}, {arch.ByELF(arch.EM_386), arch.EM_386, true},
	} {
		b := small(false, binary.LittleEndian)
		binary.LittleEndian.PutUint16(b[18:], c.program)
		os.Remove(path)
		if err := os.WriteFile(path, b, 0o700); err != nil {
			t.Fatal(err)
		}
		var l Locator
		l.For(c.m)
		img, _, err := l.Find(path, "", 0)
		if (img != nil) != c.fits || (err == nil) != c.fits {
			t.Errorf("a program of machine %d on %s: %v, %v", c.program, c.m.Name, img, err)
		}
		if img != nil {
			if _, ok := img.VaddrToOff(0x401010); !ok {
				t.Errorf("a program of machine %d on %s: 0x401010 is nowhere in the file; want an offset, of segments %+v", c.program, c.m.Name, img.Segments())
			}
			img.Release()
		}
		l.Close()
	}
}
