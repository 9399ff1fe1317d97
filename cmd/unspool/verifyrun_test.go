package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestVerifyRun executes programs whose tables are right and wrong, and looks at what users see of it.
func TestVerifyRun(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	planted := filepath.Join(t.TempDir(), "planted")
	if out, err := exec.Command("gcc", "-static", "-o", planted, "../../shadow/testdata/planted_amd64.s").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r := runProgram(t, "verify", "--run", "--", planted)
	r.want(t, 1, `(?s)planted: wrong_ra\+0x1, 0x\w+: wrong ra, 6 times.*the row .*cfa=rsp\+0  ra=rcx\n.*should be  cfa=rsp\+0  ra=rdx\n.*> .*xor %ecx,%ecx\n.* 7 wrong rows, 0 of them known\. The command ended with status 0\.\n.*7 wrong rows that docs/FINDINGS.md does not list`)
	if r.out != "" {
		t.Errorf("it printed %q", r.out)
	}

	report := filepath.Join(t.TempDir(), "r.json")
	runProgram(t, "verify", "--run", "--format", "json", "-o", report, "--", planted).want(t, 1, "^unspool: 7 wrong rows that docs/FINDINGS.md does not list\n$")
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var j struct {
		Instructions uint64
		Modules      []struct {
			Path      string
			WrongRows int `json:"wrong_rows"`
		}
		Findings []struct {
			Function, Row, Should string
			Wrong                 []struct{ Register, Got, Want string }
			Code                  []struct{ Addr, Text string }
		}
	}
	if err := json.Unmarshal(b, &j); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if len(j.Findings) != 7 || j.Instructions == 0 || len(j.Modules) == 0 || j.Modules[0].WrongRows != 7 || j.Findings[2].Should != "cfa=rsp+8  ra=c-8  r12=rcx" || len(j.Findings[2].Code) == 0 {
		t.Errorf("%s", b)
	}

	// Filters; how the command ended; what it prints.
	runProgram(t, "verify", "--run", "--function", "^right", "--", planted).want(t, 0, " 0 wrong rows")
	r = runProgram(t, "verify", "--run", "--entry", "-o", "-", "--", "sh", "-c", "echo hello; exit 3")
	r.want(t, 0, "^$")
	if want := "hello\n"; len(r.out) < 20 || r.out[:len(want)] != want {
		t.Errorf("%q", r.out)
	}
	runProgram(t, "verify", "--run", "--entry", "--", "sh", "-c", "kill -TERM $$").want(t, 0, "was ended by signal SIGTERM")
	runProgram(t, "verify", "--run", "--", "/nonexistent").want(t, 1, "no such file")
	for _, f := range []string{"--module=nosuchthing", "--function=nosuchthing", "--thread=99"} {
		runProgram(t, "verify", "--run", "--entry", f, "--", "true").want(t, 2, "nothing was compared: --module, --function and --thread leave out all [0-9,]+ instructions")
	}
	c := program(t, "verify", "--run", "--entry", "--", "sh", "-c", "echo $$; exec sleep 1000")
	c.Stdout = nil
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Error(err)
	}
	c.Process.Signal(syscall.SIGTERM)
	c.Wait()
	if c.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "was ended here: unspool was interrupted") {
		t.Errorf("%v\n%s", c.ProcessState, stderr.String())
	}
}
