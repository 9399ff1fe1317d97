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

// Why says in a sentence why the callers of a stack's outermost frame are not known; "" for a whole stack.
func Why(s unwind.Stop) string { return why[min(s, unwind.NumStops)].why }

// WhyRecorded is Why for a recording, with what would help.
func WhyRecorded(s unwind.Stop) string {
	w := why[min(s, unwind.NumStops)]
	return w.why + w.help
}

// Reason says the same in a few words, for lists of counts: "code without unwind information"; "" where Mark is "".
func Reason(s unwind.Stop) string { return why[min(s, unwind.NumStops)].reason }

var why = [unwind.NumStops + 1]struct{ reason, why, help string }{
	unwind.NoInfo: {
		reason: "code without unwind information",
		why:    "there is no unwind information for the outermost function shown, and no frame pointer to follow",
	},
	unwind.BadCFA: {
		reason: "the frame address did not move up",
		why:    "the stack pointer of the outermost function’s caller cannot be computed",
	},
	unwind.Truncated: {
		reason: "cut off",
		why:    "the copy of the stack ends here, or none was made",
		help:   " (record with a larger --stack-size)",
	},
	unwind.BadMemory: {
		reason: "memory that cannot be read",
		why:    "the memory that leads to the caller could not be read",
	},
	unwind.BadReturn: {
		reason: "a return address outside of all code",
		why:    "the return address is not in code",
	},
	unwind.DepthLimit: {
		reason: "more frames than are walked",
		why:    "there are more frames than the limit",
	},
	unwind.NoUserStack: {
		why: "there is no user stack to walk",
	},
}
