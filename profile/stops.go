package profile

import "github.com/unspool/unspool/unwind"

// Mark returns the name for the unknown callers beyond a stack's outermost frame: "[truncated]" or "[broken]"; "" if the stack is whole or
// has no user part.
func Mark(s unwind.Stop) string {
	switch g := Grade(s); g {
	case "truncated", "broken":
		return "[" + g + "]"
	}
	return ""
}

// Why says why the callers of a stack's outermost frame are not known; "" where Mark is "".
func Why(s unwind.Stop) string { return why[min(s, unwind.NumStops)].why }

// Reason says the same in a few words, for lists of counts: "code without unwind information".
func Reason(s unwind.Stop) string { return why[min(s, unwind.NumStops)].reason }

var why = [unwind.NumStops + 1]struct{ reason, why string }{
	unwind.NoInfo: {
		"code without unwind information",
		"there is no unwind information for the outermost function shown",
	},
	unwind.BadCFA: {
		"the frame address did not move up",
		"the stack pointer of the outermost function’s caller cannot be computed",
	},
	unwind.Truncated: {
		"cut off",
		"the recorded copy of the stack ends here (record with a larger --stack-size), or none was to be made",
	},
	unwind.BadMemory: {
		"memory that cannot be read",
		"memory that is needed to find them could not be read",
	},
	unwind.BadReturn: {
		"a return address outside of all code",
		"the return address lies outside of all code",
	},
	unwind.DepthLimit: {
		"more frames than are walked",
		"there are more frames than the limit",
	},
}
