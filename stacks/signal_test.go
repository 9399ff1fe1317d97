package stacks

import "testing"

func TestSignal(t *testing.T) {
	for _, c := range []struct {
		s    Signal
		want string
	}{
		{Signal{Number: 11, Code: 2, Addr: 0x10, HasAddr: true}, "SIGSEGV: no permission for the address (SEGV_ACCERR), address 0x10"},
		{Signal{Number: 11, Code: 0x80}, "SIGSEGV: sent by the kernel (SI_KERNEL)"},
		{Signal{Number: 6, Code: -6}, "SIGABRT: sent by tkill (SI_TKILL)"},
		{Signal{Number: 8, Code: 1}, "SIGFPE: integer divided by zero (FPE_INTDIV)"},
		{Signal{Number: 3}, "SIGQUIT: sent by kill (SI_USER)"},
		{Signal{Number: 40, Code: 77}, "signal 40: code 77"},
	} {
		if got := c.s.String(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}
