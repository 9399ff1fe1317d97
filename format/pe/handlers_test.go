package pe

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

var (
	handlerX64  = regexp.MustCompile(`(?s)^StartAddress: (?:[^\n]* )?\(?0x([0-9A-F]+)\)?\n.*\nHandler: (?:[^\n]* )?\(?0x([0-9A-F]+)\)?\n`)
	handlerARM  = regexp.MustCompile(`(?s)^Function: (?:[^\n]* \()?0x([0-9A-F]+)\)?\n.*Routine: (?:[^\n]* \()?0x([0-9A-F]+)\)?\n\s*Parameter: (?:[^\n]* \()?0x([0-9A-F]+)\)?\n`)
	machineCode = map[*arch.Machine]*regexp.Regexp{arch.WindowsAMD64: handlerX64, arch.WindowsARM64: handlerARM}
)

// TestHandlersOfImages compares the handlers of all functions with llvm-readobj's, and the first word of their data where it shows it. What scopes
// lead to lies in functions of the image; those of known handlers are in the function.
func TestHandlersOfImages(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-readobj-19")
	names, scopes, actions := map[string]int{}, 0, 0
	for _, path := range images(t) {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Cleanup(func() { img.Close() })
		tab := Open(img)
		if tab == nil {
			continue
		}
		list, whole := readobj(t, path)
		want := map[string]bool{}
		for _, text := range list {
			if m := machineCode[tab.machine].FindStringSubmatch(text + "\n"); m != nil {
				want[strings.Join(m[1:], " ")] = true
			}
		}
		limit := ^arch.Vaddr(0)
		if !whole { // it crashes on version 2
			limit = tab.base + arch.Vaddr(tab.entries[len(list)].begin)
		}
		n := 0
		errs := tab.Handlers(func(h *Handler) bool {
			for _, s := range h.Scopes {
				scopes++
				if s.Lo < h.Lo && h.Of == h.Lo && layouts[h.Name] == funcInfo || s.Hi < s.Lo {
					t.Errorf("%s: scope %#x to %#x of function %#x to %#x", path, s.Lo, s.Hi, h.Lo, h.Hi)
				}
				for _, a := range s.Actions {
					if actions++; a.Kind != Terminate && tab.find(uint64(a.Pad-tab.base)) == nil && img.Tail(a.Pad) == nil {
						t.Errorf("%s: function %#x: %v at %#x", path, h.Lo, a.Kind, a.Pad)
					}
				}
			}
			if h.Of != h.Lo || h.Lo >= limit {
				return true
			}
			n++
			got := fmt.Sprintf("%X %X", uint64(h.Lo), uint64(h.Addr))
			if tab.machine == arch.WindowsARM64 {
				got += fmt.Sprintf(" %X", img32(img.Tail(h.Data)).at(0))
			}
			names[h.Name]++
			if !want[got] {
				t.Errorf("%s: %s, which the judge has not", path, got)
			}
			return true
		})
		if len(errs) > 0 || n != len(want) {
			t.Errorf("%s: %d handlers, want %d; %v", path, n, len(want), errs)
		}
		if t.Failed() {
			return
		}
	}
	all := 0
	var shown []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		all += names[name]
		shown = append(shown, fmt.Sprintf("%d %s", names[name], name))
	}
	t.Logf("%d handlers (%s), %d scopes, %d actions", all, strings.Join(shown, ", "), scopes, actions)
	if all < 3000 || scopes < 3000 {
		t.Errorf("%d handlers, %d scopes; want 3000, 3000 or more", all, scopes)
	}
}
