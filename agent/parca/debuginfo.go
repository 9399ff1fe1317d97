package parca

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/wire"
)

// service is parca.debuginfo.v1alpha1.DebuginfoService, which Parca has on the same port by gRPC.
const service = "parca.debuginfo.v1alpha1.DebuginfoService/"

const (
	gnuBuildID = 1         // BuildIDType
	chunk      = 256 << 10 // bytes of a file in a message: servers of gRPC take 4 MiB by default

	byGRPC = 1 // UploadStrategy
	byURL  = 2

	maxText = 4 << 10 // bytes of a text in an answer that are used
)

func str(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func num(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

// An answer is the fields of a message, the last of each number.
type answer struct {
	nums map[protowire.Number]uint64
	text map[protowire.Number][]byte
}

// parse reads a message. What cannot be read is the end of it.
func parse(b []byte) answer {
	a := answer{map[protowire.Number]uint64{}, map[protowire.Number][]byte{}}
	for f := range wire.Fields(b) {
		switch f.Kind {
		case protowire.VarintType:
			a.nums[f.Number] = f.Value
		case protowire.BytesType:
			a.text[f.Number] = f.Bytes
		}
	}
	return a
}

// Wants implements export.Symbolizer.
func (e *Exporter) Wants(ctx context.Context, f *export.DebugFile) (bool, time.Duration, error) {
	b, err := e.symbols.Call(ctx, service+"ShouldInitiateUpload", num(str(nil, 1, f.BuildID), 5, gnuBuildID))
	if err != nil {
		return false, 0, err
	}
	a := parse(b)
	if a.nums[1] == 0 && strings.Contains(string(a.text[2]), "in-progress") {
		return false, export.StaleUpload, nil
	}
	return a.nums[1] != 0, 0, nil
}

// Upload implements export.Symbolizer: by gRPC, or to a URL that Parca names.
func (e *Exporter) Upload(ctx context.Context, f *export.DebugFile) error {
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, f.Size)); err != nil {
		return err
	}
	b, err := e.symbols.Call(ctx, service+"InitiateUpload", num(str(num(str(nil, 1, f.BuildID), 2, uint64(f.Size)), 3, hex.EncodeToString(sum.Sum(nil))), 6, gnuBuildID))
	if err != nil {
		return err
	}
	how := parse(parse(b).text[1])
	id := string(how.text[2])
	if string(how.text[1]) != f.BuildID || len(id) > maxText {
		return &export.Refused{Status: "Parca's instructions are for another file"}
	}
	switch how.nums[3] {
	case byGRPC:
		info := str(str(nil, 1, f.BuildID), 2, id)
		first := export.Frame(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), info), false)
		b, err := e.symbols.CallStream(ctx, service+"Upload", &frames{next: first, from: f.Body(ctx)})
		if err != nil {
			return err
		}
		if kept := parse(b).nums[2]; kept != uint64(f.Size) {
			return &export.Refused{Status: "Parca has not kept the whole file"}
		}
	case byURL:
		if err := e.symbols.PutSigned(ctx, string(how.text[4]), f.Body(ctx), f.Size); err != nil {
			return err
		}
	default:
		return &export.Refused{Status: "Parca takes no uploads"}
	}
	_, err = e.symbols.Call(ctx, service+"MarkUploadFinished", str(str(nil, 1, f.BuildID), 2, id))
	return err
}

// frames is a stream of messages: next, then the chunks of a file.
type frames struct {
	next []byte
	from io.Reader
	buf  []byte
}

func (r *frames) Read(p []byte) (int, error) {
	if len(r.next) == 0 {
		if r.buf == nil {
			r.buf = make([]byte, chunk)
		}
		n, err := io.ReadFull(r.from, r.buf)
		if n == 0 || err != nil && err != io.ErrUnexpectedEOF {
			return 0, err
		}
		r.next = export.Frame(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), r.buf[:n]), false)
	}
	n := copy(p, r.next)
	r.next = r.next[n:]
	return n, nil
}
