package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/record"
)

// TestReadAgain: outputs and settings change at once; flags that cannot change are named. After an error, all stays as it was.
func TestReadAgain(t *testing.T) {
	var log strings.Builder
	open := func(dir string) *agent.Target {
		target, err := agent.Open("files="+dir, export.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return target
	}
	first, second := open(t.TempDir()), open(t.TempDir())
	o := Options{Changeable: Changeable{Outputs: []*agent.Target{first}, Queue: 1 << 20}, Config: "agent.toml", Log: slog.New(slog.NewTextHandler(&log, nil))}
	d := daemon{Options: &o, outputs: agent.NewOutputs(time.Second, func(*agent.Target, error) {}), agent: agent.New(agent.Options{}, time.Now())}
	d.outputs.Set(o.Outputs, int64(o.Queue))
	defer d.outputs.Close()
	for _, c := range []struct {
		now   []*agent.Target
		fixed []string
		err   error
		said  string
		count int
	}{
		{[]*agent.Target{second}, nil, errors.New("agent.toml: bad"), `level=ERROR msg="the configuration stays as it was: agent.toml: bad"`, 1},
		{[]*agent.Target{first, second}, []string{"event", "pid"}, nil, `level=WARN msg="these change when the agent starts again" flags="event pid"`, 2},
		{[]*agent.Target{second}, nil, nil, `msg="read again" config=agent.toml outputs=1 interval=9s`, 1},
	} {
		log.Reset()
		o.Again = func() (Changeable, []string, error) {
			return Changeable{Settings: agent.Settings{Interval: 9 * time.Second}, Outputs: c.now, Queue: 1 << 20}, c.fixed, c.err
		}
		d.readAgain()
		if n := len(d.outputs.Queues()); n != c.count || !strings.Contains(log.String(), c.said) {
			t.Errorf("%v, %q, %v: %d outputs, want %d; the log is %q, want %q", c.now, c.fixed, c.err, n, c.count, log.String(), c.said)
		}
	}
}

// TestMissing: the log says what an output has not taken, and nothing of one that has taken all.
func TestMissing(t *testing.T) {
	var log strings.Builder
	d := daemon{Options: &Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	target := &agent.Target{Kind: "parca", URL: "http://p"}
	d.tellMissing(target, agent.QueueStats{Sent: 7})
	d.tellMissing(target, agent.QueueStats{Sent: 7, Dropped: 5, Refused: 1})
	const want = `level=WARN msg="profiles are missing" output="parca=http://p" sent=7 dropped=5 refused=1` + "\n"
	if _, line, _ := strings.Cut(log.String(), " "); line != want {
		t.Errorf("the log is %q, want %q", log.String(), want)
	}
}

// TestQueueBound: all queues together have a part of the memory, however large each may be.
func TestQueueBound(t *testing.T) {
	for _, c := range []struct {
		most    int64
		queue   uint64
		outputs int
		want    int64
	}{
		{0, 16 << 20, 2, 16 << 20},
		{4 << 20, 16 << 20, 0, 4 << 20},
		{4 << 20, 16 << 20, 1, 4 << 20},
		{4 << 20, 16 << 20, 2, 2 << 20},
		{4 << 20, 1 << 20, 2, 1 << 20},
	} {
		d := daemon{queues: c.most}
		if got := d.queue(&Changeable{Queue: c.queue, Outputs: make([]*agent.Target, c.outputs)}); got != c.want {
			t.Errorf("%d outputs with %d bytes each, of %d: %d, want %d", c.outputs, c.queue, c.most, got, c.want)
		}
	}
}

// TestNoRecording: what cannot begin leaves nothing open.
func TestNoRecording(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	o := Options{Listen: address, Record: func(context.Context, *modules.Set) (*record.Live, error) { return nil, errors.New("no") }}
	if _, _, err := Run(t.Context(), o); err == nil || !strings.HasPrefix(err.Error(), "--listen: ") {
		t.Errorf("%s is taken: %v", address, err)
	}
	l.Close()
	for range 2 {
		if status, note, err := Run(t.Context(), o); status != 0 || note != "" || fmt.Sprint(err) != "no" {
			t.Errorf("%d, %q, %v", status, note, err)
		}
	}
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "10.1.2.3:1": false, "0.0.0.0:1": false, "[::]:1": false} {
		a, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := isLoopback(a); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}
