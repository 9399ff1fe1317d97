// Command kubernetes judges manifests: it builds the directories that it is given as kustomize does, decodes what comes out with Kubernetes' own types,
// where a field that they do not have is an error, and prints the result as JSON, an array of each directory's objects.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func main() {
	all := map[string][]any{}
	for _, dir := range os.Args[1:] {
		objects, err := build(dir)
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
		var o any
		switch kind := r.GetApiVersion() + " " + r.GetKind(); kind {
		case "apps/v1 DaemonSet":
			o = &apps.DaemonSet{}
		case "v1 Namespace":
			o = &core.Namespace{}
		case "v1 ServiceAccount":
			o = &core.ServiceAccount{}
		default:
			return nil, fmt.Errorf("no type for %s", kind)
		}
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(text, o); err != nil {
			return nil, fmt.Errorf("%s: %w", r.GetName(), err)
		}
		objects = append(objects, o)
	}
	return objects, nil
}
