package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/module"
)

// A role says whom the directory of a Store is for.
type role uint8

const (
	user     role = iota
	machine       // all users: root fills it
	packager      // a package: its files are named as if only root could change what they are made of, and no link leads to them
)

// OpenPackage returns a Store that writes tables into a directory for a package, which is going to be installed in PackageDir. The directory is made
// if needed. What this machine has elsewhere is not looked for.
func OpenPackage(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return &Store{dir: dir, role: packager}, nil
}

// Keep is Table for who fills a Store: it returns the name of the table's file, "" if there is none, and the table's size.
func (s *Store) Keep(img *module.Image) (name string, size int, from Origin, err error) {
	t, from, name, err := s.table(img)
	if t == nil {
		return "", 0, from, err
	}
	return name, len(t.Bytes()), from, errors.Join(err, s.Err())
}

// A Machine is the machine's store, open for writing. It remembers of which files its tables are, and so finds out which files have changed without
// opening them, and which tables are of files that have gone. It is safe for concurrent use.
type Machine struct {
	*Store
	lock *os.File

	mu    sync.Mutex
	stay  map[string]bool    // names, without what is behind the dot, of tables that are of no file
	index map[string]indexed // by path
}

// An indexed is what became of a file.
type indexed struct {
	file string // how links to it begin
	name string // of its table; noTable where it has no unwind information
}

const (
	noTable   = "-"
	indexName = "index"
	lockName  = "lock"
	maxIndex  = 256 << 20 // bytes
)

// indexHead is the first line of an index. One of another version says nothing.
var indexHead = fmt.Sprint("unspool index 1, tables ", compact.Version)

// OpenMachine opens the machine's store in a directory, "" for the first of SharedDirs, and makes the directory if needed. Only root may, and only if
// nobody else can change the directory. It waits until other processes that write there have ended, or ctx has.
func OpenMachine(ctx context.Context, dir string) (*Machine, error) {
	shared := SharedDirs()
	if dir == "" {
		if len(shared) == 0 {
			return nil, fmt.Errorf("%s names no directory", SharedVar)
		}
		dir = shared[0]
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("the store of all users, %s, is written by root only", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	fd, err := openShared(dir)
	if err != nil {
		return nil, fmt.Errorf("the store of all users: %w", err)
	}
	unix.Close(fd)
	m := &Machine{Store: &Store{dir: dir, shared: shared, role: machine}, stay: map[string]bool{}}
	if m.lock, err = os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644); err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(m.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err == unix.EWOULDBLOCK {
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		m.lock.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	b, _ := kept.Read(filepath.Join(dir, indexName), maxIndex) // without one, all files are looked at
	m.index = readIndex(b)
	return m, nil
}

// readIndex reads an index: a line for each file has how links to it begin, the name of its table, and its path.
func readIndex(b []byte) map[string]indexed {
	index := map[string]indexed{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	if !lines.Scan() || lines.Text() != indexHead {
		return index
	}
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), " ", 3)
		if len(f) < 3 || !strings.HasPrefix(f[0], "at-") || f[1] == "" || strings.Contains(f[1], "/") {
			continue
		}
		if path, err := strconv.Unquote(f[2]); err == nil {
			index[path] = indexed{f[0], f[1]}
		}
	}
	return index
}

// fileAt returns how links to the file at a path begin; "" if there is no file.
func fileAt(path string) string {
	var f module.File
	if unix.Stat(path, &f.Stat_t) != nil {
		return ""
	}
	return linkTo(&f)
}

// Known says whether the file at a path is as it was when its table was made, and the table is there. size is the table's, 0 of a file without
// unwind information.
func (m *Machine) Known(path string) (size int64, known bool) {
	m.mu.Lock()
	e, ok := m.index[path]
	m.mu.Unlock()
	if !ok || e.file != fileAt(path) {
		return 0, false
	}
	if e.name == noTable {
		return 0, true
	}
	st, err := os.Lstat(filepath.Join(m.dir, e.name))
	if err != nil || !st.Mode().IsRegular() || st.Size() <= trailerSize {
		return 0, false
	}
	return st.Size() - int64(len(e.name)+trailerSize), true
}

// Settle waits until a change of the file at a path would be seen: two seconds after the last one, at most.
func (m *Machine) Settle(ctx context.Context, path string) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return
	}
	left := settled - time.Since(time.Unix(st.Ctim.Unix()))
	if left < 0 {
		return
	}
	select {
	case <-time.After(min(left, settled) + time.Millisecond):
	case <-ctx.Done():
	}
}

// Stay has the table with a name stay, which is of no file, when Prune is called.
func (m *Machine) Stay(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	stem, _, _ := strings.Cut(name, ".")
	m.stay[stem] = true
}

// Made remembers that the file at a path, which an image is of, has a table with a name; "" for a file without unwind information.
func (m *Machine) Made(path string, img *module.Image, name string) {
	if img.File() == nil {
		return
	}
	if name == "" {
		name = noTable
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index[path] = indexed{linkTo(img.File()), name}
}

// A Pruned says what Prune has removed, and what is left.
type Pruned struct {
	Gone, Left           int   // tables, and files with machine code
	GoneBytes, LeftBytes int64 // of them
}

// Prune removes tables, machine code and links of files that have changed or gone, and what earlier versions have made; and it writes the index.
func (m *Machine) Prune() (p Pruned, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	files, stems := map[string]bool{}, maps.Clone(m.stay)
	for path, e := range m.index {
		if e.file != fileAt(path) {
			delete(m.index, path)
			continue
		}
		files[e.file] = true
		if stem, _, ok := strings.Cut(e.name, "."); ok {
			stems[stem] = true
		}
	}
	kept.Sweep(m.dir)
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return p, err
	}
	code := fmt.Sprintf(".%d.eh_elf.so", native.Version)
	for _, e := range entries {
		name := e.Name()
		if !isKept(name) || e.IsDir() {
			continue
		}
		stem, _, _ := strings.Cut(name, ".")
		stay := strings.HasSuffix(name, tableEnding) || strings.HasSuffix(name, code)
		link := strings.HasPrefix(name, "at-")
		if link {
			stay = stay && files[stem]
		} else {
			stay = stay && stems[stem]
		}
		size := int64(0)
		if st, err := e.Info(); err == nil && !link {
			size = st.Size()
		}
		if !stay {
			if rerr := os.Remove(filepath.Join(m.dir, name)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
				stay = true
			}
		}
		switch {
		case link:
		case stay:
			p.Left, p.LeftBytes = p.Left+1, p.LeftBytes+size
		default:
			p.Gone, p.GoneBytes = p.Gone+1, p.GoneBytes+size
		}
	}
	return p, errors.Join(err, m.writeIndex())
}

func (m *Machine) writeIndex() error {
	var b bytes.Buffer
	fmt.Fprintln(&b, indexHead)
	for _, path := range slices.Sorted(maps.Keys(m.index)) {
		e := m.index[path]
		fmt.Fprintf(&b, "%s %s %s\n", e.file, e.name, strconv.Quote(path))
	}
	return kept.Save(filepath.Join(m.dir, indexName), b.Bytes())
}

// Close lets others write. Tables that the Machine gave out stay valid.
func (m *Machine) Close() error { return errors.Join(m.Store.Close(), m.lock.Close()) }
