package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/source/perfdata"
)

// An input is an open file of samples, or a pipe.
type input struct {
	*os.File
	pprof bool // by its first bytes it is a pprof profile, compressed or not; else perfdata.New says what it is
}

// openInput opens a file, or standard input by the name of "-", and looks at its first bytes, which stay there. Errors name the file.
func openInput(path string) (*input, error) {
	in, err := os.Stdin, error(nil)
	if path != "-" {
		if in, err = os.Open(path); err != nil {
			return nil, err
		}
	}
	head := make([]byte, 8)
	var n int
	if st, serr := in.Stat(); serr == nil && st.Mode().IsRegular() {
		var at int64
		if at, err = in.Seek(0, io.SeekCurrent); err == nil {
			n, err = in.ReadAt(head, at)
		}
	} else {
		n = peek(in, head)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		in.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &input{in, isPprof(head[:n])}, nil
}

// CheckInput says what is wrong with a file of samples, by its first bytes. Pipes are left as they are.
func CheckInput(path string) error {
	if path == "-" {
		return nil
	}
	if st, err := os.Stat(path); err != nil || !st.Mode().IsRegular() {
		return err
	}
	in, err := openInput(path)
	if err != nil {
		return err
	}
	defer in.Close()
	if in.pprof {
		return nil
	}
	f, err := perfdata.New(in.File, path)
	if err != nil {
		return readable(err, false)
	}
	return f.Close()
}

// identify returns Session.identify for f, the recording in the file. doubt is told of each file that may be another one than was recorded.
func (in *input) identify(f *perfdata.File, doubt func(path string)) func(path string, maj, min uint32, inode, gen uint64) string {
	id := names.Identity{Doubt: doubt}
	if st, err := in.Stat(); err == nil && st.Mode().IsRegular() {
		id.Written = st.ModTime()
	}
	id.Here = func() bool {
		info := f.Info() // that of a stream is not there at its beginning
		return info.Hostname != "" && info.Hostname == perfdata.Host().Hostname
	}
	return id.Identify
}

// peek looks at the first bytes of a pipe, which stay there (tee(2)). Of what is no pipe it sees none.
func peek(in *os.File, head []byte) int {
	r, w, err := os.Pipe()
	if err != nil {
		return 0
	}
	defer r.Close()
	defer w.Close()
	there, err := unix.Tee(int(in.Fd()), int(w.Fd()), len(head), 0) // it waits for the first
	if err != nil {
		return 0
	}
	n, _ := io.ReadFull(r, head[:there])
	return n
}

// isPprof says whether a file that starts with head may be a pprof profile: gzip's magic number, or the first field of a message and no recording's
// magic number.
func isPprof(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0x1f, 0x8b}) || len(head) > 0 && head[0] == 0x0a && !bytes.HasPrefix(head, []byte("PERFILE"))
}
