package jit

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// ReadMap reads a perf map: a line for each function, with start and size in hexadecimal, and the name, which may have spaces. Other lines,
// such as a half-written one, are skipped. With an error, ReadMap returns the functions read before it.
func ReadMap(r io.Reader) (*Map, error) {
	m := &Map{}
	in := bufio.NewReaderSize(io.LimitReader(r, maxFile), 1<<16)
	var err error
	for {
		text, whole, rerr := readLine(in)
		if lo, size, name, ok := parseLine(text); ok && whole && !m.add(lo, size, 0, name) {
			err = fmt.Errorf("more than %d functions", len(m.entries))
			break
		}
		if rerr != nil {
			if rerr != io.EOF {
				err = rerr
			}
			break
		}
	}
	m.build()
	return m, err
}

// readLine returns a line without its end, cut where it is longer than the buffer. whole is false for one without an end.
func readLine(in *bufio.Reader) (text []byte, whole bool, err error) {
	text, err = in.ReadSlice('\n')
	if err != bufio.ErrBufferFull {
		return bytes.TrimRight(text, "\r\n"), err == nil, err
	}
	text = bytes.Clone(text)
	for err == bufio.ErrBufferFull {
		_, err = in.ReadSlice('\n')
	}
	return text, err == nil, err
}

func parseLine(b []byte) (lo, size uint64, name []byte, ok bool) {
	start, rest, ok1 := bytes.Cut(b, []byte(" "))
	length, name, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok1 || !ok2 || len(name) == 0 {
		return 0, 0, nil, false
	}
	lo, err1 := parseHex(start)
	size, err2 := parseHex(length)
	return lo, size, name, err1 == nil && err2 == nil
}

func parseHex(b []byte) (uint64, error) {
	return strconv.ParseUint(string(bytes.TrimPrefix(b, []byte("0x"))), 16, 64)
}
