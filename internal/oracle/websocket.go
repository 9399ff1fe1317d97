package oracle

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// A socket is a client's end of a WebSocket (RFC 6455) that carries text.
type socket struct {
	conn net.Conn
	r    *bufio.Reader
	mu   sync.Mutex // of writes
}

const (
	opContinuation = 0
	opText         = 1
	opClose        = 8
	opPing         = 9
	opPong         = 10

	maxMessage = 256 << 20
)

// dialSocket connects to ws://host/path.
func dialSocket(host, path string) (*socket, error) {
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	key := make([]byte, 16)
	rand.Read(key)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n",
		path, host, base64.StdEncoding.EncodeToString(key))
	s := &socket{conn: conn, r: bufio.NewReaderSize(conn, 1<<16)}
	resp, err := http.ReadResponse(s.r, nil)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		err = fmt.Errorf("websocket: %s", resp.Status)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

// write sends a message in one frame, masked as a client's must be (section 5.3).
func (s *socket) write(op byte, msg []byte) error {
	b := []byte{0x80 | op}
	switch n := len(msg); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	b = append(append(b, 0, 0, 0, 0), msg...) // the mask is zero
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Write(b)
	return err
}

// read returns the next message.
func (s *socket) read() ([]byte, error) {
	var msg []byte
	for {
		var h [2]byte
		if _, err := io.ReadFull(s.r, h[:]); err != nil {
			return nil, err
		}
		n := uint64(h[1] & 0x7f)
		switch n {
		case 126:
			var b [2]byte
			if _, err := io.ReadFull(s.r, b[:]); err != nil {
				return nil, err
			}
			n = uint64(binary.BigEndian.Uint16(b[:]))
		case 127:
			var b [8]byte
			if _, err := io.ReadFull(s.r, b[:]); err != nil {
				return nil, err
			}
			n = binary.BigEndian.Uint64(b[:])
		}
		if n+uint64(len(msg)) > maxMessage {
			return nil, fmt.Errorf("websocket: a message of more than %d bytes", maxMessage)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(s.r, body); err != nil {
			return nil, err
		}
		switch h[0] & 0xf {
		case opPing:
			if err := s.write(opPong, body); err != nil {
				return nil, err
			}
		case opClose:
			return nil, io.EOF
		case opText, opContinuation:
			msg = append(msg, body...)
			if h[0]&0x80 != 0 {
				return msg, nil
			}
		}
	}
}
