package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// Send sends a profile to each target, once, and calls say with what became of each. failed are the indices of the targets that have not taken the
// profile; err says why none could be tried.
func Send(ctx context.Context, targets []*Target, p *profile.Profile, labels []export.Label, say func(line string)) (failed []int, err error) {
	b, err := export.NewBatch(p, labels, time.Now())
	if err != nil {
		return nil, err
	}
	for i, t := range targets {
		q, err := t.Encode(b)
		if err != nil {
			return nil, err
		}
		r, err := t.Send(ctx, q)
		if err != nil {
			say(fmt.Sprintf("%s: %v", t, err))
			failed = append(failed, i)
			continue
		}
		where := ""
		if q.Query != "" {
			where = "; look there for " + q.Query
		}
		say(fmt.Sprintf("%s: sent %s, %s%s", t, profile.Count(p.Totals.Samples, "sample", "samples"), profile.Bytes(int64(r.Bytes)), where))
		if r.Note != "" {
			say(fmt.Sprintf("%s: the server says: %s", t, r.Note))
		}
	}
	return failed, nil
}
