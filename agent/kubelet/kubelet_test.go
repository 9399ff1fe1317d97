package kubelet

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/internal/oracle"
)

const (
	uid  = "2f1c4e2a-7a3b-4c5d-8e9f-0a1b2c3d4e5f"
	hash = "0123456789abcdef0123456789abcdef"
	id   = "7be92808767a667f35c8505cbf40d14e931ef6db5b0210329cf193b15ba9d605"
)

func one(metadata, spec, status string) string {
	return fmt.Sprintf(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"shop-1","namespace":"market","uid":%q%s},"spec":{%s},"status":{%s}}]}`, uid, metadata, spec, status)
}

// TestDecode: what the names of a pod are, by its owner and annotations.
func TestDecode(t *testing.T) {
	shop := Names{Namespace: "market", Pod: "shop-1"}
	with := func(change func(n *Names)) Names {
		n := shop
		change(&n)
		return n
	}
	owner := func(kind, name string) string {
		return fmt.Sprintf(`,"ownerReferences":[{"kind":"Other","name":"x"},{"kind":%q,"name":%q,"controller":true}]`, kind, name)
	}
	for name, c := range map[string]struct {
		text, id string
		want     Names
	}{
		"no owner":   {one("", "", ""), uid, with(func(n *Names) { n.Service = "shop-1" })},
		"deployment": {one(owner("ReplicaSet", "shop-5d4f")+`,"labels":{"pod-template-hash":"5d4f"}`, "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "Deployment", "shop", "shop" })},
		"replicaset": {one(owner("ReplicaSet", "shop-5d4f"), "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "ReplicaSet", "shop-5d4f", "shop-5d4f" })},
		"stateful":   {one(owner("StatefulSet", "db"), "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "StatefulSet", "db", "db" })},
		"other":      {one(owner("Workflow", "build"), "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "Workflow", "build", "shop-1" })},
		"cron":       {one(owner("Job", "nightly-29655360")+`,"creationTimestamp":"2026-05-21T00:00:01Z"`, "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "CronJob", "nightly", "nightly" })},
		"job":        {one(owner("Job", "import-20260521")+`,"creationTimestamp":"2026-05-21T00:00:01Z"`, "", ""), uid, with(func(n *Names) { n.Kind, n.Controller, n.Service = "Job", "import-20260521", "import-20260521" })},
		"static":     {one(owner("Node", "node-7")+`,"annotations":{"kubernetes.io/config.hash":"`+hash+`"}`, "", ""), hash, with(func(n *Names) { n.Service = "shop-1" })},
		"annotated": {one(owner("StatefulSet", "db")+`,"annotations":{"resource.opentelemetry.io/service.name":"ledger","resource.opentelemetry.io/service.namespace":"bank"}`, "", ""), uid,
			with(func(n *Names) {
				n.Kind, n.Controller, n.Service, n.ServiceNamespace = "StatefulSet", "db", "ledger", "bank"
			})},
		"container": {one("", `"containers":[{"name":"web","image":"r.example/shop:1.2"}]`, `"containerStatuses":[{"name":"web","image":"sha256:0","containerID":"containerd://`+id+`"}]`), id,
			with(func(n *Names) { n.Service, n.Container, n.Image = "shop-1", "web", "r.example/shop:1.2" })},
		"before a restart": {one("", "", `"initContainerStatuses":[{"name":"web","containerID":"cri-o://x","lastState":{"terminated":{"containerID":"cri-o://`+id+`"}}}]`), id,
			with(func(n *Names) { n.Service, n.Container = "shop-1", "web" })},
		"long": {one("", `"ephemeralContainers":[{"name":"web","image":"`+strings.Repeat("é", 400)+`"}]`, `"ephemeralContainerStatuses":[{"name":"web","containerID":"cri-o://`+id+`"}]`), id,
			with(func(n *Names) { n.Service, n.Container, n.Image = "shop-1", "web", strings.Repeat("é", 256) })},
	} {
		names, damaged, err := decode(strings.NewReader(c.text))
		if err != nil || damaged > 0 || names[c.id] == nil {
			t.Errorf("%s: %v, %d damaged, %v\n%s", name, names, damaged, err, c.text)
		} else if d := cmp.Diff(c.want, *names[c.id]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestDamaged: what an answer may be, and what becomes of it.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	good := one("", "", "")
	for name, c := range map[string]struct {
		text    io.Reader
		names   int
		damaged int
		err     string
	}{
		"no pods":       {strings.NewReader(`{"kind":"PodList","items":null}`), 0, 0, ""},
		"empty":         {strings.NewReader(""), 0, 0, "EOF"},
		"an array":      {strings.NewReader("[]"), 0, 0, "no list"},
		"no items":      {strings.NewReader(`{"kind":"PodList"}`), 0, 0, "no list"},
		"an error":      {strings.NewReader(`{"kind":"Status","message":"no"}`), 0, 0, "no list"},
		"twice":         {strings.NewReader(`{"items":[],"items":[]}`), 0, 0, "two lists"},
		"cut":           {strings.NewReader(good[:len(good)-3]), 0, 0, "EOF"},
		"a wrong type":  {strings.NewReader(strings.Replace(good, `[{`, `[{"metadata":7},"x",{`, 1)), 1, 2, ""},
		"a wrong UID":   {strings.NewReader(strings.Replace(good, uid, "../"+uid[3:], 1)), 0, 1, ""},
		"a large pod":   {strings.NewReader(strings.Replace(good, `[{`, `[{"x":"`+strings.Repeat("x", 2*maxPod)+`"},{`, 1)), 0, 0, "larger"},
		"a large field": {strings.NewReader(`{"x":"` + strings.Repeat("x", 2*maxPod) + `","items":[]}`), 0, 0, "larger"},
		"many pods":     {strings.NewReader(`{"items":[` + strings.Repeat(`{},`, maxPods) + `{}]}`), 0, maxPods, "larger"},
		"no end":        {io.MultiReader(strings.NewReader(`{"items":[`), &forever{`{"metadata":{"labels":{"x":"` + strings.Repeat("x", 1<<20) + `"}}},`, 0}), 0, 31, "larger"},
	} {
		names, damaged, err := decode(c.text)
		if len(names) != c.names || damaged != c.damaged || err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %d names, %d damaged, %v, want %d, %d, %q", name, len(names), damaged, err, c.names, c.damaged, c.err)
		}
	}
}

type forever struct {
	text string
	at   int
}

func (f *forever) Read(b []byte) (int, error) {
	n := copy(b, f.text[f.at:])
	f.at = (f.at + n) % len(f.text)
	return n, nil
}

// TestTypes: an answer that Kubernetes' own types make has the names that those types have.
func TestTypes(t *testing.T) {
	oracle.Long(t)
	out, err := exec.Command(oracle.Engine(t, "kubernetes"), "--pods").Output()
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		List json.RawMessage
		Want map[string]Names
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatal(err)
	}
	names, damaged, err := decode(strings.NewReader(string(answer.List)))
	if err != nil || damaged > 0 {
		t.Fatalf("%d damaged, %v\n%s", damaged, err, answer.List)
	}
	got := map[string]Names{}
	for id, n := range names {
		got[id] = *n
	}
	if d := cmp.Diff(answer.Want, got); d != "" || len(got) < 10 {
		t.Errorf("%s\n%s", d, answer.List)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(one("", "", ""))
	f.Add(one(`,"ownerReferences":[{"kind":"Job","name":"nightly-29656800","controller":true}],"creationTimestamp":"2026-05-22T00:00:01Z"`, `"containers":[{"name":"web","image":"shop"}]`,
		`"containerStatuses":[{"name":"web","containerID":"containerd://`+id+`"}]`))
	f.Fuzz(func(t *testing.T, s string) {
		names, _, _ := decode(strings.NewReader(s))
		for id, n := range names {
			if len(id) > 64 {
				t.Errorf("%q", id)
			}
			for _, s := range []string{n.Namespace, n.Pod, n.Container, n.Image, n.Kind, n.Controller, n.Service, n.ServiceNamespace} {
				if len(s) > maxName || !utf8.ValidString(s) {
					t.Errorf("%q", s)
				}
			}
		}
	})
}

// TestFetch: the token goes to the kubelet that the certificates know, and nowhere else; both files are read for each request.
func TestFetch(t *testing.T) {
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca"), filepath.Join(dir, "token")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var asked []string
	answer := func(w http.ResponseWriter) { io.WriteString(w, one("", "", "")) }
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization"))
		answer(w)
	})
	secure, plain := httptest.NewUnstartedServer(handler), httptest.NewServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are refused
	secure.StartTLS()
	defer secure.Close()
	defer plain.Close()
	write(ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	write(token, "first\n")
	fetch := func(o Options) (int, string) {
		t.Helper()
		asked = nil
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		names, _, err := p.fetch(t.Context())
		return len(names), strings.TrimSpace(fmt.Sprint(err)) + fmt.Sprint(asked)
	}
	o := Options{Address: secure.URL, CA: ca, TokenFile: token}
	check := func(what string, o Options, names int, want string) {
		t.Helper()
		if n, said := fetch(o); n != names || !strings.Contains(said, want) {
			t.Errorf("%s: %d names, %s; want %d, %s", what, n, said, names, want)
		}
	}
	check("https", o, 1, "<nil>[GET /pods Bearer first]")
	write(token, "second")
	check("a new token", o, 1, "[GET /pods Bearer second]")
	check("no token", Options{Address: secure.URL, CA: ca}, 1, "[GET /pods ]")
	check("no certificate", Options{Address: secure.URL, TokenFile: token}, 0, "x509")
	check("insecure", Options{Address: secure.URL, TokenFile: token, Insecure: true}, 1, "[GET /pods Bearer second]")
	check("http", Options{Address: plain.URL, CA: ca, TokenFile: token}, 1, "[GET /pods ]")
	for what, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string
	}{
		"refused":    {func(w http.ResponseWriter) { http.Error(w, "Forbidden (user=\x1b[31mx)", http.StatusForbidden) }, "the kubelet refuses: 403 Forbidden (user="},
		"redirected": {func(w http.ResponseWriter) { w.Header().Set("Location", plain.URL); w.WriteHeader(302) }, "the kubelet refuses: 302[GET /pods Bearer second]"},
		"no JSON":    {func(w http.ResponseWriter) { io.WriteString(w, "\x1b[31m") }, "the kubelet's answer: invalid character"},
	} {
		answer = c.answer
		check(what, o, 0, c.want)
		if _, said := fetch(o); strings.Contains(said, "\x1b") {
			t.Errorf("%s: %q", what, said)
		}
	}
	write(token, "two words")
	check("no token in the file", o, 0, "holds no token[]")
	write(ca, "nothing")
	check("no certificate in the file", o, 0, "no certificate in PEM[]")
	os.Remove(ca)
	check("no file", o, 0, "no such file")
	plain.Close()
	check("no kubelet", Options{Address: plain.URL}, 0, "the kubelet does not answer")
}

func TestNew(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.7": "https://10.0.0.7:10250/pods", "fd00::7": "https://[fd00::7]:10250/pods", "[fd00::7]": "https://[fd00::7]:10250/pods", "node-7": "https://node-7:10250/pods",
		"node-7:4": "https://node-7:4/pods", "http://127.0.0.1:10255": "http://127.0.0.1:10255/pods", "https://node-7:10250/": "https://node-7:10250/pods",
		"ftp://node-7": "", "https://": "", "https://u:p@node-7": "", "https://node-7?x": "", "": "", "a b": "",
	} {
		p, err := New(Options{Address: in})
		if err != nil && want != "" || err == nil && p.url.String() != want {
			t.Errorf("%q: %v, %v, want %q", in, p, err, want)
		}
	}
	var none *Pods
	if n, ok := none.Find(uid, id); ok {
		t.Errorf("Find of a nil *Pods = %+v, want none", n)
	}
}

// TestRun: requests come each minute, soon for what is not known, and seldom while they fail. Names outlive an answer that lacks them, for a while.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of what follows, and what the kubelet answers
		var said []string
		p, err := New(Options{Address: "node-7"})
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		var list map[string]*Names
		var failure error
		ctx, cancel := context.WithCancel(t.Context())
		go p.run(ctx, func(err error) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprint(err))
		}, func(context.Context) (map[string]*Names, int, error) {
			mu.Lock()
			defer mu.Unlock()
			asked++
			if failure != nil {
				return nil, 0, failure
			}
			return list, 0, nil
		})
		answer := func(names map[string]*Names, err error) {
			mu.Lock()
			defer mu.Unlock()
			list, failure = names, err
		}
		requests := func() int {
			mu.Lock()
			defer mu.Unlock()
			return asked
		}
		during := func(d time.Duration) (n int) { // with a container that the kubelet does not know
			before := requests()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				p.Find(uid, id)
				p.Find("", strings.Repeat("0", 64)) // without a pod
			}
			return requests() - before
		}
		time.Sleep(10 * time.Minute)
		if n := requests(); n < 9 || n > 11 {
			t.Errorf("%d requests in ten minutes", n)
		}
		if n := during(10 * time.Minute); n < 6*(1+maxTries) || n > 11*(1+maxTries) {
			t.Errorf("%d requests in ten minutes with an unknown container", n)
		}
		answer(map[string]*Names{uid: {Pod: "shop-1"}, id: {Pod: "shop-1", Container: "web"}}, nil)
		time.Sleep(2 * time.Minute)
		if n, ok := p.Find(uid, id); !ok || n.Container != "web" {
			t.Errorf("Find(%s, %s) = %+v, %v, want the container web", uid, id, n, ok)
		}
		if n, ok := p.Find(uid, strings.Repeat("1", 64)); !ok || n.Pod != "shop-1" || n.Container != "" {
			t.Errorf("Find(%s) of an unknown container = %+v, %v, want the pod shop-1 and no container", uid, n, ok)
		}
		answer(nil, errors.New("away"))
		if n := during(10 * time.Minute); n > 16 {
			t.Errorf("%d requests in ten minutes without an answer", n)
		}
		if n, ok := p.Find(uid, id); ok {
			t.Errorf("ten minutes after the last answer, %s is still %+v; %+v", id, n, p.Stats())
		}
		answer(nil, nil)
		time.Sleep(5 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(said) != "[away <nil>]" || p.Stats().Failed == 0 || p.Stats().Err != nil {
			t.Errorf("%q, %+v", said, p.Stats())
		}
		for i := range 3 * maxAsked {
			p.Find(fmt.Sprint(i), "")
		}
		if len(p.tries) > maxAsked {
			t.Errorf("%d wanted", len(p.tries))
		}
		cancel()
	})
}

// However many pods a kubelet tells, in one answer or in many, a bounded number is kept.
func TestBounded(t *testing.T) {
	p, err := New(Options{Address: "node-7"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		names := map[string]*Names{}
		for j := range maxKnown/2 - 1 {
			names[fmt.Sprint(i, j)] = &Names{}
		}
		p.learn(names, 0, nil, time.Now(), true)
		if n := p.Stats().Known; n > maxKnown || n < len(names) {
			t.Fatalf("%d names", n)
		}
	}
}

// BenchmarkDecode reads 110 pods of 30 kB each.
func BenchmarkDecode(b *testing.B) {
	one := one(`,"annotations":{"x":"`+strings.Repeat("x", 10000)+`"},"managedFields":[`+strings.TrimSuffix(strings.Repeat(`{"f:metadata":{"f:labels":{".":{}}}},`, 500), ",")+`]`, `"containers":[{"name":"web","image":"shop:1.2"}]`,
		`"containerStatuses":[{"name":"web","containerID":"containerd://`+id+`"}]`)
	i, j := strings.Index(one, `{"metadata":{"name"`), len(one)-2
	text := one[:i] + strings.Repeat(one[i:j]+",", 109) + one[i:j] + "]}"
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if names, damaged, err := decode(strings.NewReader(text)); err != nil || damaged > 0 || len(names) != 2 {
			b.Fatalf("decode = %d names, %d damaged, %v, want 2 names", len(names), damaged, err)
		}
	}
}
