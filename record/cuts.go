package record

import (
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
)

// A cuts counts the waits that had begun before the recording, and those that had not ended with it.
type cuts struct{ begun, open uint64 }

func (c *cuts) observe(x *source.Sample) {
	if x.Record.Misc&source.MiscCutBegin != 0 {
		c.begun++
	}
	if x.Record.Misc&source.MiscCutEnd != 0 {
		c.open++
	}
}

// String says which waits are longer than they look; "" where none is.
func (c *cuts) String() string {
	begun := profile.Count(c.begun, "wait", "waits") + " had begun before the recording"
	switch {
	case c.begun == 0 && c.open == 0:
		return ""
	case c.open == 0:
		return begun + ": time counts from its beginning"
	case c.begun == 0:
		return profile.Count(c.open, "wait", "waits") + " had not ended with the recording: time counts to its end"
	}
	return begun + ", " + profile.Comma(c.open) + " had not ended with it: time counts from its beginning, and to its end"
}
