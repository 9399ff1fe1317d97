package oracle

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browserPatience is how long a browser may take for anything. It is there to end what hangs.
const browserPatience = 2 * time.Minute

// A Page is a page in headless Chromium, driven by the DevTools protocol.
type Page struct {
	t       testing.TB
	ws      *socket
	session string

	mu      sync.Mutex
	id      int
	waiting map[int]chan message
	ended   error
	errors  []string // what the page's scripts and policies complained about
	fetched []string // addresses that were asked for
}

type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// OpenPage starts Chromium, of that size in pixels, and opens an address. The browser ends with the test.
func OpenPage(t testing.TB, url string, width, height int) *Page {
	t.Helper()
	Need(t, "chromium")
	dir := t.TempDir()
	cmd := exec.Command("chromium", "--headless", "--remote-debugging-port=0", "--user-data-dir="+dir, "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-background-networking",
		"--disable-component-update", "--hide-scrollbars", "--force-device-scale-factor=1", fmt.Sprintf("--window-size=%d,%d", width, height), "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() { cmd.Wait(); close(gone) }()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-gone
		// Children that the kill reached a moment ago may still write.
		for range 100 {
			if os.RemoveAll(dir) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	var addr []string
	end := time.Now().Add(browserPatience)
	for len(addr) < 2 {
		select {
		case <-gone:
			t.Fatalf("chromium ended:\n%s", log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("chromium did not start in time")
		}
		b, _ := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		addr = strings.SplitN(strings.TrimSpace(string(b)), "\n", 2)
	}
	ws, err := dialSocket("127.0.0.1:"+addr[0], addr[1])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.conn.Close() })
	p := &Page{t: t, ws: ws, waiting: map[int]chan message{}}
	go p.listen()
	var target struct{ TargetID string }
	p.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	p.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.call(domain+".enable", nil, nil)
	}
	p.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	p.Go(url)
	return p
}

// Go opens an address.
func (p *Page) Go(url string) {
	p.t.Helper()
	p.call("Page.navigate", map[string]any{"url": url}, nil)
}

func (p *Page) listen() {
	for {
		b, err := p.ws.read()
		p.mu.Lock()
		if err != nil {
			p.ended = err
			for _, c := range p.waiting {
				close(c)
			}
			p.waiting = nil
			p.mu.Unlock()
			return
		}
		var m message
		if json.Unmarshal(b, &m) == nil {
			p.take(&m)
		}
		p.mu.Unlock()
	}
}

func (p *Page) take(m *message) {
	switch m.Method {
	case "":
		if c := p.waiting[m.ID]; c != nil {
			c <- *m
			delete(p.waiting, m.ID)
		}
	case "Runtime.exceptionThrown":
		p.errors = append(p.errors, string(m.Params))
	case "Log.entryAdded":
		var e struct {
			Entry struct{ Level, Text, URL string }
		}
		if json.Unmarshal(m.Params, &e) == nil && e.Entry.Level == "error" {
			p.errors = append(p.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	case "Network.requestWillBeSent":
		var e struct {
			Request struct{ URL string }
		}
		if json.Unmarshal(m.Params, &e) == nil {
			p.fetched = append(p.fetched, e.Request.URL)
		}
	}
}

// call calls a method of the protocol.
func (p *Page) call(method string, params map[string]any, result any) {
	p.t.Helper()
	if err := p.try(method, params, result); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
}

func (p *Page) try(method string, params map[string]any, result any) error {
	c := make(chan message, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		return p.ended
	}
	p.id++
	id := p.id
	p.waiting[id] = c
	p.mu.Unlock()
	req := map[string]any{"id": id, "method": method}
	if params != nil {
		req["params"] = params
	}
	if p.session != "" {
		req["sessionId"] = p.session
	}
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if err := p.ws.write(opText, b); err != nil {
		return err
	}
	select {
	case m, ok := <-c:
		if !ok {
			return fmt.Errorf("the browser has gone: %v", p.ended)
		}
		if m.Error != nil {
			return fmt.Errorf("%s", m.Error.Message)
		}
		if result != nil {
			return json.Unmarshal(m.Result, result)
		}
		return nil
	case <-time.After(browserPatience):
		return fmt.Errorf("no answer in %v", browserPatience)
	}
}

// Eval returns the value of an expression, which may be a promise, as JSON has it.
func (p *Page) Eval(expr string) any {
	p.t.Helper()
	v, err := p.eval(expr)
	if err != nil {
		p.t.Fatalf("%s: %v", expr, err)
	}
	return v
}

func (p *Page) eval(expr string) (any, error) {
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if err := p.try("Runtime.evaluate", map[string]any{"expression": expr, "returnByValue": true, "awaitPromise": true}, &r); err != nil {
		return nil, err
	}
	if e := r.ExceptionDetails; e != nil {
		return nil, fmt.Errorf("%s %s", e.Text, e.Exception.Description)
	}
	return r.Result.Value, nil
}

// Wait waits until an expression is true, through errors: a page that is being loaded has none of what it asks for.
func (p *Page) Wait(expr string) {
	p.t.Helper()
	var last any
	var err error
	for end := time.Now().Add(browserPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if last, err = p.eval(expr); err == nil && last == true {
			return
		}
	}
	p.t.Fatalf("still not so: %s\nit is %v %v\nerrors: %q", expr, last, err, p.Errors())
}

// Click presses and releases the left button at a point of the page.
func (p *Page) Click(x, y float64) {
	p.t.Helper()
	p.Drag(x, y, x, y)
}

// Drag moves the pressed left button from one point to another.
func (p *Page) Drag(x, y, toX, toY float64) {
	p.t.Helper()
	mouse := func(kind string, x, y float64, buttons int) {
		p.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1}, nil)
	}
	mouse("mouseMoved", x, y, 0)
	mouse("mousePressed", x, y, 1)
	if x != toX || y != toY {
		mouse("mouseMoved", (x+toX)/2, (y+toY)/2, 1)
		mouse("mouseMoved", toX, toY, 1)
	}
	mouse("mouseReleased", toX, toY, 0)
}

// Hover moves the pointer.
func (p *Page) Hover(x, y float64) {
	p.t.Helper()
	p.call("Input.dispatchMouseEvent", map[string]any{"type": "mouseMoved", "x": x, "y": y}, nil)
}

// Key presses a key: "Enter", "ArrowDown", "a".
func (p *Page) Key(key string) {
	p.t.Helper()
	down := map[string]any{"type": "keyDown", "key": key, "code": key}
	if len(key) == 1 {
		down["text"] = key
	}
	codes := map[string]int{"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Backspace": 8}
	if c, ok := codes[key]; ok {
		down["windowsVirtualKeyCode"] = c
	}
	if key == "Enter" {
		down["text"] = "\r"
	}
	p.call("Input.dispatchKeyEvent", down, nil)
	p.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key}, nil)
}

// Type enters text where the focus is.
func (p *Page) Type(text string) {
	p.t.Helper()
	p.call("Input.insertText", map[string]any{"text": text}, nil)
}

// Scheme makes the page dark or light.
func (p *Page) Scheme(name string) {
	p.t.Helper()
	p.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": name}, {"name": "prefers-reduced-motion", "value": "reduce"}}}, nil)
}

// Screenshot returns a picture of the page, as PNG.
func (p *Page) Screenshot() []byte {
	p.t.Helper()
	var r struct{ Data string }
	p.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	b, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// Errors returns the page's uncaught exceptions and what the browser reported as errors, violations of policies included.
func (p *Page) Errors() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.errors...)
}

// Fetched returns the addresses that the page asked for.
func (p *Page) Fetched() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.fetched...)
}
