package ptrace

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/arch"
)

func TestParseCall(t *testing.T) {
	if Machine == nil {
		t.Skip("for x86-64 and AArch64")
	}
	for text, want := range map[string]Call{
		"0 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc 0x4011\n": {Number: 0, Registers: Registers{SP: 0x7ffc, PC: 0x4011}},
		"-1 0x7ffc 0x4011":                          {Number: -1, Registers: Registers{SP: 0x7ffc, PC: 0x4011}},
	} {
		got, ok := parseCall(text)
		if !ok || got.Number != want.Number || got.Registers.PC != want.Registers.PC || got.Registers.SP != want.Registers.SP {
			t.Errorf("%q: %v %+v", text, ok, got)
		}
		if got.Number == 0 && got.Registers.Regs[Machine.Syscall.Args[2]] != 3 {
			t.Errorf("%q: %+v", text, got)
		}
	}
	for _, text := range []string{"", "running", "running\n", "1", "-1 0x1 x", "x 0x1 0x2", "1 2 3 4", "-1 0x1 0x0"} {
		if c, ok := parseCall(text); ok {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add("0 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffc 0x4011")
	f.Add("-1 0x7ffc 0x4011")
	f.Fuzz(func(t *testing.T, s string) {
		if c, ok := parseCall(s); ok && (c.Registers.PC == 0 || c.Registers.Known>>Machine.Slot(Machine.SP)&1 == 0) {
			t.Errorf("%q: %+v", s, c)
		}
	})
}

// Read fills what can be read, and cuts pieces where it cannot.
func TestRead(t *testing.T) {
	var b [2]Piece
	b[0] = Piece{Addr: 16, Bytes: make([]byte, 64)}
	there := new(arch.Addr)
	*there = 42
	var pin runtime.Pinner
	pin.Pin(there)
	defer pin.Unpin()
	b[1] = Piece{Addr: uint64(uintptr(unsafe.Pointer(there))), Bytes: make([]byte, 8)}
	if err := Read(os.Getpid(), b[:]); err != nil || len(b[0].Bytes) != 0 || len(b[1].Bytes) != 8 || b[1].Bytes[0] != 42 {
		t.Errorf("%v: %v", err, b)
	}
	many := make([]Piece, 3000)
	for i := range many {
		many[i] = Piece{Addr: uint64(uintptr(unsafe.Pointer(there))), Bytes: make([]byte, i%9)}
		if i%10 == 0 {
			many[i].Addr = 0
		}
	}
	if err := Read(os.Getpid(), many); err != nil {
		t.Fatal(err)
	}
	for i, p := range many {
		if want := i % 9; i%10 == 0 && len(p.Bytes) != 0 || i%10 != 0 && len(p.Bytes) != want {
			t.Fatalf("piece %d: %d bytes, want %d", i, len(p.Bytes), want)
		}
	}
	if err := Read(1999999999, b[1:]); err == nil {
		t.Errorf("Read of process 1999999999, which is not there, has no error: %+v", b[1:])
	}
}
