package record

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
)

// A Written is a recording that a session has written.
type Written struct {
	Dropped uint64 // samples that are too large for perf.data: they are not in it

	s    *Session
	b    *profile.Builder
	w    *perfdata.Writer
	file *os.File // with room for names; nil: it has none
}

// Write writes perf.data with callchains. room leaves room for names in it.
func (s *Session) Write(ctx context.Context, out *os.File, room bool) (*Written, error) {
	var w *perfdata.Writer
	info := s.about()
	open := func() (err error) {
		if w == nil {
			build, _ := s.in.(interface{ BuildID(string) string })
			opts := perfdata.WriterOptions{Events: s.in.Decoder().Events(), Info: info, Room: room}
			if build != nil {
				opts.BuildID = build.BuildID
			}
			w, err = perfdata.NewWriter(out, opts)
		}
		return err
	}
	b := profile.NewBuilder()
	err := s.run(ctx, func(x *profile.Sample) error { b.Add(x); return nil },
		func(r *source.Record) error {
			if err := open(); err != nil {
				return err
			}
			return w.Record(r)
		},
		func(x *source.Sample) error {
			if err := open(); err != nil {
				return err
			}
			return w.Sample(x)
		})
	if oerr := open(); oerr != nil {
		return nil, errors.Join(err, oerr)
	}
	done := &Written{Dropped: w.Dropped(), s: s, b: b, w: w}
	s.Info.Loss.Samples += done.Dropped
	if lerr := w.Lost(s.lost + done.Dropped); err == nil {
		err = lerr
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if room && err == nil {
		fd, err := unix.FcntlInt(out.Fd(), unix.F_DUPFD_CLOEXEC, 3) // the file is closed when it takes its place
		if err != nil {
			return nil, err
		}
		done.file = os.NewFile(uintptr(fd), out.Name())
	}
	s.Events()
	return done, err
}

// Named finds the names of the samples that were written, which can take long. It keeps them, puts them into the recording, if that has room, and returns a
// profile. It is called once; an error does not concern the profile.
func (w *Written) Named() (*profile.Profile, error) {
	w.s.Names.Collect()
	p := w.b.Profile(w.s.Names, w.s.Info)
	w.s.Names.Save()
	if w.file == nil {
		return p, nil
	}
	err := w.w.Room(w.file, w.s.Names.Export())
	return p, errors.Join(err, w.file.Close())
}
