package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/unspool/unspool/agent/debuginfo"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// send sends a profile to each target, once, and calls say with what became of each. failed are the indices of the targets that have not taken the
// profile; err says why none could be tried.
func send(ctx context.Context, targets []*Target, p *profile.Profile, labels []export.Label, say func(line string)) (failed []int, err error) {
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
		if s := t.symbolizer(); s != nil {
			sendFiles(ctx, t, s, p, say)
		}
		if r.Note != "" {
			say(fmt.Sprintf("%s: the server says: %s", t, r.Note))
		}
	}
	return failed, nil
}

// sendFiles sends the files with names of a profile's code, and says what became of them.
func sendFiles(ctx context.Context, t *Target, s export.Symbolizer, p *profile.Profile, say func(line string)) {
	u := debuginfo.New(s)
	u.Send(ctx, p, func(err error) {
		if err != nil {
			say(fmt.Sprintf("%s: files with names: %v", t, err))
		}
	})
	st := u.Stats()
	line := fmt.Sprintf("%s: sent %s with names, %s; %d the server had", t, profile.Count(st.Uploads, "file", "files"), profile.Bytes(int64(st.Bytes)), st.Unneeded)
	for _, not := range []struct {
		n   uint64
		why string
	}{{st.Refused, "it refused"}, {st.Unreadable, "are gone, or not for all to read"}, {st.Nameless, "have no names"}, {st.TooLarge, "are too large"}} {
		if not.n > 0 {
			line += fmt.Sprintf(", %d %s", not.n, not.why)
		}
	}
	say(line)
}
