package perfevent

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// synthesise makes the records of what exists: names of threads and executable mappings, at time 0. Whoever
// disappears meanwhile is left out.
func (r *Recorder) synthesise(o *Options) {
	s := synth{dec: r.dec, buildIDs: r.buildID, ids: map[inode][]byte{}}
	procs := map[int][]int{} // threads of interest; nil for all
	if o.All {
		all, _ := numbersIn("/proc")
		for _, pid := range all {
			procs[pid] = nil
		}
	}
	for _, tid := range o.TIDs {
		pid := leader(tid)
		procs[pid] = append(procs[pid], tid)
	}
	for _, pid := range o.PIDs {
		procs[leader(pid)] = nil
	}
	for pid, tids := range procs {
		s.process(pid, tids)
	}
	if r.program != nil {
		r.program.Begin(s.b)
	}
	s.kernel() // last, because it takes a while
	r.synth = s.b
}

// A synth makes records of /proc.
type synth struct {
	dec      *source.Decoder
	buildIDs bool
	ids      map[inode][]byte // build IDs
	b        []byte
}

type inode struct {
	maj, min uint32
	num      uint64
}

func (s *synth) add(rec *source.Record) { s.b = s.dec.Append(s.b, 0, rec) }

// leader returns the process of a thread.
func leader(tid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return tid
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if pid, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
				return pid
			}
		}
	}
	return tid
}

// process adds a process with its mappings and the given threads, or all.
func (s *synth) process(pid int, tids []int) {
	s.comm(pid, pid)
	if tids == nil {
		tids, _ = threads(pid)
	}
	for _, tid := range tids {
		s.thread(pid, tid)
	}
	s.maps(pid)
}

func (s *synth) thread(pid, tid int) {
	if tid == pid {
		return
	}
	s.add(&source.Record{Type: source.RecordFork, PID: int32(pid), TID: int32(tid), PPID: int32(pid), PTID: int32(pid)})
	s.comm(pid, tid)
}

func (s *synth) comm(pid, tid int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", pid, tid))
	if err != nil {
		return
	}
	s.add(&source.Record{Type: source.RecordComm, PID: int32(pid), TID: int32(tid), Comm: bytes.TrimSuffix(b, []byte("\n"))})
}

// maps adds the executable mappings of a process.
func (s *synth) maps(pid int) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		rec, ok := parseMapping(lines.Bytes())
		if !ok || rec.Prot&source.ProtExec == 0 {
			continue
		}
		rec.PID, rec.TID = int32(pid), int32(pid)
		if s.buildIDs {
			if id := s.buildID(f, pid, &rec); len(id) > 0 {
				rec.Misc |= source.MiscMmapBuildID
				rec.BuildID = id
			}
		}
		s.add(&rec)
	}
}

// parseMapping reads a line of /proc/PID/maps, as the record that the kernel would write of the mapping.
func parseMapping(line []byte) (rec source.Record, ok bool) {
	f := strings.SplitN(string(line), " ", 6)
	if len(f) < 5 || len(f[1]) < 4 {
		return rec, false
	}
	var bad bool
	num := func(s string, base, size int) uint64 {
		v, err := strconv.ParseUint(s, base, size)
		bad = bad || err != nil
		return v
	}
	lo, hi, _ := strings.Cut(f[0], "-")
	maj, min, _ := strings.Cut(f[3], ":")
	rec = source.Record{
		Type: source.RecordMmap2, Misc: source.MiscUser, Addr: num(lo, 16, 64), Len: num(hi, 16, 64), Pgoff: num(f[2], 16, 64),
		Maj: uint32(num(maj, 16, 32)), Min: uint32(num(min, 16, 32)), Inode: num(f[4], 10, 64), MapFlags: unix.MAP_PRIVATE,
	}
	rec.Len -= rec.Addr
	for i, c := range "rwx" {
		if f[1][i] == byte(c) {
			rec.Prot |= 1 << i
		}
	}
	if f[1][3] == 's' {
		rec.MapFlags = unix.MAP_SHARED
	}
	name := ""
	if len(f) == 6 {
		name = strings.ReplaceAll(strings.TrimLeft(f[5], " "), `\012`, "\n")
	}
	if name == "" || strings.HasPrefix(name, "[anon") {
		name = "//anon"
	}
	rec.Filename = []byte(name)
	return rec, !bad && int64(rec.Len) > 0
}

// buildID returns the build ID of a mapped file: what the kernel finds in it, if it can be asked (since Linux
// 6.11), or else what the file has, if it is still there.
func (s *synth) buildID(maps *os.File, pid int, rec *source.Record) []byte {
	if rec.Inode == 0 {
		return nil
	}
	key := inode{rec.Maj, rec.Min, rec.Inode}
	id, ok := s.ids[key]
	if !ok {
		if id, ok = queryBuildID(maps, rec.Addr); !ok {
			id = fileBuildID(fmt.Sprintf("/proc/%d/root%s", pid, rec.Filename), &key)
		}
		s.ids[key] = id
	}
	return id
}

// A procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr                             uint64
	start, end, vmaFlags, pageSize, offset, inode uint64
	major, minor, nameSize, buildIDSize           uint32
	nameAddr, buildIDAddr                         uint64
}

const procmapQueryIoctl = 3<<30 | 104<<16 | 'f'<<8 | 17 // PROCMAP_QUERY

// queryBuildID asks the kernel for the build ID of what is mapped at addr. ok is false if it does not answer.
func queryBuildID(maps *os.File, addr uint64) (id []byte, ok bool) {
	var buf [20]byte
	q := procmapQuery{addr: addr, buildIDSize: uint32(len(buf))}
	q.size = uint64(unsafe.Sizeof(q))
	q.buildIDAddr = uint64(uintptr(unsafe.Pointer(&buf)))
	conn, err := maps.SyscallConn()
	if err != nil {
		return nil, false
	}
	var errno unix.Errno
	conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
	})
	if errno != 0 || q.buildIDSize > uint32(len(buf)) {
		return nil, false
	}
	return bytes.Clone(buf[:q.buildIDSize]), true
}

// fileBuildID reads the NT_GNU_BUILD_ID note of an ELF file. If key is not nil it must be that file.
func fileBuildID(path string, key *inode) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a pipe by now
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && key != nil && sys.Ino != key.num {
		return nil // device numbers differ between stat and maps on some file systems
	}
	img, err := elf.NewFile(f)
	if err != nil {
		return nil
	}
	for _, p := range img.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > 1<<16 {
			continue
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			continue
		}
		if id := noteBuildID(b, img.ByteOrder); id != nil {
			return id
		}
	}
	return nil
}

// noteBuildID finds the build ID in a segment of notes.
func noteBuildID(b []byte, order binary.ByteOrder) []byte {
	for len(b) >= 12 {
		name, desc, typ := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		at := 12 + (name+3)&^3
		end := at + (desc+3)&^3
		if at+desc > uint64(len(b)) {
			return nil
		}
		if typ == 3 && string(b[12:12+name]) == "GNU\x00" && desc > 0 && desc <= 20 {
			return b[at : at+desc]
		}
		b = b[min(end, uint64(len(b))):]
	}
	return nil
}

// kernel adds the mapping by which perf finds the kernel's symbols: its text, under a name of perf's. Where this user
// may not see the kernel's addresses there is none.
func (s *synth) kernel() {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return
	}
	defer f.Close()
	var lo, hi uint64
	for lines := bufio.NewScanner(f); hi == 0 && lines.Scan(); {
		addr, name, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		switch {
		case lo == 0 && string(name) == "T _text":
			lo, _ = strconv.ParseUint(string(addr), 16, 64)
		case string(name) == "T _etext":
			hi, _ = strconv.ParseUint(string(addr), 16, 64)
		}
		if len(addr) == 0 || addr[0] == '0' {
			return // hidden from this user
		}
	}
	if lo != 0 && lo < hi {
		s.add(&source.Record{Type: source.RecordMmap, Misc: source.MiscKernel, PID: -1, Addr: lo, Len: hi - lo, Pgoff: lo,
			Filename: []byte("[kernel.kallsyms]_text")})
	}
}
