package agent

import (
	"errors"
	"testing"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// TestSending: the error names a command that sends again to the engines that have not taken the profile, and to no others.
func TestSending(t *testing.T) {
	s := Sending{
		To: []string{"parca=http://p", "otlp=http://o"}, Label: []string{"node=a b"}, Options: export.Options{TokenFile: "/token"},
		Targets: []*Target{{Exporter: taker{}, Kind: "parca", URL: "http://p"}, {Exporter: taker{err: errors.New("away")}, Kind: "otlp", URL: "http://o"}},
	}
	for path, want := range map[string]string{
		"-":      "not all was sent",
		"x.data": "not all was sent; x.data has it: unspool report --to otlp=http://o --label 'node=a b' --token-file /token x.data",
	} {
		if err := s.Send(t.Context(), &profile.Profile{}, path, func(string) {}); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	s.Targets = s.Targets[:1]
	if err := s.Send(t.Context(), &profile.Profile{}, "x.data", func(string) {}); err != nil {
		t.Error(err)
	}
	s = Sending{Label: []string{"=x"}}
	if err := s.Read("to"); err == nil {
		t.Errorf("Read takes label %q, which has no name: labels %v; want an error", s.Label[0], s.Known)
	}
	for _, to := range [][]string{{"stdout", "stdout"}, {"otlp=http://o", "parca=http://o", "otlp=http://o"}} {
		s = Sending{To: to}
		if err := s.Read("output"); err == nil || err.Error() != "--output: "+to[0]+" is given twice" {
			t.Errorf("%q: %v", to, err)
		}
	}
}
