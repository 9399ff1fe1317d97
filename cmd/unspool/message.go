package main

import (
	"errors"
	"os"
	"strings"

	"github.com/unspool/unspool/internal/printable"
)

// stderr is where messages go, one a Write: the names of files and processes in them may not end the line or tell a terminal to do something.
var stderr = printable.Writer{W: os.Stderr}

// message is an error in a line. Errors that were joined come one after the other.
func message(err error) string {
	if many, ok := err.(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
		var parts []string
		for _, e := range many.Unwrap() {
			parts = append(parts, message(e))
		}
		if len(parts) > 0 && err.Error() == errors.Join(many.Unwrap()...).Error() {
			return strings.Join(parts, "; ")
		}
	}
	return err.Error()
}
