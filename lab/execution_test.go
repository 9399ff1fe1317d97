package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/shadow"
)

// executed are the programs whose tables are compared at each instruction, short ones first: what they leave of their share of the
// instructions the others get. {services} is a text file; {jumps}, {throw}, {crypto} and {goroutines} are compiled from shadow/testdata.
var executed = []struct {
	command string // for bash, as one simple command
	long    bool   // not in CI: it is long before it does what others have not done
	whole   bool   // from the first instruction of the dynamic linker on, except in CI; all others from their entry points
}{
	{command: "date -u", whole: true},
	{command: "seq 100"},
	{command: "ls -l /usr", whole: true},
	{command: "od -c /etc/passwd"},
	{command: "base64 {services}"},
	{command: "factor 1234567891011 600851475143"},
	{command: "sha256sum {services}"},
	{command: "sort -r {services}"},
	{command: "grep -E 'tcp|udp' {services}"},
	{command: "sed s/tcp/udp/ {services}"},
	{command: "find /etc/apt"},
	{command: "diff /etc/passwd /etc/group"},
	{command: "tar cf - /etc/apt"},
	{command: "gzip -c {services}"},
	{command: "bzip2 -c {services}"},
	{command: "xz -c {services}"},
	{command: "dash -c 'trap \"echo caught\" USR1; for i in 1 2 3; do kill -USR1 $$; done'"},
	{command: "bash -c 'for i in 1 2 3; do echo $i | cat; done'"},
	{command: "make -n -f /dev/null"},
	{command: "readelf -wF /bin/true"},
	{command: "sqlite3 :memory: 'create table t(a,b); insert into t values(1,2),(3,4); select sum(a*b) from t group by b;'"},
	{command: "perl -e 'my %h; $h{$_ % 7} .= $_ for 1..500; print join(\",\", sort keys %h)'"},
	{command: "openssl dgst -sha256 {services}"},
	{command: "/usr/bin/python3 -c 'import json; print(json.dumps([1, 2, {\"a\": 3.5}]))'"},
	{command: "{jumps}", whole: true},
	{command: "{throw}"},
	{command: "strace -V", long: true},
	{command: "{goroutines}", long: true},
	{command: "objdump -d /bin/true", long: true},
	{command: "eu-readelf -a /bin/true", long: true},
	{command: "groff -T ascii {services}", long: true},
	{command: "gdb -nx -batch -ex 'info line main' /bin/true", long: true},
	{command: "node -e 'console.log([3,1,2].sort().map(x => x * 2).join())'", long: true},
	{command: "gcc -O2 -S -o /dev/null shadow/testdata/jumps.c", long: true},
	{command: "clang-19 -O2 -S -o /dev/null shadow/testdata/jumps.c", long: true},
	{command: "{crypto} md5 sha1 sha256 sha512 sha3-256 sm3 modexp aes-128-gcm aes-256-cbc aes-128-ctr aes-128-xts aes-128-ocb aes-128-cbc-hmac-sha1 aes-128-cbc-hmac-sha256 chacha20-poly1305 camellia-128-cbc des-ede3-cbc P-256 ED25519", long: true},
	{command: "{plain} md5 sha1 sha256 sha512 sha3-256 modexp aes-128-gcm aes-256-cbc chacha20-poly1305 P-256", long: true},
	{command: "/usr/bin/python3 -c 'print(sum(len(str(i * i)) for i in range(1000000)))'", long: true},
}

// TestExecution executes programs step by step, and permits no wrong row that docs/FINDINGS.md does not list. By itself it executes
// a million instructions, from the entry points of 26 programs on; with UNSPOOL_EXECUTION_STEPS (make execution) as many
// as that says, of all programs, and of the dynamic linker in some, and writes docs/results/execution.md.
func TestExecution(t *testing.T) {
	total, all := uint64(1_200_000), false
	if s := os.Getenv("UNSPOOL_EXECUTION_STEPS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total, all = n, true
	}
	programs := compileExecuted(t)
	left := 0
	for _, e := range executed {
		if all || !e.long {
			left++
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| command | instructions | compared | without row | truth unknown | known wrong rows |\n|---|--:|--:|--:|--:|--:|\n")
	var steps, compared, without, unknown uint64
	var count, wrong int
	met := map[string]bool{}
	modulesRun := map[string]bool{}
	start, user := time.Now(), userTime()
	workers := 1
	if all {
		workers = runtime.NumCPU()
	}
	results, shares := make([]*shadow.Result, len(executed)), make(chan uint64, workers) // what is left, of each worker
	for range workers {
		shares <- total / uint64(workers)
	}
	var wg sync.WaitGroup
	for i, e := range executed {
		if !all && e.long {
			continue
		}
		rest := <-shares
		share := max(1, rest/uint64(max(1, left/workers)))
		left--
		wg.Go(func() {
			results[i] = executeOne(t, programs.Replace(e.command), all, shadow.Options{Modules: modules.New(), Steps: share, Entry: !all || !e.whole})
			if results[i] != nil {
				rest -= min(rest, results[i].Steps)
			}
			shares <- rest
		})
	}
	wg.Wait()
	for i, e := range executed {
		r := results[i]
		if r == nil {
			continue
		}
		var n, u uint64
		for _, m := range r.Modules {
			n, u = n+m.NoInfo, u+m.Unknown
			modulesRun[m.Path] = true
		}
		for _, f := range r.Findings {
			if f.Known != nil {
				met[f.Known.Name] = true
			}
		}
		count++
		wrong += len(r.Wrong())
		steps, compared, without, unknown = steps+r.Steps, compared+r.Compared, without+n, unknown+u
		command := "`" + e.command + "`"
		if all && e.whole {
			command += " (from the first instruction on)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %d |\n", strings.ReplaceAll(command, "|", "\\|"), profile.Comma(r.Steps), profile.Comma(r.Compared), profile.Comma(n), profile.Comma(u), len(r.Findings)-len(r.Wrong()))
		t.Logf("%s: %d instructions, %d findings", e.command, r.Steps, len(r.Findings))
	}
	wall, own := time.Since(start), userTime()-user
	if steps < 1_000_000 || count < 20 {
		t.Errorf("%d instructions of %d programs, not 1,000,000 of 20", steps, count)
	}
	if !all || !*update {
		return
	}
	fmt.Fprintf(&b, "| %d commands, %d files | %s | %s | %s | %s | |\n", count, len(modulesRun), profile.Comma(steps), profile.Comma(compared), profile.Comma(without), profile.Comma(unknown))
	var out strings.Builder
	fmt.Fprintf(&out, "# Execution\n\n`make execution` writes this file. It was measured on %s.\n\n", machine())
	fmt.Fprintf(&out, "Programs are executed step by step (`unspool verify --run`), and at each instruction the return address, the CFA and the callee-saved registers that the row recovers are compared with a shadow stack. **%s instructions were executed, and %s compared: %d rows are wrong that [FINDINGS.md](../FINDINGS.md) does not list.** Each command had its share of the %s instructions that were asked for, and ran on by itself after that. Commands are followed from their entry points on, where it is not said otherwise; what they start, too.\n\n", profile.Comma(steps), profile.Comma(compared), wrong, profile.Comma(total))
	fmt.Fprintf(&out, "A step took %.1f µs, of which the tracer's own code had %.1f %% (user time; the rest is the kernel's, and other programs'). Known rows were met of: %s.\n\n", float64(workers)*float64(wall.Microseconds())/float64(steps), 100*own.Seconds()/wall.Seconds()/float64(workers), names(met))
	out.WriteString(b.String())
	publish(t, "execution.md", out.String())
}

// names returns the known rows' names that were met, and in brackets those that were not.
func names(met map[string]bool) string {
	var out, not []string
	seen := map[string]bool{}
	for _, k := range shadow.Knowns() {
		switch {
		case seen[k.Name]:
		case met[k.Name]:
			out = append(out, k.Name)
		default:
			not = append(not, k.Name)
		}
		seen[k.Name] = true
	}
	s := strings.Join(out, ", ")
	if len(not) > 0 {
		s += " (not of " + strings.Join(not, ", ") + ")"
	}
	return s
}

// plainOpenSSL makes OpenSSL have the code for processors without what came after SSE2.
const plainOpenSSL = "OPENSSL_ia32cap=~0x1200020200000000:~0xffffffffffffffff"

// compileExecuted compiles what executed names in braces.
func compileExecuted(t *testing.T) *strings.Replacer {
	oracle.Need(t, "gcc", "g++")
	dir := t.TempDir()
	var pairs []string
	for _, c := range [][]string{
		{"jumps", "gcc", "-O2", "-pthread", "../shadow/testdata/jumps.c", "-o"},
		{"throw", "g++", "-O2", "../shadow/testdata/throw.cc", "-o"},
		{"crypto", "gcc", "-O2", "../shadow/testdata/crypto.c", "-o"},
		{"goroutines", "go", "build", "-o"},
	} {
		path := filepath.Join(dir, c[0])
		args := append(c[2:], path)
		if c[1] == "go" {
			args = append(args, "../shadow/testdata/goroutines.go")
		}
		if out, err := exec.Command(c[1], args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		pairs = append(pairs, "{"+c[0]+"}", path)
	}
	text := filepath.Join(dir, "services")
	var b bytes.Buffer
	for i := range 400 {
		fmt.Fprintf(&b, "service%d\t%d/%s\t# of no use\n", i*7919%400, i, []string{"tcp", "udp"}[i%2])
	}
	if err := os.WriteFile(text, b.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	pairs = append(pairs, "{services}", text, "{plain}", "env "+plainOpenSSL+" "+filepath.Join(dir, "crypto"))
	return strings.NewReplacer(pairs...)
}

// executeOne executes a command. It returns nil where the machine lacks the program, and fails the test where a row is wrong.
func executeOne(t *testing.T, command string, all bool, o shadow.Options) *shadow.Result {
	name, _, _ := strings.Cut(command, " ")
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("UNSPOOL_REQUIRE_JUDGES") == "1" {
			t.Errorf("this machine lacks %s, and UNSPOOL_REQUIRE_JUDGES=1", name)
		}
		t.Logf("this machine lacks %s", name)
		return nil
	}
	// bash only reads the command's words, without being executed step by step itself.
	out, err := exec.Command("bash", "-c", "printf '%s\\0' "+command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	args := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PERL_HASH_SEED=0", "PYTHONHASHSEED=0")
	if !all {
		cmd.Env = append(cmd.Env, plainOpenSSL) // what CI executes depends on its processor as little as possible
	}
	r, err := shadow.Run(t.Context(), cmd, o)
	if err != nil {
		t.Errorf("%s: %v", command, err)
	}
	if len(r.Wrong()) > 0 {
		var b bytes.Buffer
		r.WriteText(&b)
		t.Errorf("%s:\n%s", command, b.Bytes())
	}
	return r
}

// userTime returns the processor time that this process has spent outside of the kernel.
func userTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano())
}
