// Package vm boots Linux kernels that this machine does not run, of other versions and other processors, under QEMU, and runs
// commands in them. QEMU translates all code: a command takes 10 to 20 times as long as here, so its tests judge what is right,
// never how fast.
package vm

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A Step is a command that the machine runs.
type Step struct {
	Name    string
	Args    []string // $PID stands for the process that the last step with Start has started
	Env     []string
	User    int      // whose process it is
	Nice    int      // its priority
	Cgroup  string   // the directory of cgroup v2 that it is in, which is made for it; "": none
	Start   bool     // it goes on beside the steps after it, which wait for its first output
	End     bool     // before it, what goes on is killed
	Seconds float64  // after which it is killed
	Files   []string // which the result has
}

// A Result is what a step has given.
type Result struct {
	Name           string
	Exit           int // -1: it was killed, or could not be run, as Stderr says
	PID            int // of a step with Start
	Seconds        float64
	Stdout, Stderr []byte
	Files          map[string][]byte
}

// Marks of results on the console: each is JSON, compressed by gzip, in lines of base64.
const (
	mark  = "@unspool "
	end   = "@end"
	width = 1000
)

// Print writes a result to the console.
func Print(w io.Writer, r Result) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(r); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	text := base64.StdEncoding.EncodeToString(b.Bytes())
	for len(text) > 0 {
		n := min(width, len(text))
		if _, err := fmt.Fprintf(w, "%s%s\n", mark, text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	_, err := fmt.Fprintln(w, end)
	return err
}

// results reads results from the console, and what else it shows.
func results(console io.Reader) (out []Result, other []byte, err error) {
	var text []byte
	lines := bufio.NewScanner(console)
	for lines.Scan() {
		line := bytes.TrimRight(lines.Bytes(), "\r")
		// Firmware and the kernel may leave the cursor anywhere.
		i := bytes.Index(line, []byte(mark))
		switch {
		case i >= 0:
			text = append(text, line[i+len(mark):]...)
		case string(line) == end:
			b, err := base64.StdEncoding.DecodeString(string(text))
			if err != nil {
				return out, other, err
			}
			z, err := gzip.NewReader(bytes.NewReader(b))
			if err != nil {
				return out, other, err
			}
			var r Result
			if err := json.NewDecoder(z).Decode(&r); err != nil {
				return out, other, err
			}
			out, text = append(out, r), nil
		default:
			other = append(append(other, line...), '\n')
		}
	}
	return out, other, lines.Err()
}

// A Kernel is one of a distribution.
type Kernel struct {
	Suite   string // of Debian
	Arch    string // amd64 or arm64, as Go and Debian say
	Version string
	QEMU    []string // begins the command that emulates the machine; nil: the one of this system
	Memory  string   // of the machine, as QEMU says it; "": 2G
	Disk    string   // the path of an ext4 file system, which the machine has at /disk and may change; needs the modules virtio_pci and virtio_blk
	image   string
}

// New is the kernel of a suite of Debian that is in a file, as oracle.Kernel fetches it.
func New(suite, arch, image string) *Kernel {
	return &Kernel{Suite: suite, Arch: arch, Version: strings.TrimPrefix(filepath.Base(image), "vmlinuz-"), image: image}
}

// Boot boots the kernel with files as its root and takes the steps in it. An error says what the console has shown.
func (k *Kernel) Boot(ctx context.Context, root *Root, steps []Step) ([]Result, error) {
	b, err := json.Marshal(steps)
	if err != nil {
		return nil, err
	}
	initrd, err := os.CreateTemp("", "unspool-vm-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(initrd.Name())
	err = errors.Join(root.write(initrd, file{name: "steps.json", mode: 0o100644, data: b}), initrd.Close())
	if err != nil {
		return nil, err
	}
	// One processor on x86-64: QEMU 7.2 fails kernels of 6.12 and later now and then when they have two.
	machine := map[string][]string{
		// On a busy host, the timer may not tick while the kernel looks whether it does, and the kernel would panic.
		"amd64": {"qemu-system-x86_64", "-cpu", "max", "-smp", "1", "-append", "console=ttyS0 quiet panic=-1 no_timer_check"},
		"arm64": {"qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-append", "console=ttyAMA0 quiet panic=-1"},
	}[k.Arch]
	if k.QEMU != nil {
		machine = slices.Concat(k.QEMU, machine[1:])
	}
	if k.Disk != "" {
		machine = append(machine, "-drive", "if=virtio,format=raw,file="+strings.ReplaceAll(k.Disk, ",", ",,"))
	}
	cmd := exec.CommandContext(ctx, machine[0], append(machine[1:], "-accel", "tcg,thread=single", "-m", cmp.Or(k.Memory, "2G"), "-nographic", "-no-reboot",
		"-kernel", k.image, "-initrd", initrd.Name())...)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	console, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	out, other, err := results(console)
	err = errors.Join(err, cmd.Wait(), context.Cause(ctx))
	if err == nil && len(out) != len(steps) {
		err = fmt.Errorf("%d of %d steps have results", len(out), len(steps))
	}
	if err != nil {
		err = fmt.Errorf("in Linux %s: %w\n%s%s", k.Version, err, other, stderr.Bytes())
	}
	return out, err
}

// Init adds the machine's first process, which takes the steps.
func (r *Root) Init(ctx context.Context, arch string) error {
	dir, err := os.MkdirTemp("", "unspool-vm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "init")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/unspool/unspool/lab/vm/guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the first process: %w\n%s", err, out)
	}
	return r.Copy("init", path)
}
