package perfevent

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// TestRepair: a process overruns the ring while nobody reads, and then unmaps a file, maps others, takes another name and starts a child that does
// the same. Soon after, all that is known.
func TestRepair(t *testing.T) {
	oracle.Long(t)
	canRecord(t)
	const files = 300
	dir := t.TempDir()
	for i := range files + 3 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{work(t), "flood", dir, fmt.Sprint(files)}
	for _, way := range []string{"command", "command by its own events", "process", "machine"} {
		t.Run(way, func(t *testing.T) {
			if way == "machine" && os.Geteuid() != 0 {
				oracle.Lacks(t, "root, to record the whole machine")
			}
			in, tell, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer tell.Close()
			listen, out, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer listen.Close()
			var reading sync.Mutex
			o := Options{Frequency: 199, StackSize: 64, Files: &[3]*os.File{in, out, os.Stderr}, round: func() { reading.Lock(); defer reading.Unlock() }}
			switch way {
			case "command", "command by its own events":
				o.Command, o.narrow = args, way != "command"
			default:
				cmd, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: o.Files[:]})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { cmd.Kill(); cmd.Wait() }()
				if o.All = way == "machine"; !o.All {
					o.PIDs = []int{cmd.Pid}
				}
				defer tell.Close()
			}
			lines := bufio.NewReader(listen)
			if len(o.Command) == 0 {
				lines.ReadString('\n')
			}
			r := open(t, o)
			in.Close()
			out.Close()
			if len(o.Command) > 0 {
				lines.ReadString('\n')
			}
			var child int32
			go func() {
				time.Sleep(300 * time.Millisecond)
				reading.Lock()
				defer reading.Unlock()
				tell.Write([]byte("\n"))
				s, err := lines.ReadString('\n')
				pid, nerr := strconv.Atoi(strings.TrimSpace(s))
				if err != nil || nerr != nil {
					t.Errorf("%q: %v", s, err)
					r.Stop()
				}
				child = int32(pid)
			}()
			time.AfterFunc(20*time.Second, r.Stop)
			var state [2]string
			var bad [2]int
			st, err := source.Run(t.Context(), r, source.Options{Machine: r.Machine(), Sample: func(s *source.Sample) error {
				has, first := 0, false
				for _, m := range s.Space.Mappings() {
					if filepath.Dir(m.Module.Path) == dir {
						n, _ := strconv.Atoi(filepath.Base(m.Module.Path))
						if has++; n == 0 {
							first = true
						}
						if n == 1 {
							has--
						}
					}
				}
				what, which := fmt.Sprintf("%s: %d files, the first: %v", s.Comm, has, first), 0
				switch {
				case s.Comm == "flooded" && has == files && !first:
				case s.Comm == "unheard" && has == files+1 && !first:
					which = 1
				default:
					if state[0] != "" && state[1] != "" && (strings.HasPrefix(s.Comm, "flood") || s.Comm == "unheard") {
						t.Errorf("then again %s", what)
					}
					return nil
				}
				if state[which] = what; state[0] != "" && state[1] != "" {
					if bad[which]++; bad[0] > 3 && bad[1] > 3 {
						r.Stop()
					}
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			tell.Close()
			r.Close()
			t.Logf("%+v; %+v", r.Stats(), st.Repairs)
			if state[0] == "" || state[1] == "" {
				t.Errorf("of the process: %q; of its child %d: %q; %+v", state[0], child, state[1], st)
			}
			if st.Lost == 0 || st.Repairs.Mappings < files || st.Repairs.Gone == 0 || st.Repairs.Names == 0 || way == "command" && st.Repairs.Processes == 0 {
				t.Errorf("%d lost, made up for: %+v", st.Lost, st.Repairs)
			}
			if st.Disordered > 0 {
				t.Errorf("%d out of order", st.Disordered)
			}
		})
	}
}

// TestUnmapped: code that the kernel moves to an address where no record says that something is, is soon found there.
func TestUnmapped(t *testing.T) {
	oracle.Long(t)
	for _, narrow := range []bool{false, true} {
		r := open(t, Options{Command: []string{work(t), "move", "2"}, narrow: narrow, StackSize: 512})
		unknown, known := 0, 0
		st, err := source.Run(t.Context(), r, source.Options{Machine: r.Machine(), Sample: func(s *source.Sample) error {
			switch n := len(s.User); {
			case n == 0 || s.Comm != "work":
			case s.User[0].Mapping == nil:
				unknown++
			case s.User[0].Mapping.Hi-s.User[0].Mapping.Lo == 4096 && filepath.Base(s.User[0].Mapping.Module.Path) == "work":
				known++
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d samples in no known mapping, %d in the moved one; %+v", unknown, known, st.Repairs)
		if known < 100 || known < unknown || st.Repairs.Mappings == 0 || st.Repairs.Mappings > 2 || st.Repairs.Gone > 2 || st.Disordered > 0 {
			t.Errorf("narrow %v: %d samples in no known mapping, %d in the moved one, %+v; %d out of order", narrow, unknown, known, st.Repairs, st.Disordered)
		}
	}
}
