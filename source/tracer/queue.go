package tracer

import (
	"encoding/binary"
	"io"
	"sync"
)

// maxQueued is how many bytes wait for the consumer before samples are lost.
const maxQueued = 64 << 20

// A queue holds runs of whole records that wait for the consumer.
type queue struct {
	mu      sync.Mutex
	changed sync.Cond
	runs    [][]byte
	bytes   int
	closed  bool
}

func (q *queue) init() { q.changed.L = &q.mu }

func (q *queue) put(b []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.runs = append(q.runs, b)
	q.bytes += len(b)
	q.changed.Signal()
}

// full says whether samples are to be dropped.
func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes >= maxQueued
}

// take waits for a run. After the last it returns io.EOF.
func (q *queue) take() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.runs) == 0 {
		if q.closed {
			return nil, io.EOF
		}
		q.changed.Wait()
	}
	b := q.runs[0]
	q.runs[0] = nil
	q.runs = q.runs[1:]
	q.bytes -= len(b)
	return b, nil
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// recordSize returns the size of the record that b starts with (struct perf_event_header).
func recordSize(b []byte) int { return int(binary.LittleEndian.Uint16(b[6:])) }
