package source

// A Decoder reads records. It knows the events of a recording and which of them a record belongs to. It is safe
// for concurrent use.
type Decoder struct{}

// An Event is one event of a recording.
type Event struct {
	Attr Attr
	IDs  []uint64 // what PERF_SAMPLE_ID may say; one for each CPU and thread
	Name string   // "" if not recorded: see Name
}

// NewDecoder returns a Decoder without events.
func NewDecoder() *Decoder { return &Decoder{} }

// AddAttr adds an event and returns its index. name may be empty.
func (d *Decoder) AddAttr(a *Attr, ids []uint64, name string) int { return 0 }

// AddIDs adds ids to event i.
func (d *Decoder) AddIDs(i int, ids []uint64) {}

// SetName names event i.
func (d *Decoder) SetName(i int, name string) {}

// Events returns all events. They must not be changed.
func (d *Decoder) Events() []Event { return nil }

// Decode reads raw, one whole record with its header, into r. r's slices lie in raw. It does not allocate.
// Types that it does not know get their header and, if there is one, their trailer read.
func (d *Decoder) Decode(raw []byte, r *Record) error { return nil }

// Append appends r as a whole record to b, encoded as a record of event d.Events()[event] is, trailer included:
// MMAP, MMAP2, COMM, FORK, EXIT, LOST and FINISHED_ROUND. It is for recorders that report what was there before
// they started.
func (d *Decoder) Append(b []byte, event int, r *Record) []byte { return b }
