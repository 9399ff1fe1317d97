package cli

import (
	"errors"
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
	c.Flags().BoolP("brief", "b", false, "")
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
	const defaults = "# Defaults:\n"
	want := "frequency = 7\ninterval = \"50s\"\nlabel = [\"region=north\", \"team=x y\"]\noutput = [\"files=/a\", \"files=/b c\"]\nrule = [\"{\\\"keys\\\":[\\\"unit\\\"]}\"]\n\n" + defaults + "# brief = false\n"
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
	if got, _, err := read(); got != "interval = \"40s\"\noutput = [\"a=b\", \"c=d\"]\n\n"+defaults+"# brief = false\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for text, want := range map[string]string{
		"colour = \"red\"":             `: there is no flag "colour"$`,
		"config = \"x\"":               `: there is no flag "config"$`,
		"secret = true":                `: there is no flag "secret"$`,
		"label = [\"1s\", \"x\"":       `tool.toml`,
		"frequency = \"x\"":            `tool.toml: frequency takes a number such as 10, not "x"$`,
		"brief = \"x\"":                `tool.toml: brief takes true or false, not "x"$`,
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
	if _, _, err := read(); err == nil || err.Error() != `TOOL_FREQUENCY takes a number such as 10, not "often"` {
		t.Errorf("read with TOOL_FREQUENCY=often = %v, want that it takes a number", err)
	}
	os.Unsetenv("TOOL_FREQUENCY")
	os.Unsetenv("TOOL_INTERVAL")
	os.Unsetenv("TOOL_OUTPUT")

	// What is printed without any setting is a configuration, and stays one with its defaults.
	write("")
	if got, _, err = read(); got != defaults+"# brief = false\n# interval = \"10s\"\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	write(strings.ReplaceAll(strings.ReplaceAll(got, defaults, ""), "# ", ""))
	if got, _, err := read(); got != "brief = false\ninterval = \"10s\"\n" || err != nil {
		t.Errorf("with the defaults: %q, %v", got, err)
	}
}

// TestAttribute: an error about a flag names where its value is from.
func TestAttribute(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tool.toml")
	if err := os.WriteFile(file, []byte("interval = \"1s\"\nrule = [\"x\"]\nbrief = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOOL_LABEL", "a=b")
	t.Setenv("TOOL_RULE", "y")
	c, f := configured()
	if err := c.ParseFlags([]string{"--config", file, "--output", "z"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Read(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"--interval is 2s to an hour": file + ": interval is 2s to an hour",
		"--interval":                  file + ": interval",
		"--interval: x":               file + ": interval: x",
		"--intervals are x":           "--intervals are x",
		"-b needs --label":            file + ": brief needs --label",
		"-bx":                         "-bx",
		"--label: twice":              "TOOL_LABEL: twice",
		"--rule: rule 1: x":           "TOOL_RULE: rule 1: x",
		"--output: x":                 "--output: x",
		"--frequency: x":              "--frequency: x",
		"name an engine":              "name an engine",
	} {
		exit := (*Exit)(nil)
		if err := f.Attribute(Usage("%s", text)); err.Error() != want || !errors.As(err, &exit) || exit.Status != 2 {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
		if err := f.Attribute(errors.New(text)); err.Error() != want || errors.As(err, &exit) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if err := f.Attribute(nil); err != nil {
		t.Error(err)
	}
}

// TestLists: a variable that is a list has words, lines, or an array in JSON.
func TestLists(t *testing.T) {
	for text, want := range map[string][]string{
		"":                        nil,
		" a=b  c=d ":              {"a=b", "c=d"},
		"a b\nc\n\n  d e \n":      {"a b", "c", "d e"},
		"a b\n":                   {"a", "b"},
		`["a b", "c\u00e9\n"]`:    {"a b", "cé\n"},
		" [\n \"a b\"\n]\n":       {"a b"},
		`[{"a": "b c"}, {"d":1}]`: {`{"a": "b c"}`, `{"d":1}`},
		"[]":                      nil,
		"{\"a\": 1}\n{\"b\": 2}":  {`{"a": 1}`, `{"b": 2}`},
		"[a-z]x [0-9]":            {"[a-z]x", "[0-9]"},
	} {
		if got, err := listWords(text); !slices.Equal(got, want) || err != nil {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{`["a"`, `["a", 1]`, `["a", ["b"]]`, `["a"] b`, `[{"a"}]`, `["a", null]`} {
		if got, err := listWords(text); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}
