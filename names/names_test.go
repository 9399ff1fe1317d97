package names

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
)

// TestLateDump: a process maps its dump after code of it was asked for.
func TestLateDump(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "jit-1.dump")
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("DTiJ"), 1)
	b = le.AppendUint32(b, 40) // the size of the header
	b = append(b, make([]byte, 28)...)
	b = le.AppendUint32(append(b, 0, 0, 0, 0), 16+40+5) // JIT_CODE_LOAD
	for _, v := range []uint64{1, 0, 0x7000, 0x7000, 0x100, 1} {
		b = le.AppendUint64(b, v)
	}
	if err := os.WriteFile(dump, append(b, "late\x00"...), 0o600); err != nil {
		t.Fatal(err)
	}
	n := New(Options{})
	defer n.Close()
	pid := int32(os.Getpid())
	var names [1]profile.Name
	if n.made.name(pid, []uint64{0x7010}, names[:]); names[0].Func != "" {
		t.Fatalf("before: %v", names[0])
	}
	n.Observe(&source.Record{Type: source.RecordMmap2, PID: pid, Filename: []byte(dump)})
	if n.made.name(pid, []uint64{0x7010}, names[:]); names[0].Func != "late" {
		t.Errorf("after: %v, %q", names[0], n.Notes())
	}
}
