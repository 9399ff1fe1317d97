package perfdata

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/source"
)

// tracing describes the tracepoints among events as perf needs it (tools/perf/util/trace-event-info.c, version 0.6),
// from the running kernel. It returns nil where there are none, where they cannot be read, or where they are those of
// another kernel: then their numbers differ.
func tracing(events []source.Event) []byte {
	formats := map[string][][]byte{} // by system
	root := ""
	for _, dir := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if _, err := os.Stat(filepath.Join(dir, "events/header_page")); err == nil {
			root = dir
			break
		}
	}
	for _, e := range events {
		system, name, ok := strings.Cut(e.Name, ":")
		if e.Attr.Type != source.TypeTracepoint || !ok {
			continue
		}
		name, _, _ = strings.Cut(name, ":") // modifiers
		dir := filepath.Join(root, "events", filepath.Base(system), filepath.Base(name))
		id, err := os.ReadFile(filepath.Join(dir, "id"))
		if err != nil || strings.TrimSpace(string(id)) != strconv.FormatUint(e.Attr.Config, 10) {
			return nil
		}
		format, err := os.ReadFile(filepath.Join(dir, "format"))
		if err != nil {
			return nil
		}
		formats[system] = append(formats[system], format)
	}
	if len(formats) == 0 {
		return nil
	}

	b := []byte("\x17\x08\x44tracing0.6\x00\x00\x08") // little-endian, with words of 8 bytes
	b = appendU32(b, uint32(os.Getpagesize()))
	file := func(f []byte) { b = append(binary.LittleEndian.AppendUint64(b, uint64(len(f))), f...) }
	for _, name := range []string{"header_page", "header_event"} {
		f, err := os.ReadFile(filepath.Join(root, "events", name))
		if err != nil {
			return nil
		}
		b = append(append(b, name...), 0)
		file(f)
	}
	b = appendU32(b, 0, uint32(len(formats))) // none of ftrace's own
	for _, system := range slices.Sorted(maps.Keys(formats)) {
		b = append(append(b, system...), 0)
		b = appendU32(b, uint32(len(formats[system])))
		for _, f := range formats[system] {
			file(f)
		}
	}
	b = appendU32(b, 0, 0) // no symbols, no formats of trace_printk
	file(nil)              // no names of threads
	return b
}
