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

// TestRuleNames: names are taken and refused as Prometheus does with metric_name_validation_scheme: legacy (its Config.Validate in model/relabel). An error says
// which rule it is.
func TestRuleNames(t *testing.T) {
	for rule, want := range map[string]string{
		`{"target_label":"a"}`:                                        "",
		`{"target_label":"_a1"}`:                                      "",
		`{"target_label":"__tmp"}`:                                    "",
		`{"target_label":"__1"}`:                                      "",
		`{"target_label":"${1}"}`:                                     "",
		`{"target_label":"$1"}`:                                       "",
		`{"target_label":"$1_x"}`:                                     "",
		`{"target_label":"app_${1}_x${name}"}`:                        "",
		`{"target_label":"a","action":"REPLACE"}`:                     "",
		`{"target_label":"a","replacement":"any thing: $1"}`:          "",
		`{"action":"labelmap"}`:                                       "",
		`{"action":"labelmap","regex":"k8s_(.+)","replacement":"$1"}`: "",
		`{"action":"labelmap","replacement":"x_${1}"}`:                "",
		`{"action":"labelmap","source_labels":["a"]}`:                 "",
		`{"action":"labeldrop","regex":"a"}`:                          "",
		`{"action":"labeldrop","regex":"a","separator":";"}`:          "",

		`{"target_label":"a-b"}`:                                          "target_label: a label's name",
		`{"target_label":"a b"}`:                                          "target_label: a label's name",
		`{"target_label":"k8s.pod.name"}`:                                 "target_label: a label's name",
		`{"target_label":"1a"}`:                                           "target_label: a label's name",
		`{"target_label":"gr\u00f6\u00dfe"}`:                              "target_label: a label's name",
		`{"target_label":"${1"}`:                                          "target_label: a label's name",
		`{"target_label":"${}"}`:                                          "target_label: a label's name",
		`{"target_label":"$"}`:                                            "target_label: a label's name",
		`{"target_label":"$$1"}`:                                          "target_label: a label's name",
		`{"target_label":"1${1}"}`:                                        "target_label: a label's name",
		`{"target_label":"a\n"}`:                                          "target_label: a label's name",
		`{"target_label":"a","source_labels":["k8s.pod.name"]}`:           "source_labels: a label's name",
		`{"target_label":"a","source_labels":["a",""]}`:                   "source_labels: a label's name",
		`{"action":"labelmap","replacement":""}`:                          "replacement of labelmap: a label's name",
		`{"action":"labelmap","replacement":"a-${1}"}`:                    "replacement of labelmap: a label's name",
		`{"action":"labelmap","replacement":"a.b"}`:                       "replacement of labelmap: a label's name",
		`{"action":"labeldrop","regex":"a","source_labels":["a"]}`:        "labeldrop takes a regex",
		`{"action":"labelkeep","regex":"a","target_label":"a"}`:           "labelkeep takes a regex",
		`{"action":"labelkeep","regex":"a","replacement":"b"}`:            "labelkeep takes a regex",
		`{"action":"labeldrop","regex":"a","separator":","}`:              "labeldrop takes a regex",
		`{"source_labels":["a"],"action":"keep","regex":"b","modulus":1}`: "unknown field",
	} {
		rules, err := ParseRules([]string{`{"target_label":"first"}`, rule}, false)
		if want == "" && (err != nil || len(rules) != 2) || want != "" && (err == nil || !strings.HasPrefix(err.Error(), "rule 2: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", rule, err, want)
		}
	}
	// Labels that last until the last rule may have any name.
	var rules []*Rule
	for _, tmp := range []string{"__1", "____", "_"} {
		more, err := ParseRules([]string{`{"source_labels":["a"],"target_label":"` + tmp + `"}`, `{"source_labels":["` + tmp + `"],"target_label":"last` + tmp + `"}`}, false)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, more...)
	}
	if got, ok := relabel([]export.Label{{Name: "a", Value: "x"}}, rules); !ok || len(got) != 5 || value(got, "last____") != "x" || value(got, "_") != "x" {
		t.Errorf("%v %v", got, ok)
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
