package compact

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestSlots holds the slots that rules are applied with against arch: constants are faster there than fields.
func TestSlots(t *testing.T) {
	a, b := arch.AMD64, arch.ARM64
	if a.Slot(a.SP) != amd64SP || a.Slot(a.RA) != amd64RA || b.Slot(b.SP) != arm64SP || b.Slot(b.RA) != arm64RA {
		t.Error("the stack pointer or the return address has another slot")
	}
	saves := append(b.CalleeSaved[:len(b.CalleeSaved):len(b.CalleeSaved)], b.RA)
	if len(saves) != arm64Saves {
		t.Fatalf("%d registers are saved, not %d", len(saves), arm64Saves)
	}
	for i, r := range saves {
		if got, want := arm64Slots[i], uint8(b.Slot(r)); got != want {
			t.Errorf("arm64Slots[%d] = %d, want %d", i, got, want)
		}
	}
}
