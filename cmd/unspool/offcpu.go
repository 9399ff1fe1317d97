package main

import (
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
)

// A cuts counts the waits that had begun before the recording, and those that had not ended with it.
type cuts struct{ begun, open uint64 }

func (c *cuts) note(x *source.Sample) {
	if x.Record.Misc&source.MiscCutBegin != 0 {
		c.begun++
	}
	if x.Record.Misc&source.MiscCutEnd != 0 {
		c.open++
	}
}

// String says which waits are longer than they look; "" where none is.
func (c *cuts) String() string {
	switch {
	case c.begun == 0 && c.open == 0:
		return ""
	case c.open == 0:
		return profile.Comma(c.begun) + " waits had begun before the recording: they count from its beginning"
	case c.begun == 0:
		return profile.Comma(c.open) + " waits had not ended with the recording: they count to its end"
	}
	return profile.Comma(c.begun) + " waits had begun before the recording, " + profile.Comma(c.open) + " had not ended with it: they count from its beginning, or to its end"
}
