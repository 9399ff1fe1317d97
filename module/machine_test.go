package module

import (
	"encoding/binary"
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
		have *arch.Machine // nil: none is found
	}{
		{&Locator{}, other}, {&Locator{Machine: other}, other}, {&Locator{Machine: m}, nil},
		{&Locator{Sysroot: root}, m}, {&Locator{Sysroot: root, Machine: m}, m}, {&Locator{Sysroot: root, Machine: other}, other},
	} {
		img, _, err := c.l.Find(path, "", 0)
		var e *MachineError
		switch {
		case c.have != nil && (err != nil || img.Machine() != c.have):
			t.Errorf("%q, for %v: %v, want a file for %s", c.l.Sysroot, c.l.Machine, err, c.have.Name)
		case c.have == nil && (img != nil || !errors.As(err, &e) || e.Path != path || !strings.HasSuffix(err.Error(), " is for "+other.Name+", but was recorded on "+m.Name)):
			t.Errorf("%q, for %s: %v", c.l.Sysroot, c.l.Machine.Name, err)
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
		if vdso, _, err := c.l.Find("[vdso]", "", 0); (vdso != nil) != (c.l.Machine == nil || c.l.Machine == m) || err != nil {
			t.Errorf("[vdso] for %v: %v, %v", c.l.Machine, vdso, err)
		} else if vdso != nil {
			vdso.Release()
		}
		c.l.Close()
	}
}
