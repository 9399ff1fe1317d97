package source

// lateChains holds user callchains that the kernel records when a thread returns to user space, later than the
// samples they belong to (PERF_RECORD_CALLCHAIN_DEFERRED). A chain is remembered as soon as it is read. The
// samples that wait for it are still in the queue then; samples that left the queue earlier go without it.
type lateChains struct {
	seen  bool
	byKey map[uint64]lateChain
	keys  []uint64 // oldest first
}

type lateChain struct {
	words Words
	buf   *Buffer
}

// maxLate chains are remembered at least, twice as many at most. A thread has one at a time.
const maxLate = 1 << 14

func (l *lateChains) remember(d *Decoder, raw []byte, buf *Buffer) {
	var r Record
	if d.Decode(raw, &r) != nil {
		return // counted when its turn comes
	}
	if l.byKey == nil {
		l.seen, l.byKey = true, map[uint64]lateChain{}
	}
	if old, ok := l.byKey[r.Cookie]; ok {
		old.buf.Release()
	} else {
		l.keys = append(l.keys, r.Cookie)
	}
	buf.Hold()
	l.byKey[r.Cookie] = lateChain{r.Callchain, buf}
	if len(l.keys) < 2*maxLate {
		return
	}
	for _, k := range l.keys[:maxLate] {
		l.byKey[k].buf.Release()
		delete(l.byKey, k)
	}
	l.keys = append(l.keys[:0], l.keys[maxLate:]...)
}

// find returns the chain that a sample waits for, and its Buffer, held. r is scratch.
func (l *lateChains) find(d *Decoder, raw []byte, r *Record) (Words, *Buffer) {
	if d.Decode(raw, r) != nil {
		return nil, nil
	}
	cookie, ok := cookieOf(r)
	c := l.byKey[cookie]
	if !ok || c.words == nil {
		return nil, nil
	}
	c.buf.Hold()
	return c.words, c.buf
}

func (l *lateChains) clear() {
	for _, c := range l.byKey {
		c.buf.Release()
	}
	l.byKey, l.keys = nil, nil
}
