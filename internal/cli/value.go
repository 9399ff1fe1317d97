package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Var adds a flag with the name and the value of a default. parse reads its values into *to: its error is the whole message, as Usage makes it. Help
// shows the flag as a string.
func Var[T any](c *cobra.Command, to *T, flag, value, help string, parse func(flag, s string) (T, error)) {
	v := &parsed[T]{to: to, flag: flag, parse: parse}
	if err := v.Set(value); err != nil {
		panic("BUG: " + err.Error())
	}
	c.Flags().Var(v, flag, help)
}

// A parsed is the value of such a flag (pflag.Value).
type parsed[T any] struct {
	to    *T
	text  string
	flag  string
	parse func(flag, s string) (T, error)
}

func (v *parsed[T]) Type() string { return "string" }

func (v *parsed[T]) String() string { return v.text }

func (v *parsed[T]) Set(s string) (err error) {
	x, err := v.parse("--"+v.flag, s)
	if err == nil {
		*v.to, v.text = x, s
	}
	return err
}

// Duration reads the value of a flag that is a time with its unit, above 0; "" is 0.
func Duration(flag, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if n, ferr := strconv.ParseFloat(s, 64); err != nil && ferr == nil && n > 0 {
		return 0, Usage("%s is a time with its unit: %ss or %sm", flag, s, s)
	}
	if err != nil || d <= 0 {
		return 0, Usage("%s takes a time such as 10s, not %q", flag, s)
	}
	return d, nil
}

// DurationOr0 is Duration, and takes 0.
func DurationOr0(flag, s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	return Duration(flag, s)
}

// Percent reads the value of a flag that is a share, such as 1% or 0.5%, above 0 and at most 100%; "" is 0.
func Percent(flag, s string) (float64, error) {
	if s == "" {
		return 0, nil
	}
	digits, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || !(v > 0 && v <= 100) {
		return 0, Usage("%s takes a share such as 1%%, not %q", flag, s)
	}
	return v / 100, nil
}

// Size reads the value of a flag that is a number of bytes, or of KiB, MiB or GiB with K, M or G; "" is 0.
func Size(flag, s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	digits, shift := s, 0
	for i, unit := range "KMG" {
		if d, ok := strings.CutSuffix(s, string(unit)); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 {
		return 0, Usage("%s is a size such as 512M, not %q", flag, s)
	}
	return n << shift, nil
}

// Address reads the value of a flag that is an address to listen on. It must name a host: without one, others than this machine could reach it unasked.
func Address(flag, s string) (string, error) {
	host, _, err := net.SplitHostPort(s)
	switch {
	case err != nil:
		return "", Usage("%s: %v", flag, err)
	case host == "":
		return "", Usage("%s %q: name the address, too: 127.0.0.1%s, or 0.0.0.0%s for all", flag, s, s, s)
	}
	return s, nil
}

// AddressOrNone is Address, and takes "".
func AddressOrNone(flag, s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return Address(flag, s)
}

// Directories returns an error that names the first of a flag's values that is no directory. "" is a flag that is not given.
func Directories(flag string, paths ...string) error {
	for _, path := range paths {
		switch st, err := os.Stat(path); {
		case path == "":
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s %s: no such directory", flag, path)
		case err != nil:
			return fmt.Errorf("%s: %w", flag, err)
		case !st.IsDir():
			return fmt.Errorf("%s %s: not a directory", flag, path)
		}
	}
	return nil
}

// Quoted returns words as a line for a shell.
func Quoted(words []string) string {
	special := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:=@%+,", r))
	}
	out := make([]string, len(words))
	for i, w := range words {
		if out[i] = w; w == "" || strings.ContainsFunc(w, special) {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}
