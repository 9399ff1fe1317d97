package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/oracle"
)

const agentUnit = "../../deploy/systemd/unspool-agent.service"

// settings are those of a section of a unit.
func settings(t *testing.T, unit string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			out[key] = value
		}
	}
	return out
}

// TestUnit: systemd finds the service well closed in, and it has the capabilities that doctor lists.
func TestUnit(t *testing.T) {
	var want []string
	for _, r := range caps.Agent() {
		want = append(want, r.Name)
	}
	s := settings(t, agentUnit)
	for _, key := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
		if got := strings.Fields(s[key]); !slices.Equal(got, want) {
			t.Errorf("%s=%v, doctor --agent lists %v", key, got, want)
		}
	}
	oracle.Need(t, "systemd-analyze")
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=40", agentUnit).CombinedOutput()
	if m := regexp.MustCompile(`exposure level for unspool-agent.service: (\S+)`).FindSubmatch(out); err != nil || m == nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("exposure %s; at most 4.0", m[1])
	}
}

// TestKubernetes: Kubernetes' own types decode the manifests of each overlay. The container has the capabilities that doctor lists and no other
// right, its account may ask kubelets for their pods only, and its output is one that the agent takes.
func TestKubernetes(t *testing.T) {
	oracle.Long(t)
	const overlays = "../../deploy/kubernetes/overlays/"
	dirs, err := filepath.Glob(overlays + "*")
	if err != nil || len(dirs) != 3 {
		t.Fatalf("%q, %v", dirs, err)
	}
	out, err := exec.Command(oracle.Engine(t, "kubernetes"), dirs...).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, err.(*exec.ExitError).Stderr)
	}
	type security struct {
		Privileged, AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
		Capabilities                                                 struct{ Add, Drop []string }
	}
	var all map[string][]struct {
		Kind                         string
		AutomountServiceAccountToken *bool
		Metadata                     struct{ Name, Namespace string }
		Rules                        []map[string][]string
		RoleRef                      map[string]string
		Subjects                     []map[string]string
		Spec                         struct {
			Template struct {
				Spec struct {
					HostPID, HostNetwork, HostIPC bool
					AutomountServiceAccountToken  *bool
					Volumes                       []map[string]any
					Containers                    []struct {
						Args            []string
						SecurityContext security
						Env             []struct {
							Name, Value string
							ValueFrom   struct{ FieldRef struct{ FieldPath string } }
						}
					}
				}
			}
		}
	}
	if err := json.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, r := range caps.Agent() {
		want = append(want, strings.TrimPrefix(r.Name, "CAP_"))
	}
	for dir, objects := range all {
		var kinds []string
		var account map[string]string
		var bound []map[string]string
		for _, o := range objects {
			kinds = append(kinds, o.Kind)
			if o.Kind == "ServiceAccount" && (o.AutomountServiceAccountToken == nil || *o.AutomountServiceAccountToken) {
				t.Errorf("%s: all pods of the account have its token", dir)
			}
			switch o.Kind {
			case "ServiceAccount":
				account = map[string]string{"kind": o.Kind, "name": o.Metadata.Name, "namespace": o.Metadata.Namespace}
			case "ClusterRole":
				if d := cmp.Diff([]map[string][]string{{"apiGroups": {""}, "resources": {"nodes/pods"}, "verbs": {"get"}}}, o.Rules); d != "" {
					t.Errorf("%s: %s", dir, d)
				}
			case "ClusterRoleBinding":
				if o.RoleRef["kind"] != "ClusterRole" || o.RoleRef["name"] != o.Metadata.Name {
					t.Errorf("%s: %v", dir, o.RoleRef)
				}
				bound = o.Subjects
			}
			if o.Kind != "DaemonSet" {
				continue
			}
			pod := o.Spec.Template.Spec
			if !pod.HostPID || pod.HostNetwork || pod.HostIPC || len(pod.Containers) != 1 || pod.AutomountServiceAccountToken == nil || !*pod.AutomountServiceAccountToken {
				t.Errorf("%s: %+v", dir, pod)
				continue
			}
			for _, v := range pod.Volumes {
				if v["hostPath"] != nil {
					t.Errorf("%s: a directory of the node: %v", dir, v)
				}
			}
			c := pod.Containers[0]
			s := c.SecurityContext
			if s.Privileged || s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || !slices.Equal(s.Capabilities.Add, want) {
				t.Errorf("%s: %+v, want %v", dir, s, want)
			}
			run := program(t, append(slices.Clone(c.Args), "--print-config")...)
			output := ""
			for _, e := range c.Env {
				value := e.Value + map[string]string{"": "", "spec.nodeName": "node-7", "status.hostIP": "fd00::7"}[e.ValueFrom.FieldRef.FieldPath]
				run.Env = append(run.Env, e.Name+"="+strings.ReplaceAll(value, "$(NODE)", "node-7"))
				if e.Name == "UNSPOOL_AGENT_OUTPUT" {
					output = e.Value
				}
			}
			if _, err := agent.Open(output, export.Options{}); err != nil || !strings.HasPrefix(output, filepath.Base(dir)+"=") {
				t.Errorf("%s: %q, %v", dir, output, err)
			}
			r := finish(t, run)
			r.want(t, 0, "")
			if !strings.Contains(r.out, `label = ["node=node-7"]`) || !strings.Contains(r.out, output) || !strings.Contains(r.out, `kubelet = "fd00::7"`) {
				t.Errorf("%s: the agent has\n%s", dir, r.out)
			}
		}
		if slices.Sort(kinds); !slices.Equal(kinds, []string{"ClusterRole", "ClusterRoleBinding", "DaemonSet", "Namespace", "ServiceAccount"}) {
			t.Errorf("%s: %q", dir, kinds)
		}
		if d := cmp.Diff([]map[string]string{account}, bound); d != "" {
			t.Errorf("%s: %s", dir, d)
		}
	}
}

// TestHelm: the chart, rendered by helm's own code, has the objects of the manifests. Its values come to the agent, and a value that it does not
// know is an error.
func TestHelm(t *testing.T) {
	oracle.Long(t)
	const chart = "../../deploy/helm/unspool-agent"
	judge := oracle.Engine(t, "kubernetes")
	dir := t.TempDir()
	build := func(args ...string) (map[string][]map[string]any, string) {
		out, err := exec.Command(judge, args...).Output()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return nil, string(exit.Stderr)
		} else if err != nil {
			t.Fatal(err)
		}
		var all map[string][]map[string]any
		if err := json.Unmarshal(out, &all); err != nil {
			t.Fatal(err)
		}
		return all, ""
	}
	render := func(values string) ([]map[string]any, string) {
		path := filepath.Join(dir, "values.yaml")
		if err := os.WriteFile(path, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		all, failed := build("--chart", chart, path)
		return all[path], failed
	}
	byKind := func(objects []map[string]any) map[string]map[string]any {
		out := map[string]map[string]any{}
		for _, o := range objects {
			if o["kind"] != "Namespace" { // helm is told its name
				out[o["kind"].(string)] = o
			}
		}
		return out
	}
	for overlay, output := range map[string]string{
		"otlp":      "otlp=grpc://opentelemetry-collector.opentelemetry.svc:4317",
		"parca":     "parca=http://parca.parca.svc:7070",
		"pyroscope": "pyroscope=http://pyroscope.pyroscope.svc:4040",
	} {
		path := "../../deploy/kubernetes/overlays/" + overlay
		want, failed := build(path)
		got, failedToo := render("outputs: [" + strconv.Quote(output) + "]")
		if d := cmp.Diff(byKind(want[path]), byKind(got)); failed+failedToo != "" || d != "" {
			t.Errorf("%s: the manifests are (-), the chart (+):\n%s%s%s", overlay, failed, failedToo, d)
		}
	}

	objects, failed := render(`
outputs: [parca=http://parca, 'otlp=grpcs://collector:4317?ca=/etc/unspool/secrets/ca.pem']
labels: {region: north, zone: '"a"'}
config: |
  interval = "30s"
  [[relabel]]
  source_labels = ["unit"]
  regex = "ssh.*"
  action = "drop"
secret: engines
kubelet: false
image: {tag: v1.2.3}
`)
	if failed != "" {
		t.Fatalf("render fails, want objects: %s", failed)
	}
	all := byKind(objects)
	if kinds := slices.Sorted(maps.Keys(all)); !slices.Equal(kinds, []string{"ConfigMap", "DaemonSet", "ServiceAccount"}) {
		t.Fatalf("%q", kinds)
	}
	pod := all["DaemonSet"]["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	c := pod["containers"].([]any)[0].(map[string]any)
	config := filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(config, []byte(all["ConfigMap"]["data"].(map[string]any)["agent.toml"].(string)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := program(t, "agent", "--print-config")
	for _, e := range c["env"].([]any) {
		e := e.(map[string]any)
		if e["name"] == "UNSPOOL_AGENT_CONFIG" {
			e["value"] = config
		}
		if v, ok := e["value"].(string); ok {
			run.Env = append(run.Env, e["name"].(string)+"="+strings.ReplaceAll(v, "$(NODE)", "node-7"))
		}
	}
	r := finish(t, run)
	r.want(t, 0, "")
	for _, want := range []string{
		`label = ["node=node-7", "region=north", "zone=\"a\""]`, `interval = "30s"`, `ssh.*`,
		`output = ["parca=http://parca", "otlp=grpcs://collector:4317?ca=/etc/unspool/secrets/ca.pem"]`,
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the agent has no %s:\n%s", want, r.out)
		}
	}
	mounts := map[string]any{}
	for _, m := range c["volumeMounts"].([]any) {
		m := m.(map[string]any)
		mounts[m["mountPath"].(string)] = m["name"]
	}
	if d := cmp.Diff(map[string]any{"/var/cache/unspool": "cache", "/etc/unspool/agent.toml": "config", "/etc/unspool/secrets": "secret"}, mounts); d != "" || len(pod["volumes"].([]any)) != 3 {
		t.Errorf("%s%v", d, pod["volumes"])
	}
	if pod["automountServiceAccountToken"] != false || c["image"] != "unspool:v1.2.3" {
		t.Errorf("%v, %v", pod["automountServiceAccountToken"], c["image"])
	}

	for values, want := range map[string]string{
		"labels: {a: b}":                   "name an engine",
		"outputs: [http://x]":              "outputs",
		"outputs: [parca=x]\noutput: [x]":  "output",
		"outputs: [parca=x]\nkubelet: yep": "kubelet",
	} {
		if _, failed := render(values); !strings.Contains(failed, want) {
			t.Errorf("%q: %q, want an error with %q", values, failed, want)
		}
	}
}

// A staticAgent runs as the service does: a program without cgo, another user than root, with the service's capabilities and no others. It profiles
// a program of root's in a directory that only root may read, and is asked to end when look has looked.
func staticAgent(t *testing.T, before []string, look func(pid int)) (said, folded string) {
	t.Helper()
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	canWalk(t)
	oracle.Need(t, "setpriv")
	program, err := os.ReadFile(withoutCgo(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "agent") // whose parents all users may read
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	exe, state := filepath.Join(dir, "unspool"), filepath.Join(dir, "state")
	const nobody = 65534
	for _, err := range []error{os.WriteFile(exe, program, 0o755), os.Chmod(dir, 0o755), os.Mkdir(state, 0o700), os.Chown(state, nobody, nobody)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	spinner(t) // in a directory of the test, for its user only
	var list []string
	for _, r := range caps.Agent() {
		list = append(list, "+"+strings.ToLower(strings.TrimPrefix(r.Name, "CAP_")))
	}
	set := strings.Join(list, ",")
	args := append(slices.Clone(before), "setpriv", "--reuid", fmt.Sprint(nobody), "--regid", fmt.Sprint(nobody), "--clear-groups", "--inh-caps=-all,"+set, "--ambient-caps=-all,"+set, "--bounding-set=-all,"+set,
		"--no-new-privs", exe, "agent", "--output", "files="+filepath.Join(state, "ring"), "--interval", "2s", "--listen", "127.0.0.1:0", "--comm", "^spinner$|^ksoftirqd|^swapper|^kworker")
	a := exec.Command(args[0], args[1:]...)
	a.Dir, a.Env = state, append(os.Environ(), asProgram+"=1", "UNSPOOL_CACHE="+filepath.Join(state, "cache"))
	var text strings.Builder
	a.Stdout, a.Stderr = &text, &text
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	defer a.Process.Kill()
	var files []string
	until(t, "a second profile of the program", func() bool {
		files, _ = filepath.Glob(filepath.Join(state, "ring", "unspool-*-spinner.pb.gz"))
		return len(files) > 1
	})
	pid := a.Process.Pid
	if children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid)); err == nil && len(before) > 0 {
		fmt.Sscan(string(children), &pid)
	}
	look(pid)
	unix.Kill(pid, unix.SIGTERM)
	timeout := time.AfterFunc(time.Minute, func() { a.Process.Kill() })
	defer timeout.Stop()
	if err := a.Wait(); err != nil {
		t.Errorf("%v\n%s", err, text.String())
	}
	for _, f := range files {
		r := runProgram(t, "report", f, "--format", "folded")
		r.want(t, 0, "")
		folded += r.out
	}
	return text.String(), folded
}

// TestAgentRights: with the service's capabilities, the kernel walks, and programs have names that only root may read. The agent keeps four of them,
// and what it starts would have none.
func TestAgentRights(t *testing.T) {
	oracle.Long(t)
	said, folded := staticAgent(t, nil, func(pid int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		for which, want := range map[string]caps.Set{"Inh": 0, "Prm": caps.Recording, "Eff": caps.Recording, "Amb": 0} {
			if line := fmt.Sprintf("Cap%s:\t%016x\n", which, uint64(want)); !strings.Contains(string(b), line) {
				t.Errorf("want %s%s", line, b)
			}
		}
	})
	if !strings.Contains(said, "walking stacks in the kernel") || strings.Contains(said, "level=WARN") || !strings.Contains(folded, ";main;outer_of_it;spins_here") {
		t.Errorf("%s\n%s", said, folded)
	}
}

// TestAgentCalls: the service's filter lets through what the agent calls.
func TestAgentCalls(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "strace", "systemd-analyze")
	allowed := map[string]bool{}
	var expand func(name string)
	expand = func(name string) {
		if !strings.HasPrefix(name, "@") {
			allowed[name] = true
			return
		}
		out, err := exec.Command("systemd-analyze", "--no-pager", "syscall-filter", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); strings.HasPrefix(line, "    ") && len(f) == 1 && !strings.HasPrefix(f[0], "#") {
				expand(f[0])
			}
		}
	}
	for _, name := range strings.Fields(settings(t, agentUnit)["SystemCallFilter"]) {
		expand(name)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	staticAgent(t, []string{"strace", "-f", "-qq", "-o", trace}, func(int) {})
	b, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]bool{}
	agent := false // what follows is the agent's, and not setpriv's
	for line := range strings.Lines(string(b)) {
		m := regexp.MustCompile(`^\d+ +([a-z0-9_]+)\(`).FindStringSubmatch(line)
		if agent && m != nil {
			calls[m[1]] = true
		}
		agent = agent || strings.Contains(line, `execve("`) && strings.Contains(line, `"agent"`)
	}
	if !calls["bpf"] || !calls["perf_event_open"] {
		t.Errorf("calls %v", calls)
	}
	for call := range calls {
		if !allowed[call] {
			t.Errorf("the service's filter refuses %s", call)
		}
	}
	t.Logf("%d different calls of %d that are allowed", len(calls), len(allowed))
}
