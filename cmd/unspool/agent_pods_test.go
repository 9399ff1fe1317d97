package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// inCgroup puts a process into a cgroup of this machine until the test ends. The process has ended by then.
func inCgroup(t *testing.T, path string, pid int) {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"} { // with versions 1 and 2, with version 1, with version 2
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil || os.MkdirAll(root+path, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			for dir := root + path; dir != root; dir = filepath.Dir(dir) {
				os.Remove(dir)
			}
		})
		if os.WriteFile(filepath.Join(root+path, "cgroup.procs"), fmt.Append(nil, pid), 0) == nil {
			return
		}
	}
	oracle.Lacks(t, "a hierarchy of cgroups that it may change")
}

// TestAgentPods: the profile of a program in a container's cgroup has the names that the kubelet tells.
func TestAgentPods(t *testing.T) {
	oracle.Long(t)
	canRecord(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe, enough := filepath.Join(dir, "work.c"), filepath.Join(dir, "work"), filepath.Join(dir, "enough")
	if err := os.WriteFile(src, []byte(agentWork), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	work := exec.Command(exe, enough)
	if err := work.Start(); err != nil {
		t.Fatal(err)
	}
	pod := fmt.Sprintf("2f1c4e2a-7a3b-4c5d-8e9f-%012x", os.Getpid())
	id := strings.Repeat("7", 56) + fmt.Sprintf("%08x", os.Getpid())
	inCgroup(t, "/kubepods/burstable/pod"+pod+"/"+id, work.Process.Pid)
	defer work.Wait()
	defer work.Process.Kill()
	kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kind":"PodList","items":[{"metadata":{"name":"shop-0","namespace":"market","uid":%q,"ownerReferences":[{"kind":"StatefulSet","name":"shop","controller":true}]},
			"spec":{"containers":[{"name":"web","image":"shop:1.2"}]},"status":{"containerStatuses":[{"name":"web","containerID":"containerd://%s"}]}}]}`, pod, id)
	}))
	defer kubelet.Close()
	p := &pusher{}
	engine := httptest.NewServer(p)
	defer engine.Close()

	c := program(t, "agent", "--output", "pyroscope="+engine.URL, "--interval", "1s", "--listen", "127.0.0.1:0", "-F", "99", "--kubelet", kubelet.URL, "-p", fmt.Sprint(work.Process.Pid))
	said := &strings.Builder{}
	c.Stderr = said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	want := map[string]string{"service_name": "shop", "namespace": "market", "pod": "shop-0", "pod_uid": pod, "container": "web", "container_id": id, "image": "shop:1.2", "controller": "shop",
		"controller_kind": "StatefulSet"}
	until(t, "a profile with the names of the pod", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, labels := range p.labels {
			right := true
			for k, v := range want {
				right = right && labels[k] == v
			}
			if right {
				return true
			}
		}
		return false
	})
	if err := os.WriteFile(enough, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Process.Signal(os.Interrupt)
	if c.Wait(); strings.Contains(said.String(), "level=WARN") {
		t.Errorf("%s", said)
	}
}
