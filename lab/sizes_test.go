package lab

import (
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/rows"
)

// An emission is a form that unwind information is compiled to; size emits it and returns its bytes.
type emission struct {
	name string
	size func(t *rows.Table) (int, error)
}

var emissions = []emission{
	{"compact", func(t *rows.Table) (int, error) {
		b, err := compact.Emit(t)
		return len(b), err
	}},
}
