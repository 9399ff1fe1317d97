package record

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/series"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// What is read beside a heap profile.
const (
	maxSnapshots     = 2000
	maxSnapshotBytes = 256 << 20 // of all files
)

// heapShown returns what one of profile.HeapValues shows of a heap profile; other profiles stay as they are.
func heapShown(p *profile.Profile, value string) (*profile.Profile, error) {
	if !p.Heap() {
		if value != "" {
			return nil, ErrNotHeap
		}
		return p, nil
	}
	shown := profile.ParseHeapValue(value)
	if p.Has(shown.Event) {
		return shown.Of(p), nil
	}
	if value == "" {
		return p, nil
	}
	var have []string
	for _, e := range p.Events {
		have = append(have, printable.String(e.Name))
	}
	return nil, fmt.Errorf("it has nothing of %s: it counts %s", shown.Event, strings.Join(have, ", "))
}

// withSnapshots returns p with the stacks of the snapshots of its run, which lie beside it (package series), and tells o.Added of each. Stacks
// that p does not have count nothing. A file that is no such snapshot is left out.
func withSnapshots(p *profile.Profile, path string, o *FileOptions) *profile.Profile {
	if p.Start.IsZero() || path == "-" {
		return p
	}
	dir, base := filepath.Split(path)
	var all []*profile.Profile
	left := int64(maxSnapshotBytes)
	for _, name := range series.Beside(dir, base) {
		if q := readSnapshot(filepath.Join(dir, name), &left, o); q != nil && q.Start.Equal(p.Start) && q.Host == p.Host && q.Duration < p.Duration && len(all) < maxSnapshots {
			all = append(all, q)
		}
	}
	if len(all) == 0 {
		return p
	}
	slices.SortStableFunc(all, func(a, b *profile.Profile) int { return int(a.Duration - b.Duration) })
	all = append(all, p)
	var m profile.Merger
	places := make([][]int32, len(all))
	for i, q := range all {
		places[i] = m.Add(q, profile.Place{})
	}
	out, _ := m.Profile()
	out.Info, out.Totals = p.Info, p.Totals
	for i := range out.Stacks {
		out.Stacks[i].Count, out.Stacks[i].Period = 0, 0
	}
	for i, at := range places[len(all)-1] {
		out.Stacks[at].Count += p.Stacks[i].Count
		out.Stacks[at].Period += p.Stacks[i].Period
	}
	for i, q := range all {
		o.Added(q, places[i])
	}
	return out
}

// readSnapshot reads what o wants of a snapshot; nil for a file that is none. left is how many bytes may still be read.
func readSnapshot(path string, left *int64, o *FileOptions) *profile.Profile {
	in, err := procfs.Open(path)
	if err != nil {
		return nil
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || st.Size() > *left {
		return nil
	}
	*left -= st.Size()
	p, err := pprof.Read(in)
	if err != nil || !p.Heap() {
		return nil
	}
	if p, err = heapShown(p, o.Heap); err != nil {
		return nil
	}
	if o.Filter.active() {
		p = p.Filter(o.Filter.stack)
	}
	return p
}
