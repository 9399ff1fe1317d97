package serve

import (
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
)

// openBrowser opens an address in a browser, by a file that only the user may read: arguments of programs are read by everybody. The
// function that it returns removes the file.
func openBrowser(url string) (closed func(), err error) {
	f, err := os.CreateTemp("", "unspool-*.html") // its mode is 0600
	if err != nil {
		return nil, err
	}
	closed = func() { os.Remove(f.Name()) }
	_, err = fmt.Fprintf(f, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url=%s\"><a href=\"%[1]s\">unspool</a>\n", html.EscapeString(url))
	err = errors.Join(err, f.Close())
	browser := exec.Command("xdg-open", f.Name())
	if err == nil {
		err = browser.Start()
	}
	if err != nil {
		closed()
		return nil, err
	}
	go browser.Wait()
	return closed, nil
}
