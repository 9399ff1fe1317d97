package ebpf

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestInterrupts: a stack is an interrupt's as far as where that began, and another's is not.
func TestInterrupts(t *testing.T) {
	k, err := loadInterrupts(strings.NewReader(`ffffffff81001000 T do_syscall_64
ffffffff81003000 t asm_common_interrupt
ffffffff81002000 T asm_sysvec_apic_timer_interrupt
ffffffff81002010 T asm_sysvec_call_function
ffffffff81003040 t other
ffffffff81003000 D asm_sysvec_data
`), arch.AMD64)
	if err != nil {
		t.Fatal(err)
	}
	const wake, timer, device, syscall = 0xffffffff81001500, 0xffffffff81002008, 0xffffffff81003010, 0xffffffff81001010
	for _, c := range []struct {
		stack []uint64
		want  int
	}{
		{[]uint64{wake, timer, syscall}, 2},
		{[]uint64{wake, device}, 2},
		{[]uint64{wake, timer, device, syscall}, 3},
		{[]uint64{wake, timer, syscall, device}, 2},
		{[]uint64{wake, syscall}, 0},
		{[]uint64{wake, 0xffffffff81003041}, 0}, // behind the call at the end of other's first byte
		{[]uint64{wake, 0xffffffff81002000}, 0}, // behind a call that does not return
		{nil, 0},
	} {
		var words []byte
		for _, a := range c.stack {
			words = binary.LittleEndian.AppendUint64(words, a)
		}
		if got := len(k.cut(words)) / 8; got != c.want {
			t.Errorf("%#x: %d frames of an interrupt, not %d", c.stack, got, c.want)
		}
	}
	for name, want := range map[string]*arch.Machine{
		"sysvec_call_function_single": arch.AMD64, "el1h_64_irq_handler": arch.ARM64, "el0t_64_irq": arch.ARM64, "el0t_32_irq": arch.ARM64,
		"el1h_64_fiq": arch.ARM64, "el1_irq": arch.ARM64, "el0_irq_naked": arch.ARM64, "el0t_64_sync": nil, "el1h_64_error": nil, "do_idle": nil,
	} {
		for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
			if entersInterrupt(name, m) != (m == want) {
				t.Errorf("%s of %s: %v", name, m.Name, m != want)
			}
		}
	}
	if k, err := loadInterrupts(strings.NewReader("0000000000000000 T asm_sysvec_apic_timer_interrupt\n"), arch.AMD64); err == nil {
		t.Errorf("hidden symbols are no error: they make the ranges %#x", k.ranges)
	}
}
