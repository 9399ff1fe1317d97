package daemon

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	slowClient = 10 * time.Second // for a request over HTTP
	maxHeader  = 8 << 10          // bytes of its header; the server takes 4 KiB more
	maxClients = 64               // connections at a time
	maxOfOne   = maxClients / 2   // of these, from one address or network: others, such as the kubelet, find the rest
)

// answer answers over HTTP, until stop is called. Whoever reaches the address costs a bounded number of bytes.
func answer(l net.Listener, h http.Handler) (stop func() error) {
	server := http.Server{Handler: h, ReadHeaderTimeout: slowClient, ReadTimeout: slowClient, WriteTimeout: 3 * slowClient, MaxHeaderBytes: maxHeader}
	go server.Serve(&bounded{Listener: l, from: map[string]int{}})
	return server.Close
}

// A bounded listener has so many connections open at a time. It closes more of them at once: who waited would hold memory of the kernel's.
type bounded struct {
	net.Listener

	mu   sync.Mutex
	all  int
	from map[string]int // by networkOf
}

// A client is a connection that counts until it is closed.
type client struct {
	net.Conn
	closed func()
}

func (c *client) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (l *bounded) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := networkOf(c.RemoteAddr())
		if l.enter(from) {
			return &client{c, sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		c.Close()
	}
}

// networkOf returns whose connections count together: those of an address, or of the 64 bits before the interface's of IPv6, where a host may choose the rest.
func networkOf(from net.Addr) string {
	a, err := netip.ParseAddrPort(from.String())
	if err != nil {
		return from.String()
	}
	ip := a.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	return netip.PrefixFrom(ip, bits).Masked().String()
}

// enter counts a connection from an address, unless there are too many.
func (l *bounded) enter(from string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= maxClients || l.from[from] >= maxOfOne {
		return false
	}
	l.all++
	l.from[from]++
	return true
}

func (l *bounded) leave(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.from[from]--; l.from[from] == 0 {
		delete(l.from, from)
	}
}
