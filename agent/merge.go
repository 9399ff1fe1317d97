package agent

import (
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// merged makes one batch of those that have the same labels and event, such as after a rule has dropped the label in which they differ: an engine
// expects one profile of a series for a time.
func merged(batches []*export.Batch) (out []*export.Batch) {
	same := map[string][]*export.Batch{}
	for _, b := range batches {
		key := identity(b)
		if same[key] == nil {
			out = append(out, b)
		}
		same[key] = append(same[key], b)
	}
	for i, b := range out {
		if all := same[identity(b)]; len(all) > 1 {
			var m profile.Merger
			for _, one := range all {
				m.Add(one.Profile, profile.Place{})
			}
			p, _ := m.Profile()
			out[i] = &export.Batch{Profile: p, Labels: b.Labels}
		}
	}
	return out
}

// identity is what a series' profiles have in common.
func identity(b *export.Batch) string {
	event, _ := b.Type()
	return event + b.Selector()
}
