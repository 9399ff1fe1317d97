package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/rows"
)

const root = "../../.."

// TestUpToDate holds the committed headers and document against what Go's constants give.
func TestUpToDate(t *testing.T) {
	out, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range out {
		got, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not what Go says (layout.go, rows, arch); run go generate ./emit/compact", path)
		}
	}
}

// TestOrigins: C and the document name the origins that package rows names, and no others.
func TestOrigins(t *testing.T) {
	names := enums[slices.IndexFunc(enums, func(e enum) bool { return e.title == "Origins" })].names
	for o := range rows.Origin(255) {
		named := o.String() != fmt.Sprintf("origin-%d", o)
		if listed := int(o) < len(names) && names[o] != ""; listed != named {
			t.Errorf("origin %d (%s): listed %v, want %v", o, o, listed, named)
		}
	}
}

// TestFields checks that a layout that contradicts itself is refused.
func TestFields(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, layoutPath))
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"spanHi      = 8 ", "spanHi      = 4 "},
		{"spanHi      = 8  // u64: ", "spanHi      = 8  // "},
		{"spanSize    = 32", "spanSize    = 24"},
		{"spanGranule = 16", "spanGranule = 18"},
	} {
		text := strings.Replace(string(src), change[0], change[1], 1)
		if text == string(src) {
			t.Fatalf("no %q in layout.go", change[0])
		}
		l, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.fields(records[1]); err == nil {
			t.Errorf("%s passes for %s", change[1], change[0])
		}
	}
}

func TestSnake(t *testing.T) {
	for in, want := range map[string]string{"CFAKind": "cfa_kind", "NSpans": "n_spans", "hdrEscDir": "hdr_esc_dir", "Off2": "off2", "RA": "ra"} {
		if got := snake(in); got != want {
			t.Errorf("snake(%q)\n got  %s\n want %s", in, got, want)
		}
	}
}
