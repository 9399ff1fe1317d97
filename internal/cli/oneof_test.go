package cli

import (
	"bytes"
	"context"
	"testing"

	"github.com/spf13/cobra"
)

// TestOneOf: such a flag takes its names and nothing else, shows its default, and completes.
func TestOneOf(t *testing.T) {
	run := func(args ...string) (int, string, string) {
		got, empty := "self", ""
		root := &cobra.Command{Use: "tool"}
		sub := &cobra.Command{Use: "sort", Run: func(c *cobra.Command, _ []string) { c.Printf("%s", got+empty) }}
		OneOf(sub, &got, "by", "order", "self", "total", "name")
		OneOf(sub, &empty, "how", "way", "a", "b")
		root.AddCommand(sub)
		Setup(root, nil, nil)
		var out, err bytes.Buffer
		status := Run(context.Background(), root, args, &Writer{W: &out}, &err)
		return status, out.String(), err.String()
	}
	for _, c := range []struct {
		args         []string
		status       int
		out, message string
	}{
		{[]string{"sort"}, 0, "self", ""},
		{[]string{"sort", "--by", "total", "--how=b"}, 0, "totalb", ""},
		{[]string{"sort", "--by", "size"}, 2, "", "tool: --by is self, total or name, not \"size\"\nRun 'tool sort --help' for usage.\n"},
		{[]string{"sort", "--how", ""}, 2, "", "tool: --how is a or b, not \"\"\nRun 'tool sort --help' for usage.\n"},
		{[]string{"__completeNoDesc", "sort", "--by", "t"}, 0, "self\ntotal\nname\n:4\n", "Completion ended with directive: ShellCompDirectiveNoFileComp\n"},
	} {
		if status, out, message := run(c.args...); status != c.status || out != c.out || message != c.message {
			t.Errorf("%q: %d, %q, %q; want %d, %q, %q", c.args, status, out, message, c.status, c.out, c.message)
		}
	}
	_, out, _ := run("sort", "--help")
	if want := `--by string    order (default "self")`; !bytes.Contains([]byte(out), []byte(want)) {
		t.Errorf("help without %q:\n%s", want, out)
	}
}

func TestRegexp(t *testing.T) {
	if re, err := Regexp("--comm", ""); re != nil || err != nil {
		t.Errorf(`Regexp("--comm", "") = %v, %v, want nil`, re, err)
	}
	if re, err := Regexp("--comm", "^a"); err != nil || !re.MatchString("ab") {
		t.Errorf(`Regexp("--comm", "^a") = %v, %v, want what matches ab`, re, err)
	}
	if _, err := Regexp("--comm", "("); err == nil || err.(*Exit).Status != 2 {
		t.Errorf(`Regexp("--comm", "(") = %v, want an error of status 2`, err)
	}
}

func TestRefuse(t *testing.T) {
	c := &cobra.Command{}
	c.Flags().Bool("a", false, "")
	c.Flags().Bool("b", false, "")
	if err := c.ParseFlags([]string{"--b"}); err != nil {
		t.Fatal(err)
	}
	if err := Refuse(c, []string{"a"}, "needs x"); err != nil {
		t.Error(err)
	}
	if err := Refuse(c, []string{"a", "b"}, "needs %s", "x"); err == nil || err.Error() != "--b needs x" || err.(*Exit).Status != 2 {
		t.Errorf("Refuse(--b) = %v, want --b needs x, of status 2", err)
	}
}
