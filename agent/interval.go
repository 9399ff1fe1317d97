package agent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// An interval has ended. Its profiles are made one lot after the other, the largest first.
type interval struct {
	lots []*lot
}

// A lot is the samples whose profiles can turn out to be one: see merged.
type lot struct {
	samples uint64
	parts   []part
	info    profile.Info
	now     time.Time // when the interval ended
	lost    uint64    // samples, in the interval: the first lot says so
}

// A part is the samples of a series.
type part struct {
	series
	labels  []export.Label
	builder *profile.Builder
}

// take ends the interval. A place's labels are made by the settings with which its samples were taken. What these have asked of processes, and the settings
// of now do not ask, is not among the labels.
func (a *Agent) take(now time.Time) *interval {
	lost := a.o.Lost()
	a.mu.Lock()
	groups, since := a.groups, a.since
	settings := a.settings
	missing := lost - min(lost, a.was)
	a.stats.Processes, a.stats.Last, a.longest = len(a.members), now, 0
	a.stats.Lost += missing
	a.groups, a.places, a.members, a.since, a.was = map[series]*profile.Builder{}, map[group]bool{}, map[int32]*member{}, now, lost
	a.mu.Unlock()

	info := a.o.Info
	info.Start, info.Duration, info.Loss = since, now.Sub(since), profile.Loss{}
	var parts []part
	dropped, nameless := uint64(0), false
	for g, b := range groups {
		labels := slices.Clone(g.settings.Labels)
		for _, l := range a.labels(&g.group) {
			if !slices.ContainsFunc(labels, func(given export.Label) bool { return given.Name == l.Name }) {
				labels = append(labels, l)
			}
		}
		labels, ok := relabel(labels, g.settings.Rules)
		if !ok {
			dropped++
			continue
		}
		labels = slices.DeleteFunc(labels, func(l export.Label) bool { return g.settings.asks(l.Name) && !settings.asks(l.Name) })
		if !slices.ContainsFunc(labels, func(l export.Label) bool { return l.Name == export.ServiceName }) {
			nameless = true // the samples name the service
		}
		parts = append(parts, part{g, labels, b})
	}
	a.mu.Lock()
	a.stats.Dropped += dropped
	a.mu.Unlock()

	c := &interval{}
	lots := map[string]*lot{}
	for _, p := range parts {
		key := ""
		if !nameless {
			key = p.key()
		}
		l := lots[key]
		if l == nil {
			l = &lot{info: info, now: now}
			lots[key] = l
			c.lots = append(c.lots, l)
		}
		l.parts = append(l.parts, p)
		l.samples += p.builder.Totals().Samples
	}
	a.mu.Lock()
	for _, l := range c.lots {
		a.left += l.samples
	}
	a.mu.Unlock()
	slices.SortFunc(c.lots, func(a, b *lot) int {
		return cmp.Or(cmp.Compare(b.samples, a.samples), strings.Compare(a.parts[0].key(), b.parts[0].key()))
	})
	if len(c.lots) > 0 {
		c.lots[0].lost = missing
	}
	return c
}

// key is what the profiles of a lot have in common.
func (p *part) key() string {
	b := export.Batch{Labels: slices.SortedFunc(slices.Values(p.labels), func(a, b export.Label) int { return cmp.Compare(a.Name, b.Name) })}
	return string(rune(p.event)) + b.Selector()
}

// make makes the profiles of a lot, the largest first. What it has read of the lot is garbage then.
func (a *Agent) make(l *lot) (out []*export.Batch, err error) {
	names := a.o.Names
	if a.o.Show == nil && a.o.Outputs != nil && !a.o.Outputs.named() {
		names = unnamed{names}
	}
	for i := range l.parts {
		p := l.parts[i]
		l.parts[i] = part{}
		one := l.info
		if p.event < len(one.Events) {
			one.Events = one.Events[p.event : p.event+1]
		}
		batch, e := export.NewBatch(p.builder.Profile(names, one), p.labels, l.now)
		if e != nil {
			err = cmp.Or(err, e)
			continue
		}
		out = append(out, batch)
	}
	out = merged(out)
	slices.SortFunc(out, func(a, b *export.Batch) int {
		return cmp.Or(cmp.Compare(b.Profile.Totals.Samples, a.Profile.Totals.Samples), strings.Compare(a.Selector(), b.Selector()))
	})
	if len(out) > 0 {
		out[0].Profile.Loss.Samples = l.lost
	}
	a.mu.Lock()
	a.stats.Profiles += uint64(len(out))
	a.mu.Unlock()
	return out, err
}
