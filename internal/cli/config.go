package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxConfig bounds the bytes of a configuration.
const maxConfig = 1 << 20

// A Config sets flags of a command that its command line does not have: by variables of the environment, else by a file in TOML. A flag that takes
// lists is a list there; a table is a list of KEY=VALUE, and a list of tables is one of JSON objects.
type Config struct {
	Show bool // print the configuration, and end

	c      *cobra.Command
	prefix string // of variables
	path   string
	given  map[string][]string // what flags of the command line were set to
	origin map[string]string   // of the values of other flags that are set: a variable, or a file and the name in it
	values map[string]any      // of all flags that are set, as the file would have them
}

// NewConfig adds the flags --config and --print-config to a command. prefix begins the names of its variables, such as UNSPOOL_AGENT.
func NewConfig(c *cobra.Command, prefix string) *Config {
	f := &Config{c: c, prefix: prefix}
	c.Flags().StringVar(&f.path, "config", "", "a file with flags, in TOML")
	c.MarkFlagFilename("config", "toml")
	c.Flags().BoolVar(&f.Show, "print-config", false, "print the configuration, and end")
	return f
}

// Path is the file; "" is none. It is known after Read.
func (f *Config) Path() string { return cmp.Or(f.path, os.Getenv(f.variable("config"))) }

// Hangups is where SIGHUP goes from now on, if there is a file to read again; without one it is nil, and SIGHUP ends the program.
func (f *Config) Hangups() <-chan os.Signal {
	if f.Path() == "" {
		return nil
	}
	return hangups()
}

// Read sets the flags. It is called when the command line has been parsed.
func (f *Config) Read() error {
	f.note()
	f.path = f.Path()
	return f.read()
}

// ReadAs is Read of another command with the command line of before: it reads the environment and the file as they are now.
func (f *Config) ReadAs(before *Config) error {
	for name, words := range before.given {
		for _, w := range words {
			if err := f.c.Flags().Set(name, w); err != nil {
				return err
			}
		}
	}
	f.note()
	f.path = before.path
	return f.read()
}

// note keeps what the command line has. What reads the flags later may change their variables.
func (f *Config) note() {
	f.given = map[string][]string{}
	f.c.Flags().Visit(func(flag *pflag.Flag) {
		f.given[flag.Name] = []string{flag.Value.String()}
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			f.given[flag.Name] = list.GetSlice()
		}
	})
}

// configurable says whether a configuration can set a flag.
func configurable(f *pflag.Flag) bool {
	return !f.Hidden && !slices.Contains([]string{"config", "print-config", "help"}, f.Name)
}

func (f *Config) read() (err error) {
	file := map[string]any{}
	if f.path != "" {
		if file, err = readTOML(f.path); err != nil {
			return err
		}
	}
	f.origin = map[string]string{}
	f.c.Flags().VisitAll(func(flag *pflag.Flag) {
		if err != nil || !configurable(flag) {
			return
		}
		value, inFile := file[flag.Name]
		delete(file, flag.Name)
		env, inEnv := os.LookupEnv(f.variable(flag.Name))
		_, list := flag.Value.(pflag.SliceValue)
		var words []string
		where := fmt.Sprintf("%s: %s", f.path, flag.Name)
		switch {
		case f.given[flag.Name] != nil:
			return
		case inEnv && list:
			where = f.variable(flag.Name)
			words, err = listWords(env)
		case inEnv:
			where, words = f.variable(flag.Name), []string{env}
		case inFile:
			words, err = flagWords(value)
		default:
			return
		}
		f.origin[flag.Name] = where
		if err != nil {
			err = Usage("%s: %v", where, err)
		}
		for _, w := range words {
			if err == nil {
				err = f.c.Flags().Set(flag.Name, w)
			}
			if err != nil {
				err = f.Attribute(flagError(f.c, err, nil))
				return
			}
		}
	})
	if err != nil {
		return err
	}
	for name := range file {
		return Usage("%s: there is no flag %q", f.path, name)
	}
	f.values = map[string]any{}
	f.c.Flags().Visit(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok && configurable(flag) {
			f.values[flag.Name] = list.GetSlice()
		} else if configurable(flag) {
			f.values[flag.Name] = flag.Value.String()
		}
	})
	return nil
}

// Attribute returns an error that begins with a flag as one that begins with the place that the flag's value is from, if that is not the command line.
func (f *Config) Attribute(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for name, where := range f.origin {
		rest, ok := after(text, "--"+name)
		if short := f.c.Flags().Lookup(name).Shorthand; !ok && short != "" {
			rest, ok = after(text, "-"+short)
		}
		if !ok {
			continue
		}
		moved := errors.New(where + rest)
		if exit := (*Exit)(nil); errors.As(err, &exit) {
			return &Exit{exit.Status, moved}
		}
		return moved
	}
	return err
}

// after returns what follows a flag at the beginning of a text, which is not the rest of a longer name.
func after(text, flag string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(text, flag)
	return rest, ok && (rest == "" || rest[0] == ' ' || rest[0] == ':')
}

// variable is the environment's name of a flag.
func (f *Config) variable(flag string) string {
	return f.prefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

func readTOML(path string) (file map[string]any, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = errors.New("larger than a configuration can be")
	}
	if err == nil {
		_, err = toml.Decode(string(b), &file)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return file, nil
}

// listWords splits the value of a variable that is a list: an array in JSON, of strings or, for rules, objects; else lines, if there are several; else
// words.
func listWords(s string) (out []string, err error) {
	if inside, ok := strings.CutPrefix(strings.TrimSpace(s), "["); ok && strings.ContainsAny(first(strings.TrimSpace(inside)), `"{]`) {
		var all []json.RawMessage
		if err := json.Unmarshal([]byte(s), &all); err != nil {
			return nil, fmt.Errorf("what begins with [ is an array in JSON: %w", err)
		}
		for _, e := range all {
			var word string
			switch first(string(e)) {
			case `"`:
				if err := json.Unmarshal(e, &word); err != nil {
					return nil, err
				}
			case "{":
				word = string(e)
			default:
				return nil, fmt.Errorf("want strings or objects in the array, not %s", e)
			}
			out = append(out, word)
		}
		return out, nil
	}
	if !strings.Contains(strings.TrimSpace(s), "\n") {
		return strings.Fields(s), nil
	}
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out, nil
}

// first returns the first byte of a text, if there is one.
func first(s string) string { return s[:min(len(s), 1)] }

// flagWords returns what a flag is set to, one call each.
func flagWords(v any) (out []string, err error) {
	add := func(prefix string, v any) {
		switch v.(type) {
		case string, int64, bool, float64:
			out = append(out, prefix+fmt.Sprint(v))
		default:
			err = errors.New("want a string, a number, true or false, or a list or table of these")
		}
	}
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			add("", e)
		}
	case []map[string]any:
		for _, e := range v {
			text, err := json.Marshal(e)
			if err != nil {
				return nil, err
			}
			out = append(out, string(text))
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			add(key+"=", v[key])
		}
	default:
		add("", v)
	}
	return out, err
}

// statedDefault matches what a flag's description says of a default that pflag does not know: a value, or, behind a colon, words.
var statedDefault = regexp.MustCompile(`\(default(:?) ([^()]*)\)$`)

// Write writes the flags that are set, as a file that --config takes, then as comments the defaults of others: to be set can mean more than the value.
func (f *Config) Write(w io.Writer) error {
	var set, unset bytes.Buffer
	var err error
	f.c.Flags().VisitAll(func(flag *pflag.Flag) {
		if v := f.values[flag.Name]; v != nil {
			err = cmp.Or(err, writeValue(&set, flag, v))
		} else if zero := []string{"", "0", "[]"}; !configurable(flag) {
			return
		} else if !slices.Contains(zero, flag.DefValue) {
			unset.WriteString("# ")
			err = cmp.Or(err, writeValue(&unset, flag, flag.DefValue))
		} else if d := statedDefault.FindStringSubmatch(flag.Usage); d != nil && d[1] != "" {
			fmt.Fprintf(&unset, "# %s: %s\n", flag.Name, d[2])
		} else if d != nil {
			unset.WriteString("# ")
			err = cmp.Or(err, writeValue(&unset, flag, d[2]))
		}
	})
	if err != nil {
		return err
	}
	if set.Len() > 0 && unset.Len() > 0 {
		set.WriteByte('\n')
	}
	if unset.Len() > 0 {
		fmt.Fprintf(&set, "# Defaults:\n%s", unset.Bytes())
	}
	_, err = w.Write(set.Bytes())
	return err
}

// writeValue writes a line of a file.
func writeValue(w io.Writer, flag *pflag.Flag, v any) error {
	switch flag.Value.Type() {
	case "bool", "uint32", "uint64":
		_, err := fmt.Fprintf(w, "%s = %s\n", flag.Name, v)
		return err
	}
	return toml.NewEncoder(w).Encode(map[string]any{flag.Name: v})
}

// Differing returns the flags that differ between two configurations, except those of a list; sorted.
func (f *Config) Differing(other *Config, except []string) []string {
	all := maps.Clone(f.values)
	maps.Copy(all, other.values)
	maps.DeleteFunc(all, func(name string, _ any) bool {
		return slices.Contains(except, name) || reflect.DeepEqual(f.values[name], other.values[name])
	})
	return slices.Sorted(maps.Keys(all))
}
