package perfevent

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// uprobe compiles a program that passes a uprobe as often as its argument says, and returns it and the event's name.
func uprobe(t *testing.T) (prog, event string) {
	t.Helper()
	oracle.Need(t, "cc")
	prog = filepath.Join(t.TempDir(), "prog")
	cc := exec.Command("cc", "-O1", "-no-pie", "-x", "c", "-o", prog, "-")
	cc.Stdin = strings.NewReader(`#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) void probed(void) {}
int main(int n, char **v) {
	if (n > 2 && fork() == 0) execl(v[2], v[2], v[1], NULL);
	if (n > 2) wait(NULL);
	for (int i = atoi(v[1]); i > 0; i--) probed();
	return 0;
}`)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(0)
	for _, s := range syms {
		if s.Name == "probed" {
			at = s.Value - f.Sections[s.Section].Addr + f.Sections[s.Section].Offset
		}
	}
	events, err := Tracefs()
	if err != nil {
		oracle.Lacks(t, "tracefs: "+err.Error())
	}
	define := func(s string) error {
		f, err := os.OpenFile(filepath.Join(filepath.Dir(events), "uprobe_events"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(s + "\n")
		return err
	}
	name := fmt.Sprintf("unspool_perfevent/%s%d", strings.ToLower(t.Name()), os.Getpid())
	if err := define(fmt.Sprintf("p:%s %s:%#x", name, prog, at)); err != nil {
		oracle.Lacks(t, "uprobes: "+err.Error())
	}
	t.Cleanup(func() {
		if err := define("-:" + name); err != nil {
			t.Error(err)
		}
	})
	return prog, strings.Replace(name, "/", ":", 1)
}

// count records and returns how many samples there are and how many were lost.
func count(t *testing.T, o Options) (samples, lost uint64) {
	t.Helper()
	r := open(t, o)
	st, err := source.Run(context.Background(), r, source.Options{Machine: r.Machine()})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if s := r.Stats(); s.Lost+s.LostSamples != st.Lost+st.LostSamples {
		t.Errorf("the recorder counts %d and %d lost, Run %d and %d", s.Lost, s.LostSamples, st.Lost, st.LostSamples)
	}
	return st.Samples, st.Lost + st.LostSamples
}

// TestUprobes: a program that ends at once has a sample for each time that it passes a uprobe, with events of the processors and with its own.
func TestUprobes(t *testing.T) {
	prog, event := uprobe(t)
	for _, narrow := range []bool{false, true} {
		for range 6 { // the kernel exchanged events in about one of three
			samples, lost := count(t, Options{Event: event, Command: []string{prog, "290"}, narrow: narrow})
			if samples+lost != 290 {
				t.Errorf("narrow %v: %d samples and %d lost of 290", narrow, samples, lost)
			}
		}
	}
	// What it started ends before it passes the probe itself.
	for range 6 {
		samples, lost := count(t, Options{Event: event, Command: []string{prog, "290", prog}})
		if samples+lost != 580 {
			t.Errorf("two processes: %d samples and %d lost of 580", samples, lost)
		}
	}
}

// TestLostAtTheEnd: what finds no room is counted, even if no record comes after it that could say so.
func TestLostAtTheEnd(t *testing.T) {
	prog, event := uprobe(t)
	const hits = 4000 // 262 MB of stacks
	for _, narrow := range []bool{false, true} {
		samples, lost := count(t, Options{Event: event, StackSize: MaxStackSize, Command: []string{prog, fmt.Sprint(hits)}, narrow: narrow})
		t.Logf("narrow %v: %d samples, %d lost", narrow, samples, lost)
		// Other records of the program are lost, too, and with the probe's events for all processors others'.
		if samples+lost < hits || samples+lost > hits+hits/4 {
			t.Errorf("narrow %v: %d samples and %d lost of %d", narrow, samples, lost, hits)
		}
	}
}
