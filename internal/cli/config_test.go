package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// configured is a command with flags of several types.
func configured() (*cobra.Command, *Config) {
	c := &cobra.Command{Use: "tool"}
	c.Flags().StringArray("output", nil, "")
	c.Flags().StringArray("label", nil, "")
	c.Flags().StringArray("rule", nil, "")
	c.Flags().Uint64("frequency", 0, "")
	c.Flags().String("interval", "10s", "")
	c.Flags().Bool("secret", false, "")
	c.Flags().MarkHidden("secret")
	return c, NewConfig(c, "TOOL")
}

// TestConfig: a flag comes from the command line, else from the environment, else from the file; what is written is a configuration.
func TestConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tool.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(args ...string) (string, *Config, error) {
		t.Helper()
		c, f := configured()
		if err := c.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		err := f.Read()
		var b strings.Builder
		if werr := f.Write(&b); werr != nil {
			t.Error(werr)
		}
		return b.String(), f, err
	}
	write("output = [\"files=/a\", \"files=/b c\"]\ninterval = \"30s\"\nfrequency = 49\n[label]\nteam = \"x y\"\nregion = \"north\"\n[[rule]]\nkeys = [\"unit\"]\n")
	t.Setenv("TOOL_INTERVAL", "40s")
	t.Setenv("TOOL_FREQUENCY", "7")
	t.Setenv("TOOL_CONFIG", file)
	got, before, err := read("--interval", "50s")
	want := "frequency = \"7\"\ninterval = \"50s\"\nlabel = [\"region=north\", \"team=x y\"]\noutput = [\"files=/a\", \"files=/b c\"]\nrule = [\"{\\\"keys\\\":[\\\"unit\\\"]}\"]\n"
	if got != want || err != nil || before.Path() != file {
		t.Errorf("of %s, %v:\n%q, want\n%q", before.Path(), err, got, want)
	}
	write(got)
	if again, _, err := read(); again != strings.Replace(got, "50s", "40s", 1) || err != nil {
		t.Errorf("written %q, then %q, %v", got, again, err)
	}

	// The same command line, when the file has changed.
	write("output = [\"files=/c\"]\n")
	_, now := configured()
	if err := now.ReadAs(before); err != nil {
		t.Fatal(err)
	}
	if names := before.Differing(now, []string{"output"}); !slices.Equal(names, []string{"label", "rule"}) {
		t.Errorf("%q differ", names)
	}

	os.Unsetenv("TOOL_FREQUENCY")
	t.Setenv("TOOL_OUTPUT", "a=b  c=d")
	write("")
	if got, _, err := read(); got != "interval = \"40s\"\noutput = [\"a=b\", \"c=d\"]\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for text, want := range map[string]string{
		"colour = \"red\"":             `: there is no flag "colour"$`,
		"config = \"x\"":               `: there is no flag "config"$`,
		"secret = true":                `: there is no flag "secret"$`,
		"label = [\"1s\", \"x\"":       `tool.toml`,
		"frequency = \"x\"":            `tool.toml: frequency: .*x`,
		"label = [[\"a\"]]":            `tool.toml: label: want a string`,
		"label = 1979-05-27T07:32:00Z": `tool.toml: label: want a string`,
		strings.Repeat("#", 1<<20+1):   `larger than a configuration can be`,
	} {
		write(text + "\n")
		if _, _, err := read(); err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	t.Setenv("TOOL_FREQUENCY", "often")
	write("")
	if _, _, err := read(); err == nil || !strings.HasPrefix(err.Error(), "TOOL_FREQUENCY: ") {
		t.Error(err)
	}
}
