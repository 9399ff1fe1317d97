package perfevent

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// mapperVar names the variable of the environment with the file that TestMapper maps when it is told to.
const mapperVar = "UNSPOOL_TEST_MAP"

// TestMapper is no test of its own: TestSilent runs it in another process. Who waits in the kernel for a page of a process holds up all of its mapping.
func TestMapper(t *testing.T) {
	path := os.Getenv(mapperVar)
	if path == "" {
		return
	}
	var line string
	for range 2 {
		mapCode(t, path)
		fmt.Println("mapped")
		fmt.Scanln(&line)
	}
}

// TestSilent: who maps code of a file system that never answers holds up neither the beginning of a recording nor its end.
func TestSilent(t *testing.T) {
	canRecord(t)
	c := exec.Command("/proc/self/exe", "-test.run=^TestMapper$")
	t.Cleanup(func() { c.Wait() }) // last: it ends when the file system has gone
	path := oracle.Silent(t)
	c.Env = append(os.Environ(), mapperVar+"="+path)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "mapped" {
		t.Fatalf("the process says %q", lines.Text())
	}
	took := func(what string, f func() error) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- f() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s goes on after 30 s: it waits for a page of %s", what, path)
		}
	}
	var r *Recorder
	took("Open", func() (err error) {
		r, err = Open(t.Context(), Options{PIDs: []int{c.Process.Pid}})
		return err
	})
	fmt.Fprintln(in) // it maps the file again; or it tries to
	took("Close", r.Close)
}
