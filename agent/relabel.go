package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/printable"
)

// A Rule changes the labels of a profile, or drops it, as Prometheus' relabel_config does: its fields have the same names, defaults and meaning.
type Rule struct {
	SourceLabels []string `json:"source_labels"`
	Separator    *string  `json:"separator"`    // between the values of the source labels; ";"
	Regex        *string  `json:"regex"`        // matches all of them, or of a label's name; "(.*)"
	TargetLabel  string   `json:"target_label"` // of replace
	Replacement  *string  `json:"replacement"`  // with $1 and the like; "$1"
	Action       string   `json:"action"`       // "replace"

	separator, replacement string
	regex                  *regexp.Regexp
}

// actions are those of rules.
var actions = []string{"replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"}

// ParseRules reads rules: see ParseRule.
func ParseRules(texts []string) (rules []*Rule, err error) {
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// ParseRule reads a rule in JSON.
func ParseRule(text string) (*Rule, error) {
	r := &Rule{Action: "replace", separator: ";", replacement: "$1"}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, fmt.Errorf("a rule is an object in JSON: %w", err)
	}
	if d.More() {
		return nil, errors.New("a rule is one object in JSON")
	}
	if r.Separator != nil {
		r.separator = *r.Separator
	}
	if r.Replacement != nil {
		r.replacement = *r.Replacement
	}
	pattern := "(.*)"
	if r.Regex != nil {
		pattern = *r.Regex
	}
	var err error
	if r.regex, err = regexp.Compile("^(?s:" + pattern + ")$"); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains(actions, r.Action):
		return nil, fmt.Errorf("action is %s, not %q", printable.Either(actions), r.Action)
	case r.Action == "replace" && r.TargetLabel == "":
		return nil, errors.New("replace needs a target_label")
	case (r.Action == "keep" || r.Action == "drop") && len(r.SourceLabels) == 0:
		return nil, fmt.Errorf("%s needs source_labels", r.Action)
	}
	return r, nil
}

// relabel applies rules in their order. It returns false if one drops the profile. Labels whose names begin with "__" last until the last rule.
func relabel(labels []export.Label, rules []*Rule) ([]export.Label, bool) {
	for _, r := range rules {
		values := make([]string, len(r.SourceLabels))
		for i, name := range r.SourceLabels {
			values[i] = value(labels, name)
		}
		source := strings.Join(values, r.separator)
		switch r.Action {
		case "keep":
			if !r.regex.MatchString(source) {
				return nil, false
			}
		case "drop":
			if r.regex.MatchString(source) {
				return nil, false
			}
		case "replace":
			m := r.regex.FindStringSubmatchIndex(source)
			if m == nil {
				continue
			}
			labels = set(labels, string(r.regex.ExpandString(nil, r.TargetLabel, source, m)), string(r.regex.ExpandString(nil, r.replacement, source, m)))
		case "labelmap":
			for _, l := range slices.Clone(labels) {
				if r.regex.MatchString(l.Name) {
					labels = set(labels, r.regex.ReplaceAllString(l.Name, r.replacement), l.Value)
				}
			}
		case "labeldrop", "labelkeep":
			labels = slices.DeleteFunc(labels, func(l export.Label) bool { return r.regex.MatchString(l.Name) == (r.Action == "labeldrop") })
		}
	}
	return slices.DeleteFunc(labels, func(l export.Label) bool { return strings.HasPrefix(l.Name, "__") }), true
}

func value(labels []export.Label, name string) string {
	for _, l := range labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// set gives a label its value; an empty one takes the label away. What is no label's name changes nothing.
func set(labels []export.Label, name, value string) []export.Label {
	if !export.IsLabel(strings.TrimPrefix(name, "__")) {
		return labels
	}
	labels = slices.DeleteFunc(labels, func(l export.Label) bool { return l.Name == name })
	if value == "" {
		return labels
	}
	return append(labels, export.Label{Name: name, Value: strings.ToValidUTF8(value, "\ufffd")})
}
