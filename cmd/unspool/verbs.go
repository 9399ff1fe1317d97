package main

import (
	"os"

	"github.com/unspool/unspool/internal/cli"
)

// groups are the verbs as the help lists them.
var groups = []cli.Group{
	{Title: "Profile", Verbs: []string{"record", "report", "serve", "diff", "top", "agent", "doctor"}},
	{Title: "Stacks of processes and cores", Verbs: []string{"stack"}},
	{Title: "Unwind tables, and other programs that use them", Verbs: []string{"dump", "verify", "stats", "compile", "unwind", "run"}},
	{Title: "This program", Verbs: []string{"help", "version", "man", "completion"}},
}

// examples are those of the verbs that cobra makes.
var examples = map[string]string{
	"unspool completion":            "  unspool completion bash --help",
	"unspool completion bash":       "  unspool completion bash > /etc/bash_completion.d/unspool",
	"unspool completion zsh":        "  unspool completion zsh > \"${fpath[1]}/_unspool\"",
	"unspool completion fish":       "  unspool completion fish > ~/.config/fish/completions/unspool.fish",
	"unspool completion powershell": "  unspool completion powershell | Out-String | Invoke-Expression",
}

// values are what flags take that their types do not say.
var values = map[string]string{
	"pid intSlice": "process IDs such as 1234", "pid int": "a process ID such as 1234",
	"tid intSlice": "thread IDs such as 1234", "tid int": "a thread ID such as 1234",
	"stack-size uint32": "a number of bytes such as 16384", "limit int": "a number of rows such as 20",
}

// recordings are the arguments of a verb that reads recordings: those that record writes where none is named.
func recordings(args []string, names ...string) ([]string, error) {
	if len(args) > 0 {
		return args, nil
	}
	for _, n := range names {
		if _, err := os.Stat(n); err != nil {
			return nil, usage("name a recording: there is no %s here", n)
		}
	}
	return names, nil
}
