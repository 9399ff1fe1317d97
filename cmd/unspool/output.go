package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/outfile"
)

// ownersOnly are the formats that have addresses, the kernel's too: their files are for their owner.
var ownersOnly = []string{"data", "json", "jsonl", "perf"}

// create begins the output. commit puts it into its place, and returns its argument or what went wrong then; after an error, what was
// there before is there still.
func (o *output) create(ctx context.Context) (w *os.File, commit func(error) error, err error) {
	o.publish = func() error { return nil }
	if o.path == "" || o.path == "-" {
		o.opts = o.terminal()
		return os.Stdout, func(err error) error { return err }, nil
	}
	var f *outfile.File
	err = caps.Raised(func() (err error) {
		f, err = outfile.Create(ctx, o.path, outfile.Options{Private: slices.Contains(ownersOnly, o.format), Keep: o.keep, Inputs: o.inputs})
		return err
	})
	if errors.Is(err, outfile.ErrInput) {
		return nil, nil, usage("%s is the input: it would be overwritten", o.path)
	}
	if err != nil {
		return nil, nil, err
	}
	o.publish = f.Publish
	return f.File, func(err error) error {
		if err != nil {
			caps.Raised(f.Discard)
			return err
		}
		err = caps.Raised(f.Commit)
		for _, note := range f.Notes {
			fmt.Fprintf(stderr, "unspool: %s\n", note)
		}
		return err
	}, nil
}

// writeFile writes a file.
func writeFile(path string, b []byte) error {
	return caps.Raised(func() error {
		f, err := outfile.Create(context.Background(), path, outfile.Options{})
		if err != nil {
			return err
		}
		if _, err := f.Write(b); err != nil {
			f.Discard()
			return err
		}
		return f.Commit()
	})
}

// stdout is where results go that are not written by a package which returns what goes wrong: it remembers that.
var stdout = &remembers{w: os.Stdout}

// A remembers is a writer that keeps its first error.
type remembers struct {
	w   io.Writer
	err error
}

func (r *remembers) Write(b []byte) (int, error) {
	n, err := r.w.Write(b)
	if r.err == nil {
		r.err = err
	}
	return n, err
}
