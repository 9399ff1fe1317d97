package compile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/rows"
)

// A Dump prints the unwind rules of files, row by row, or their exception tables.
type Dump struct {
	JSON       bool
	Exceptions bool
	Unwind     []string    // names of unwind information; none: all, in order of precedence
	Failed     func(error) // is told what could not be read
}

// File prints a file. Entries that cannot be read are told to Failed; all others are printed.
func (d *Dump) File(w io.Writer, path string) error {
	var damage []error
	var err error
	if d.Exceptions {
		damage, err = WriteExceptions(w, path, d.JSON)
	} else {
		var t *rows.Table
		t, damage, err = Rows(path, d.Unwind...)
		switch {
		case err != nil:
		case d.JSON:
			err = t.WriteJSON(w)
		default:
			err = t.WriteText(w)
		}
	}
	if err != nil {
		return err
	}
	for _, e := range damage {
		d.Failed(fmt.Errorf("%s: %w", path, e))
	}
	return nil
}

// Files prints several files, and a line before each: a comment in text, an object with its name in JSON. Files without anything to print are
// left out. What is wrong with a file is told to Failed, and costs that file only.
func (d *Dump) Files(ctx context.Context, w io.Writer, files []string) error {
	for _, path := range files {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		var out bytes.Buffer
		if d.JSON {
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(map[string]string{"file": path}); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(&out, "# %s\n", printable.Marked(path))
		}
		err := d.File(&out, path)
		if errors.Is(err, ErrNoRows) || errors.Is(err, ErrNoExceptions) {
			continue
		}
		if err != nil {
			d.Failed(err)
			continue
		}
		if _, err := w.Write(out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
