// Command kubernetes judges manifests: it builds the directories that it is given as kustomize does, decodes what comes out with Kubernetes' own types,
// where a field that they do not have is an error, and prints the result as JSON, an array of each directory's objects.
//
// With --chart DIR VALUES... it renders a chart as "helm template unspool-agent --namespace unspool" does, once with each file of values, and prints the
// objects of each. With --pods it judges a decoder of pods: it prints an object in JSON with a list of pods, made of Kubernetes' own types, and the names that the UID
// of each pod and the ID of each container stand for.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--pods" {
		list, want := pods()
		if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"list": list, "want": want}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	names, make := os.Args[1:], build
	if len(names) > 2 && names[0] == "--chart" {
		dir := names[1]
		names, make = names[2:], func(values string) ([]any, error) { return render(dir, values) }
	}
	all := map[string][]any{}
	for _, dir := range names {
		objects, err := make(dir)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", dir, err)
			os.Exit(1)
		}
		all[dir] = objects
	}
	if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(dir string) (objects []any, err error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		o, err := decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.GetName(), err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// render returns the objects of a chart, in the order in which helm installs them.
func render(dir, values string) (objects []any, err error) {
	c, err := loader.Load(dir)
	if err != nil {
		return nil, err
	}
	set, err := chartutil.ReadValuesFile(values)
	if err != nil {
		return nil, err
	}
	all, err := chartutil.ToRenderValues(c, set, chartutil.ReleaseOptions{Name: "unspool-agent", Namespace: "unspool", Revision: 1, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(c, all)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.HasSuffix(name, "NOTES.txt") })
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		o, err := decode([]byte(m.Content))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// decode returns an object as Kubernetes' own type.
func decode(text []byte) (o any, err error) {
	var t meta.TypeMeta
	if err := yaml.Unmarshal(text, &t); err != nil {
		return nil, err
	}
	switch kind := t.APIVersion + " " + t.Kind; kind {
	case "apps/v1 DaemonSet":
		o = &apps.DaemonSet{}
	case "v1 ConfigMap":
		o = &core.ConfigMap{}
	case "v1 Namespace":
		o = &core.Namespace{}
	case "v1 ServiceAccount":
		o = &core.ServiceAccount{}
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		o = &rbac.ClusterRole{}
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		o = &rbac.ClusterRoleBinding{}
	default:
		return nil, fmt.Errorf("no type for %s", kind)
	}
	return o, yaml.UnmarshalStrict(text, o)
}

// names are what a decoder is to find.
type names struct {
	Namespace, Pod, Container, Image, Kind, Controller, Service, ServiceNamespace string
}

// pods returns pods of each kind of owner, with containers of each kind.
func pods() (*core.PodList, map[string]names) {
	list := &core.PodList{TypeMeta: meta.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	want := map[string]names{}
	now := time.Date(2026, 5, 21, 12, 30, 1, 0, time.UTC)
	for i, c := range []struct{ kind, owner, wantKind, wantOwner, service string }{
		{"ReplicaSet", "shop-5d4f8c7b96", "Deployment", "shop", "shop"},
		{"ReplicaSet", "canary-77", "ReplicaSet", "canary-77", "canary-77"},
		{"StatefulSet", "db", "StatefulSet", "db", "db"},
		{"DaemonSet", "log", "DaemonSet", "log", "log"},
		{"Job", fmt.Sprintf("nightly-%d", now.Unix()/60), "CronJob", "nightly", "nightly"},
		{"Job", "import-2", "Job", "import-2", "import-2"},
		{"Node", "node-7", "", "", ""},
		{"", "", "", "", ""},
	} {
		uid := fmt.Sprintf("2f1c4e2a-7a3b-4c5d-8e9f-%012x", i)
		id := func(n int) string { return strings.Repeat(fmt.Sprintf("%x", n), 56) + fmt.Sprintf("%08x", i) }
		yes := true
		pod := core.Pod{
			ObjectMeta: meta.ObjectMeta{
				Name: fmt.Sprintf("pod-%d", i), Namespace: "market", UID: types.UID(uid), CreationTimestamp: meta.NewTime(now), ResourceVersion: "7",
				Labels:        map[string]string{"app.kubernetes.io/name": "not this", "pod-template-hash": "5d4f8c7b96"},
				Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"metadata":{"name":"no"}}`},
				ManagedFields: []meta.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: &meta.FieldsV1{Raw: []byte(`{"f:metadata":{}}`)}}},
			},
			Spec: core.PodSpec{
				NodeName:            "node-7",
				InitContainers:      []core.Container{{Name: "init", Image: "busybox"}},
				Containers:          []core.Container{{Name: "web", Image: "r.example:5000/shop:1.2@sha256:" + strings.Repeat("0", 64), Resources: core.ResourceRequirements{Limits: core.ResourceList{"cpu": resource.MustParse("100m")}}}, {Name: "mesh", Image: "mesh"}},
				EphemeralContainers: []core.EphemeralContainer{{EphemeralContainerCommon: core.EphemeralContainerCommon{Name: "debug", Image: "debug"}}},
			},
			Status: core.PodStatus{
				Phase:                 core.PodRunning,
				InitContainerStatuses: []core.ContainerStatus{{Name: "init", ContainerID: "containerd://" + id(1), Image: "docker.io/library/busybox:latest", ImageID: "sha256:0", State: core.ContainerState{Terminated: &core.ContainerStateTerminated{ContainerID: "containerd://" + id(1)}}}},
				ContainerStatuses: []core.ContainerStatus{
					{Name: "web", ContainerID: "containerd://" + id(2), RestartCount: 1, LastTerminationState: core.ContainerState{Terminated: &core.ContainerStateTerminated{ContainerID: "containerd://" + id(3)}}, State: core.ContainerState{Running: &core.ContainerStateRunning{}}},
					{Name: "mesh", State: core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ContainerCreating"}}},
				},
				EphemeralContainerStatuses: []core.ContainerStatus{{Name: "debug", ContainerID: "containerd://" + id(4)}},
			},
		}
		n := names{Namespace: "market", Pod: pod.Name, Kind: c.wantKind, Controller: c.wantOwner, Service: c.service}
		if c.service == "" {
			n.Service = pod.Name
		}
		if c.kind != "" {
			pod.OwnerReferences = []meta.OwnerReference{{Kind: "Other", Name: "other"}, {APIVersion: "apps/v1", Kind: c.kind, Name: c.owner, UID: "x", Controller: &yes}}
			if o := meta.GetControllerOf(&pod); o == nil || o.Name != c.owner {
				panic("BUG: the pod has another controller")
			}
		}
		if c.kind == "Node" {
			hash := strings.Repeat("7", 32)
			pod.Annotations["kubernetes.io/config.hash"] = hash
			want[hash] = n
		}
		if i == 7 {
			pod.Annotations["resource.opentelemetry.io/service.name"], n.Service = "ledger", "ledger"
			pod.Annotations["resource.opentelemetry.io/service.namespace"], n.ServiceNamespace = "bank", "bank"
		}
		want[uid] = n
		for at, name := range []string{1: "init", 2: "web", 3: "web", 4: "debug"} {
			if name == "" {
				continue
			}
			one := n
			one.Container = name
			one.Image = map[string]string{"init": "busybox", "web": pod.Spec.Containers[0].Image, "debug": "debug"}[name]
			want[id(at)] = one
		}
		list.Items = append(list.Items, pod)
	}
	return list, want
}
