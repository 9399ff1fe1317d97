package rows

import "github.com/unspool/unspool/arch"

// Eval runs expression e over the registers of s, for emitters that keep expressions as they are. With
// pushCFA, the stack starts with cfa. An Outcome other than OK says why there is no value; Unreadable
// sets s.Fault. e is not kept.
func Eval(mach *arch.Machine, e string, s *State, m *Memory, cfa uint64, pushCFA bool) (uint64, Outcome) {
	return eval(mach, e, s, m, cfa, pushCFA)
}
