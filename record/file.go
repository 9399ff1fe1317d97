package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/source/perfdata"
)

// FileOptions say how a file of samples is read. Mods is needed.
type FileOptions struct {
	Mods   *modules.Set
	Namer  func(names.Options) *names.Namer // makes what names the frames; nil: names.New
	Filter Filter                           // says which samples are of interest
	Single bool                             // a pprof profile, which has no single samples, is an error
	Heap   string                           // one of profile.HeapValues, of a heap profile; of any other it is an error; "": DefaultHeapValue

	// Of an agent's directory: told before each profile is read, its error ends that; and told of each profile with the index of each of its stacks
	// in the one that becomes of all. With Added, a heap profile comes with the snapshots of its run beside it, which Added is told of in the order
	// of time, the profile itself last. May be nil.
	Reading func(done, total int, samples uint64) error
	Added   func(p *profile.Profile, stacks []int32)
}

// A File is a file of samples: a recording, whose Session is still to run, or a pprof profile. An agent's directory becomes one pprof profile.
type File struct {
	*Session                  // of a recording; nil for a pprof profile
	Pprof    *profile.Profile // what the filter leaves of a pprof profile; nil for a recording
	Ring     *Ring            // of a directory; else nil
	Stat     fs.FileInfo

	in   *input
	data *perfdata.File

	mods  *modules.Set  // nil: of a pprof profile
	after *arch.Machine // whose files are wanted when this recording has been read: those of all, if the one before is of another machine
}

// Open opens a file of samples, or standard input by the name of "-". Errors name the file.
func Open(path string, o FileOptions) (*File, error) {
	in, err := openInput(path)
	if err != nil {
		return nil, err
	}
	f := &File{in: in}
	if err := f.open(path, &o); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *File) open(path string, o *FileOptions) (err error) {
	if f.Stat, err = f.in.Stat(); err != nil {
		return err
	}
	switch {
	case f.Stat.IsDir():
		return f.openRing(path, o)
	case o.Filter.ofRing():
		return fmt.Errorf("%s: %w", path, ErrNotRing)
	}
	if f.in.pprof && !o.Single {
		if f.Pprof, err = readPprof(f.in, o); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if f.Pprof.Heap() && o.Added != nil {
			f.Pprof = withSnapshots(f.Pprof, path, o)
		}
		return nil
	}
	if o.Heap != "" && !o.Single {
		return fmt.Errorf("%s: %w", path, ErrNotHeap)
	}
	if f.data, err = perfdata.New(f.in.File, path); err != nil {
		return readable(err, o.Single)
	}
	f.mods, f.after = o.Mods, f.data.Info().Machine
	if was := f.mods.Files.For(f.after); was != nil && was != f.after {
		f.after = nil
	}
	namer := o.Namer
	if namer == nil {
		namer = names.New
	}
	n := namer(fileNames(o.Mods, f.data))
	f.Session = fromFile(f.data, Options{Mods: o.Mods, Names: n, Filter: o.Filter})
	f.identify, f.howFar = f.in.identify(f.data, f.noteDoubtful), f.soFar
	if info := f.data.Info(); info.Ours {
		if err := n.Import(info.Names); err != nil {
			f.notes = append(f.notes, fmt.Sprintf("the names in the recording: %v", err))
		}
	}
	return nil
}

// Close closes the file, and the Namer of its Session. A profile that was made of it stays.
func (f *File) Close() error {
	var errs []error
	if f.Session != nil {
		errs = append(errs, f.Names.Close())
	}
	if f.mods != nil {
		f.mods.Files.For(f.after)
	}
	if f.data != nil {
		errs = append(errs, f.data.Close())
	}
	return errors.Join(append(errs, f.in.Close())...)
}

// Read returns the number of bytes read from a recording, and its size: 0 if unknown. It is safe for concurrent use.
func (f *File) Read() (done, total int64) { return f.data.Progress() }

// readPprof reads what o's filter leaves of a pprof profile.
func readPprof(in io.Reader, o *FileOptions) (*profile.Profile, error) {
	if o.Filter.Timed {
		return nil, ErrTimeless
	}
	p, err := pprof.Read(in)
	if err == nil {
		p, err = heapShown(p, o.Heap)
	}
	if err != nil || !o.Filter.active() {
		return p, err
	}
	q := p.Filter(o.Filter.stack)
	if q.Totals.Samples == 0 {
		return nil, fmt.Errorf("none of %s matches", profile.Count(p.Totals.Samples, "sample", "samples"))
	}
	return q, nil
}

// soFar says for people how much has been read.
func (f *File) soFar() string {
	done, total := f.Read()
	if total == 0 {
		return fmt.Sprintf("read %d MiB", done>>20)
	}
	return fmt.Sprintf("read %d of %d MiB", done>>20, total>>20)
}

// readable adds to the error of a file that is no recording which files are; single leaves out pprof profiles.
func readable(err error, single bool) error {
	var foreign *perfdata.ForeignError
	if !errors.As(err, &foreign) {
		return err
	}
	switch {
	case single && isPprof(foreign.Start):
		return fmt.Errorf("%w, as a pprof profile, which has no single samples; want a perf.data file, as perf record and unspool record write", err)
	case single:
		return fmt.Errorf("%w; want a perf.data file, as perf record and unspool record write", err)
	}
	return fmt.Errorf("%w; want a perf.data file, as perf record and unspool record write, or a pprof profile", err)
}

// ErrNotHeap is the error of a heap profile's value asked of something else.
var ErrNotHeap = errors.New("not a heap profile; --heap-value is for heap profiles")

// ErrTimeless is the error of a filter by time on a profile without times.
var ErrTimeless = errors.New("--time: a pprof profile does not say when samples were taken")

// SampledFiles returns the paths of the files that a recording has samples of, as its header says, sorted; nil for what is no recording.
func SampledFiles(path string) []string {
	in, err := procfs.Open(path)
	if err != nil {
		return nil
	}
	defer in.Close()
	magic := make([]byte, 8)
	if _, err := in.ReadAt(magic, 0); err != nil || string(magic) != "PERFILE2" {
		return nil
	}
	f, err := perfdata.New(in, path)
	if err != nil {
		return nil
	}
	defer f.Close()
	return slices.Sorted(maps.Keys(f.BuildIDs()))
}
