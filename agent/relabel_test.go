package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/agent/export"
)

// The cases are those that Prometheus documents for relabel_config.
func TestRelabel(t *testing.T) {
	labels := []export.Label{{Name: "service_name", Value: "nginx"}, {Name: "unit", Value: "nginx.service"}, {Name: "k8s_app", Value: "shop"}, {Name: "k8s_tier", Value: "front"}}
	const all = `k8s_app=shop k8s_tier=front service_name=nginx unit=nginx.service`
	for _, c := range []struct {
		rules string // one a line
		want  string // "" is dropped
	}{
		{``, all},
		{`{"source_labels":["unit"],"regex":"nginx.*","action":"drop"}`, ""},
		{`{"source_labels":["unit"],"regex":"nginx","action":"drop"}`, all}, // a regex matches all of the value
		{`{"source_labels":["unit"],"regex":"ssh.*","action":"keep"}`, ""},
		{`{"source_labels":["unit","k8s_app"],"regex":"nginx.service;shop","action":"keep"}`, all},
		{`{"source_labels":["absent"],"regex":"","action":"keep"}`, all},
		{`{"source_labels":["unit"],"regex":"(.*)[.]service","target_label":"name"}`, "k8s_app=shop k8s_tier=front name=nginx service_name=nginx unit=nginx.service"},
		{`{"source_labels":["unit"],"regex":"x(.*)","target_label":"name"}`, all},
		{`{"target_label":"team","replacement":"web"}`, "k8s_app=shop k8s_tier=front service_name=nginx team=web unit=nginx.service"},
		{`{"source_labels":["k8s_app","k8s_tier"],"separator":"/","target_label":"service_name"}`, "k8s_app=shop k8s_tier=front service_name=shop/front unit=nginx.service"},
		{`{"source_labels":["k8s_app"],"regex":"(.*)","target_label":"app_$1","replacement":"yes"}`, "app_shop=yes k8s_app=shop k8s_tier=front service_name=nginx unit=nginx.service"},
		{`{"source_labels":["unit"],"target_label":"$1","replacement":"x"}`, all}, // nginx.service is no name
		{`{"target_label":"unit","replacement":""}`, "k8s_app=shop k8s_tier=front service_name=nginx"},
		{`{"regex":"k8s_(.+)","action":"labelmap"}`, "app=shop k8s_app=shop k8s_tier=front service_name=nginx tier=front unit=nginx.service"},
		{`{"regex":"k8s_.*","action":"labeldrop"}`, "service_name=nginx unit=nginx.service"},
		{`{"regex":"k8s_.*","action":"labelkeep"}`, "k8s_app=shop k8s_tier=front"},
		{"{\"regex\":\"k8s_(.+)\",\"action\":\"labelmap\"}\n{\"source_labels\":[\"tier\"],\"regex\":\"front\",\"action\":\"drop\"}", ""},
		{`{"source_labels":["unit"],"target_label":"__tmp"}`, all}, // gone after the last rule
		{"{\"source_labels\":[\"unit\"],\"target_label\":\"__tmp\"}\n{\"source_labels\":[\"__tmp\"],\"regex\":\"nginx.*\",\"action\":\"drop\"}", ""},
	} {
		var rules []*Rule
		for text := range strings.Lines(c.rules) {
			r, err := ParseRule(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			rules = append(rules, r)
		}
		out, ok := relabel(slices.Clone(labels), rules)
		var got []string
		for _, l := range out {
			got = append(got, fmt.Sprintf("%s=%s", l.Name, l.Value))
		}
		slices.Sort(got)
		if s := strings.Join(got, " "); s != c.want || ok != (c.want != "") {
			t.Errorf("%s:\n got %q, %v\nwant %q", c.rules, s, ok, c.want)
		}
	}
	for _, bad := range []string{``, `{`, `{} {}`, `{"colour":"red"}`, `{"action":"hash"}`, `{"action":"keep"}`, `{"regex":"("}`, `{"target_label":7}`, `{"regex":"x"}`} {
		if r, err := ParseRule(bad); err == nil {
			t.Errorf("%s: %+v", bad, r)
		}
	}
}

func FuzzRule(f *testing.F) {
	f.Add(`{"source_labels":["unit"],"regex":"(.*)[.]service","target_label":"name"}`, "nginx.service")
	f.Fuzz(func(t *testing.T, text, v string) {
		r, err := ParseRule(text)
		if err != nil {
			return
		}
		out, _ := relabel([]export.Label{{Name: "unit", Value: v}}, []*Rule{r})
		for _, l := range out {
			if l.Name != "unit" && (!export.IsLabel(l.Name) || strings.ToValidUTF8(l.Value, "") != l.Value) {
				t.Errorf("%s of %q: %+v", text, v, out)
			}
		}
	})
}
