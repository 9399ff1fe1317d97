// Package files reads files of samples for the page: recordings, pprof profiles, and agents' directories.
package files

import (
	"context"
	"fmt"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/serve"
)

// Options say how a file is read. Both functions are needed.
type Options struct {
	// Open opens the file. It passes added on to record.FileOptions.
	Open func(ctx context.Context, added func(p *profile.Profile, stacks []int32)) (*record.File, error)

	// Read is told when a recording has been read, as far as it goes: then its notes are known. p may be incomplete.
	Read func(f *record.File, p *profile.Profile)

	// Damaged is told of the error of a recording that is shown all the same, because there are samples before the damage.
	Damaged func(error)
}

// Input returns how the file at path is read for the page. Errors have the path.
func Input(path string, o Options) serve.Input {
	return serve.Input{Name: path, Read: func(ctx context.Context, progress func(serve.Progress)) (*serve.Recording, error) {
		var intervals serve.Times // of the profiles of a directory
		length := time.Duration(0)
		f, err := o.Open(ctx, func(p *profile.Profile, stacks []int32) {
			if p.Heap() {
				intervals.AddSnapshot(p, stacks)
				return
			}
			length = max(length, p.Duration)
			intervals.Spread(p, stacks)
		})
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if p := f.Pprof; p != nil {
			rec := &serve.Recording{Profile: p, Periods: p.Weight() == profile.Periods}
			if p.Heap() {
				rec.Times = &intervals
			}
			if f.Ring != nil {
				rec.Places, rec.Times, rec.Interval = f.Ring.Places, &intervals, length
			}
			return rec, nil
		}
		rec := &serve.Recording{Times: &serve.Times{}, Local: true}
		n := uint64(0)
		rec.Profile, err = f.Session.Profile(ctx, func(x *profile.Sample, stack int) {
			if n++; n&1023 == 0 {
				done, total := f.Read()
				progress(serve.Progress{Done: done, Total: total, Samples: n})
			}
			if n == 1 {
				f.Events()
				rec.Times.Waits = f.Info.Waits()
			}
			rec.Times.Add(x.Time, stack, x.Period)
		})
		rec.Periods = f.Info.Weight() == profile.Periods
		o.Read(f, rec.Profile)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
			if n == 0 {
				return nil, err
			}
			o.Damaged(err)
		}
		return rec, nil
	}}
}
