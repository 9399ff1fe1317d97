package perfevent

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"testing"
	"time"

	"github.com/unspool/unspool/source"
)

// some returns records of these types in a buffer, and whether it has been given back.
func some(types ...uint32) (b batch, free *bool) {
	free = new(bool)
	buf := source.NewBuffer(8*len(types), func(*source.Buffer) { *free = true })
	for i, typ := range types {
		binary.LittleEndian.PutUint32(buf.Bytes[8*i:], typ)
		binary.LittleEndian.PutUint16(buf.Bytes[8*i+6:], 8)
	}
	return batch{buf.Bytes, buf}, free
}

// What waits when a queue is abandoned, and what is put then, is lost: samples count, and memory comes back.
func TestAbandon(t *testing.T) {
	q := newBacklog(1 << 20)
	lost := uint64(0)
	q.lost = func(n uint64) { lost += n }
	first, firstFree := some(source.RecordSample, source.RecordMmap2, source.RecordSample)
	second, secondFree := some(source.RecordSample)
	q.put(first)
	q.abandon()
	q.put(second)
	if _, err := q.take(); err != io.EOF || lost != 3 || !*firstFree || !*secondFree || q.bytes != 0 {
		t.Errorf("%v, %d samples lost, %v, %v, %d bytes", err, lost, *firstFree, *secondFree, q.bytes)
	}
}

// A recording whose context has ended goes on for Options.Patience, for a reader that is slow. Samples that it has not read by then are lost.
func TestPatience(t *testing.T) {
	canRecord(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const patience = 200 * time.Millisecond
	r, err := Open(ctx, Options{Event: "cpu-clock", PIDs: []int{os.Getpid()}, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
	}
	cancel()
	time.Sleep(5 * patience) // a busy machine's timers are late
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("a record, or %v", err)
	}
	if st := r.Stats(); st.LostSamples == 0 || st.LostSamples > st.Records {
		t.Errorf("%d samples lost of %d records", st.LostSamples, st.Records)
	}
}
