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

// template is a label's name in which a rule may have $1, ${1} and the like for parts of it. Prometheus takes no others in a replacement of labelmap; of
// replace's target_label it takes any text in UTF-8, but profiles have Prometheus' older names only: see export.IsLabel.
var template = regexp.MustCompile(`^(?:[a-zA-Z_]|\$\w+|\$\{\w+\})(?:\w|\$\w+|\$\{\w+\})*$`)

// labelName is the name of a label while rules work: it may begin with "__".
var labelName = regexp.MustCompile(`^[a-zA-Z_]\w*$`)

// ParseRules reads rules: see ParseRule. Errors say which it is, counted from 1. commandLines permits rules that read command lines.
func ParseRules(texts []string, commandLines bool) (rules []*Rule, err error) {
	for i, text := range texts {
		r, err := ParseRule(text)
		if err == nil && !commandLines && slices.Contains(r.SourceLabels, "cmdline") {
			err = errors.New("command lines may hold secrets: a rule reads cmdline only with --command-lines")
		}
		if err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// ParseRule reads a rule in JSON. It refuses what Prometheus refuses, and names that no label of a profile can have.
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
	r.Action = strings.ToLower(r.Action)
	return r, r.check()
}

// check says what is wrong with a rule's fields.
func (r *Rule) check() error {
	const names = "a label's name has letters, digits and _, and does not begin with a digit"
	for _, l := range r.SourceLabels {
		if !labelName.MatchString(l) {
			return fmt.Errorf("source_labels: %s: %q", names, l)
		}
	}
	switch r.Action {
	case "replace":
		if r.TargetLabel == "" {
			return errors.New("replace needs a target_label")
		}
		if !template.MatchString(r.TargetLabel) {
			return fmt.Errorf("target_label: %s; $1 or ${1} stands for a part of it: %q", names, r.TargetLabel)
		}
	case "labelmap":
		if !template.MatchString(r.replacement) {
			return fmt.Errorf("replacement of labelmap: %s; $1 or ${1} stands for a part of it: %q", names, r.replacement)
		}
	case "keep", "drop":
		if len(r.SourceLabels) == 0 {
			return fmt.Errorf("%s needs source_labels", r.Action)
		}
	case "labeldrop", "labelkeep":
		if r.SourceLabels != nil || r.TargetLabel != "" || r.separator != ";" || r.replacement != "$1" {
			return fmt.Errorf("%s takes a regex, and no other field", r.Action)
		}
	default:
		return fmt.Errorf("action is %s, not %q", printable.Either(actions), r.Action)
	}
	return nil
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
	if !labelName.MatchString(name) {
		return labels
	}
	labels = slices.DeleteFunc(labels, func(l export.Label) bool { return l.Name == name })
	if value == "" {
		return labels
	}
	return append(labels, export.Label{Name: name, Value: strings.ToValidUTF8(value, "\ufffd")})
}
