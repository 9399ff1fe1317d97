package perfdata

import (
	"encoding/binary"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
)

// Host returns the Info of a recording that is made now, on this machine, by this process.
func Host() Info {
	i := Info{CPUs: uint32(runtime.NumCPU()), Cmdline: slices.Clone(os.Args)}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		i.Hostname, i.OSRelease, i.Arch = cString(u.Nodename[:]), cString(u.Release[:]), cString(u.Machine[:])
		i.Machine = arch.ByName(i.Arch)
	}
	return i
}

type feature struct {
	id uint64
	b  []byte
}

// features returns what a file says of its recording, in the order of the numbers. build is the
// records of build IDs.
func (x *Writer) features(build []byte) (list []feature) {
	add := func(id uint64, b []byte) { list = append(list, feature{id, b}) }
	i := &x.opts.Info
	if len(i.Tracing) > 0 {
		add(featTracing, i.Tracing)
	}
	if len(build) > 0 {
		add(featBuildID, build)
	}
	for _, s := range []struct {
		id uint64
		s  string
	}{{featHostname, i.Hostname}, {featOSRelease, i.OSRelease}, {featVersion, ours}, {featArch, i.Arch}} {
		if s.s != "" {
			add(s.id, appendString(nil, s.s))
		}
	}
	if i.CPUs > 0 {
		add(featNRCPUs, appendU32(nil, i.CPUs, i.CPUs))
	}
	if len(i.Cmdline) > 0 {
		b := appendU32(nil, uint32(len(i.Cmdline)))
		for _, s := range i.Cmdline {
			b = appendString(b, s)
		}
		add(featCmdline, b)
	}
	add(featEventDesc, x.describe())
	if x.last > 0 {
		add(featSampleTime, appendWords(nil, []uint64{x.first, x.last}))
	}
	if i.ClockRes > 0 {
		add(featClockID, appendWords(nil, []uint64{i.ClockRes}))
	}
	if i.ClockWall > 0 && i.ClockID != PerfClock {
		add(featClockData, appendWords(appendU32(nil, 1, uint32(i.ClockID)), []uint64{i.ClockWall, i.ClockTime}))
	}
	return list
}

// describe names the events.
func (x *Writer) describe() []byte {
	size := 0
	for i := range x.attrs {
		size = max(size, x.attrs[i].Size())
	}
	b := appendU32(nil, uint32(len(x.attrs)), uint32(size))
	for i, e := range x.opts.Events {
		b = x.attrs[i].AppendSize(b, size)
		b = appendU32(b, uint32(len(e.IDs)))
		b = appendWords(appendString(b, e.Name), e.IDs)
	}
	return b
}

// appendString appends s as perf pads it, to a multiple of 64 bytes with at least one zero.
func appendString(b []byte, s string) []byte {
	n := (len(s) + 64) &^ 63
	b = append(appendU32(b, uint32(n)), s...)
	return append(b, strings.Repeat("\x00", n-len(s))...)
}

func appendU32(b []byte, vs ...uint32) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func appendWords(b []byte, vs []uint64) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// pad8 pads b with zeros to a multiple of 8 bytes.
func pad8(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
