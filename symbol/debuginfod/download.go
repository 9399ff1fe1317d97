package debuginfod

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/module"
)

// newHTTP returns a client that follows a few redirections, on the same host only, and decompresses nothing.
func newHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableCompression = true
	t.MaxResponseHeaderBytes = maxHeaders
	t.MaxIdleConnsPerHost = 4
	return &http.Client{
		Transport: t,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) >= 5 {
				return errors.New("too many redirections")
			}
			if !sameHost(via[0].URL, r.URL) {
				return fmt.Errorf("a redirection to %s, which is not the same host", (&url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host}).String())
			}
			return nil
		},
	}
}

// sameHost says whether a server may send this program from one URL to another: not where another service listens.
func sameHost(from, to *url.URL) bool {
	if from.Scheme == to.Scheme {
		return strings.EqualFold(from.Host, to.Host)
	}
	plain := func(u *url.URL, port string) bool { return u.Port() == "" || u.Port() == port }
	return from.Scheme == "http" && to.Scheme == "https" && strings.EqualFold(from.Hostname(), to.Hostname()) && plain(from, "80") && plain(to, "443")
}

// An answer is the beginning of what a server sends.
type answer struct {
	server string
	resp   *http.Response
	err    error
	watch  *watch
}

// download asks all servers at once, takes the file from the first that has it, and puts it at path.
func (c *Client) download(ctx context.Context, buildID []byte, id, kind, path string) error {
	user := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.c.MaxTime > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.c.MaxTime)
		defer cancel()
	}
	servers := c.alive()
	answers := make(chan answer, len(servers))
	for _, s := range servers {
		go func() { answers <- c.ask(ctx, s, id, kind) }()
	}
	var errs []error
	missing := 0
	for n := len(servers); n > 0; n-- {
		a := c.wait(answers, kind+" "+id)
		err := a.err
		if err == nil {
			err = c.receive(a, buildID, kind+" "+id, path)
			a.resp.Body.Close()
		}
		a.watch.stop()
		switch {
		case err == nil:
			drain(answers, n-1, cancel)
			return nil
		case errors.Is(err, ErrNotFound):
			missing++
		case user.Err() != nil:
			drain(answers, n-1, cancel)
			return user.Err()
		default:
			if !errors.Is(err, errTooBig) && !errors.Is(err, errLocal) {
				c.kill(a.server, err)
			}
			errs = append(errs, fmt.Errorf("%s: %w", redacted(a.server), err))
		}
	}
	if missing == len(servers) {
		return ErrNotFound
	}
	return errors.Join(errs...)
}

// wait returns the next answer, and says meanwhile that it waits.
func (c *Client) wait(answers <-chan answer, what string) answer {
	if c.c.Progress == nil {
		return <-answers
	}
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	defer c.c.Progress(what, 0, 0, true)
	for {
		select {
		case a := <-answers:
			return a
		case <-tick.C:
			c.c.Progress(what, 0, 0, false)
		}
	}
}

// drain closes the n answers that are not wanted any more.
func drain(answers <-chan answer, n int, cancel func()) {
	cancel()
	go func() {
		for range n {
			a := <-answers
			if a.watch.stop(); a.resp != nil {
				a.resp.Body.Close()
			}
		}
	}()
}

// A watch cancels a request that is too slow.
type watch struct {
	limit  time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
	bytes  int64 // since it was wound up
}

var errSlow = errors.New("too slow")

func newWatch(ctx context.Context, limit time.Duration) (context.Context, *watch) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watch{limit: limit, cancel: cancel}
	if limit > 0 {
		w.timer = time.AfterFunc(limit, func() {
			cancel(fmt.Errorf("%w: less than %d KiB in %v", errSlow, progress>>10, limit))
		})
	}
	return ctx, w
}

// came says that n bytes have come.
func (w *watch) came(n int) {
	if w.bytes += int64(n); w.bytes >= progress {
		w.wind()
	}
}

// pause says that nobody waits for the server; wind, that somebody does again.
func (w *watch) pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

func (w *watch) wind() {
	if w.timer != nil {
		w.bytes = 0
		w.timer.Reset(w.limit)
	}
}

func (w *watch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.cancel(nil)
}

// ask sends a request. The answer's body is to be read under its watch.
func (c *Client) ask(ctx context.Context, server, id, kind string) answer {
	ctx, w := newWatch(ctx, c.c.Timeout)
	a := answer{server: server, watch: w}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/buildid/"+id+"/"+kind, nil)
	if err != nil {
		a.err = err
		return a
	}
	for k, v := range c.c.Headers {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", "unspool")
	req.Header.Set("Accept-Encoding", "identity")
	if c.c.MaxSize < maxSize {
		req.Header.Set("X-DEBUGINFOD-MAXSIZE", strconv.FormatInt(c.c.MaxSize, 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		a.err = cause(ctx, err)
		return a
	}
	switch {
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusNotAcceptable:
		a.err = ErrNotFound // 406: it is larger than we want
	case resp.StatusCode != http.StatusOK:
		a.err = fmt.Errorf("it answers %d", resp.StatusCode)
	case resp.Header.Get("Content-Encoding") != "":
		a.err = errors.New("it sends something compressed that was not asked for")
	case resp.ContentLength > c.c.MaxSize:
		a.err = fmt.Errorf("%d bytes: %w", resp.ContentLength, errTooBig)
	}
	if a.err != nil {
		resp.Body.Close()
		return a
	}
	w.pause() // others may come first
	a.resp = resp
	return a
}

// cause returns why a context was cancelled by its watch, or err.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); errors.Is(why, errSlow) {
		return why
	}
	return err
}

var (
	errTooBig = errors.New("larger than the limit")
	errLocal  = errors.New("cannot be kept")
)

// receive writes an answer to path, by way of a file beside it, if it is what was asked for.
func (c *Client) receive(a answer, buildID []byte, what, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	a.watch.wind()
	if err := c.copy(f, a, what); err != nil {
		return cause(a.resp.Request.Context(), err)
	}
	if err := verify(f, buildID); err != nil {
		return err
	}
	if err := f.Chmod(0o400); err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("%w: %w", errLocal, err)
	}
	return nil
}

// copy writes the body to f.
func (c *Client) copy(f *os.File, a answer, what string) (err error) {
	total := max(a.resp.ContentLength, 0)
	have := int64(0)
	if say := c.c.Progress; say != nil {
		defer func() { say(what, have, total, true) }()
	}
	var magic [4]byte
	switch n, err := io.ReadFull(a.resp.Body, magic[:]); {
	case err == nil && !module.Known(magic[:]), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
		return errors.New("it sends what is no ELF file")
	case err != nil:
		return err
	}
	buf := make([]byte, 64<<10)
	n := copy(buf, magic[:])
	for {
		if have += int64(n); have > c.c.MaxSize {
			return fmt.Errorf("more than %d bytes: %w", c.c.MaxSize, errTooBig)
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
		if c.c.Progress != nil {
			c.c.Progress(what, have, total, false)
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		n, err = a.resp.Body.Read(buf)
		a.watch.came(n)
	}
}

// verify says whether a file is an ELF file of a build ID.
func verify(f *os.File, buildID []byte) error {
	img, err := module.Map(f)
	if err != nil {
		return err
	}
	defer img.Close()
	return module.Guard(func() error {
		if have := img.BuildID(); !bytes.Equal(have, buildID) {
			return fmt.Errorf("it sends a file of another build ID, %q", hex.EncodeToString(have))
		}
		return img.SectionsErr() // they are at the end
	})
}
