package symbol

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

// KernelModule is what Kernel calls the kernel proper, as perf does.
const KernelModule = "[kernel.kallsyms]"

// maxKallsyms bounds what is read of the kernel's symbols, in bytes: forty times what a kernel has today.
const maxKallsyms = 256 << 20

// kernel has the functions of the running kernel and its modules.
type kernel struct {
	once  sync.Once
	asked atomic.Bool             // once is over
	file  atomic.Pointer[os.File] // the opened file that is to be read; nil: the file at its path
	err   error

	funcs  kfuncs // sorted by start, one for each address
	names  []byte
	mods   []string // KernelModule first, then "[ext4]"
	bias   uint64   // from the addresses that are asked for to those of funcs
	bounds bounds
	asOf   time.Time // when that was so; later functions of modules are missing
	under  *kernel   // what funcs does not have, in a file of the cache; nil: funcs has all
}

// bounds are the addresses of the symbols that bound the kernel's text; 0 where they are not known.
type bounds struct{ text, stext, etext uint64 }

type kfunc struct {
	start uint64
	end   uint64
	name  uint32 // offset of the name in names
	len   uint16
	mod   uint16
}

// kfuncs are functions as a file of the cache has them: keptFunc bytes each, little-endian.
type kfuncs []byte

func (f kfuncs) len() int { return len(f) / keptFunc }

func (f kfuncs) start(i int) uint64 { return binary.LittleEndian.Uint64(f[i*keptFunc:]) }

func (f kfuncs) at(i int) kfunc {
	le, b := binary.LittleEndian, f[i*keptFunc:][:keptFunc]
	return kfunc{start: le.Uint64(b), end: le.Uint64(b[8:]), name: le.Uint32(b[16:]), len: le.Uint16(b[20:]), mod: le.Uint16(b[22:])}
}

func (f kfuncs) add(x *kfunc) kfuncs {
	le := binary.LittleEndian
	f = le.AppendUint64(le.AppendUint64(f, x.start), x.end)
	return le.AppendUint16(le.AppendUint16(le.AppendUint32(f, x.name), x.len), x.mod)
}

// made says whether the functions of a module are code that the kernel makes: programs and trampolines ("[bpf]"), or what ftrace and kprobes
// copy ("[__builtin__ftrace]"). They come and go, and other code takes their addresses.
func made(mod string) bool { return mod == "[bpf]" || strings.HasPrefix(mod, "[__builtin__") }

// Kernel names an address in the kernel. mod is KernelModule or the name of a loadable module in brackets. Start is an address of the running
// kernel. KernelNote says why a name is missing. In a recording that is over, code that the kernel made has no name here: other code may lie
// there now.
func (r *Resolver) Kernel(addr uint64) (s Symbol, mod string, ok bool) {
	err := module.Guard(func() error {
		k := r.keptKernel()
		if k.err != nil || !k.proper(addr+k.bias) && !k.after(r.opt.RecordedBy) {
			k = r.loadKernel()
		}
		s, mod, ok = r.kernelSymbol(k, addr)
		return nil
	})
	if err != nil { // the file of the cache was cut short meanwhile
		_ = module.Guard(func() error { s, mod, ok = r.kernelSymbol(r.loadKernel(), addr); return nil })
	}
	return s, mod, ok
}

// proper says whether a is in the text of the kernel proper.
func (k *kernel) proper(a uint64) bool { return a >= k.bounds.stext && a < k.bounds.etext }

// after says whether k has all that a recording can have that was finished by then; of the zero time it has not.
func (k *kernel) after(then time.Time) bool {
	return !then.IsZero() && then.Add(clockStep).Before(k.asOf)
}

func (r *Resolver) kernelSymbol(k *kernel, addr uint64) (s Symbol, mod string, ok bool) {
	a := addr + k.bias
	i := sort.Search(k.funcs.len(), func(i int) bool { return k.funcs.start(i) > a }) - 1
	if (i < 0 || a >= k.funcs.at(i).end) && k.under != nil {
		return r.kernelSymbol(k.under, addr)
	}
	if i < 0 {
		return Symbol{}, "", false
	}
	f := k.funcs.at(i)
	if a < f.start || a >= f.end || k.bias != 0 && f.mod != 0 || uint64(f.name)+uint64(f.len) > uint64(len(k.names)) || int(f.mod) >= len(k.mods) {
		return Symbol{}, "", false
	}
	if r.opt.Recorded && made(k.mods[f.mod]) {
		return Symbol{}, "", false
	}
	linkage := string(k.names[f.name:][:f.len])
	return Symbol{Name: r.names.get(linkage, false), Linkage: linkage, Start: arch.Vaddr(f.start - k.bias), Size: f.end - f.start}, k.mods[f.mod], true
}

// KernelText returns the range of the kernel's own text, without loadable modules. ok is false if it is unknown.
func (r *Resolver) KernelText() (lo, hi uint64, ok bool) {
	k := r.loadKernel()
	return k.bounds.stext - k.bias, k.bounds.etext - k.bias, k.bounds.stext < k.bounds.etext
}

// OpenKernel opens the file of the kernel's symbols, which is read when the first name is asked for: by then, this process may no longer be
// allowed to see their addresses, and who opened the file counts. To read it now would cost a recording 12 MB until its end.
func (r *Resolver) OpenKernel() {
	if f, err := os.Open(r.opt.Kallsyms); err == nil {
		if was := r.kernel.file.Swap(f); was != nil {
			was.Close()
		}
	}
}

// KernelNote says why Kernel found no names; "" if it found them, or was not called.
func (r *Resolver) KernelNote() string {
	if k := &r.kernel; k.asked.Load() && k.err != nil {
		return k.err.Error()
	}
	return ""
}

// KernelAt sets the recorded kernel's place: Options.KernelText and KernelTextName. Call it before the first name is asked for; later it does
// nothing.
func (r *Resolver) KernelAt(text uint64, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.kernelUsed {
		r.opt.KernelText, r.opt.KernelTextName = text, name
	}
}

// kernelOptions returns the options for the kernel, which do not change any more.
func (r *Resolver) kernelOptions() *Options {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kernelUsed = true
	opt := r.opt
	return &opt
}

// keptKernel returns what is kept of the kernel. Its err says that nothing is.
func (r *Resolver) keptKernel() *kernel {
	k := &r.kept
	k.once.Do(func() {
		k.err = errKept // also where a fault ends what follows
		_ = module.Guard(func() error {
			if err := k.loadKept(r.opt.keptDir()); err == nil {
				k.err = k.fit(r.kernelOptions())
			}
			return nil
		})
	})
	return k
}

func (r *Resolver) loadKernel() *kernel {
	k := &r.kernel
	k.once.Do(func() {
		if k.err = k.load(r.kernelOptions()); k.err != nil {
			k.funcs, k.bounds = nil, bounds{}
		} else {
			newer := !r.opt.RecordedBy.IsZero() && !r.keptKernel().after(r.opt.RecordedBy) // the file is to say when that was so
			_ = module.Guard(func() error { k.keep(r.opt.keptDir(), newer); return nil })
		}
		k.asked.Store(true)
	})
	return k
}

func (k *kernel) load(opt *Options) error {
	if err := k.fit(opt); err != nil {
		return err
	}
	k.asOf = time.Now()
	f := k.file.Swap(nil)
	if f == nil {
		var err error
		if f, err = os.Open(opt.Kallsyms); err != nil {
			return err
		}
	}
	defer f.Close()
	if err := k.read(io.LimitReader(f, maxKallsyms)); err != nil {
		return fmt.Errorf("%s: %w", opt.Kallsyms, err)
	}
	return k.fit(opt)
}

// fit checks that the running kernel is the one that is asked for, and finds the bias.
func (k *kernel) fit(opt *Options) error {
	if opt.KernelID != "" {
		if have := hex.EncodeToString(procfs.KernelBuildID()); have != "" && !module.SameBuildID(have, opt.KernelID) {
			return fmt.Errorf("another kernel was recorded: build ID %s, running %s", opt.KernelID, have)
		}
	}
	var u unix.Utsname
	if opt.KernelID == "" && opt.KernelRelease != "" && unix.Uname(&u) == nil {
		if have := unix.ByteSliceToString(u.Release[:]); have != opt.KernelRelease {
			return fmt.Errorf("another kernel was recorded: Linux %s, running %s", opt.KernelRelease, have)
		}
	}
	own := k.bounds.text
	if opt.KernelTextName == "_stext" {
		own = k.bounds.stext
	}
	if known := opt.KernelID != "" || opt.KernelRelease != ""; opt.Recorded && !known && (opt.KernelText == 0 || own != 0 && own != opt.KernelText) {
		return errors.New("the recording does not say which kernel it was made on")
	}
	if opt.KernelText != 0 && own != 0 {
		k.bias = own - opt.KernelText
	}
	return nil
}

var errHidden = errors.New("the kernel hides its addresses; read them as root, or set kernel.kptr_restrict to 0")

// A kline is a parsed line: every symbol bounds the one before it, and functions are kept.
type kline struct {
	addr uint64
	name uint32 // offset of a function's name in names
	len  uint16
	mod  uint16
	rank uint32 // 0: not a function
}

// A kernel of today has 120,000 to 200,000 symbols. Memory for so many that does not have to grow is a third of the time to read them.
const (
	usualSymbols = 1 << 17
	usualNames   = 1 << 22 // bytes
)

// read parses "ffffffff81000000 T _text" and, after a tab, "[module]"; one symbol a line.
func (k *kernel) read(r io.Reader) error {
	refs := map[string]*uint64{"_text": &k.bounds.text, "_stext": &k.bounds.stext, "_etext": &k.bounds.etext}
	k.mods = []string{KernelModule}
	mods := map[string]uint16{"": 0}
	lines := make([]kline, 0, usualSymbols)
	k.names = make([]byte, 0, usualNames)
	buf, have, end := make([]byte, 1<<18), []byte(nil), false
	for !end || len(have) > 0 {
		i := bytes.IndexByte(have, '\n')
		if i < 0 && !end && len(have) < len(buf) {
			n := copy(buf, have)
			m, err := r.Read(buf[n:])
			if have, end = buf[:n+m], err == io.EOF; err != nil && !end {
				return err
			}
			continue
		}
		line := have
		if i >= 0 {
			line, have = have[:i], have[i+1:]
		} else {
			have = nil
		}
		addr, typ, name, mod, ok := parseLine(line)
		if !ok || len(name) > maxName {
			continue
		}
		if ref, ok := refs[string(name)]; ok && len(mod) == 0 {
			*ref = addr
		}
		l := kline{addr: addr}
		if m, ok := mods[string(mod)]; ok {
			l.mod = m
		} else if len(k.mods) < 1<<16-1 {
			l.mod = uint16(len(k.mods))
			mods[string(mod)] = l.mod
			k.mods = append(k.mods, string(mod))
		}
		switch typ {
		case 'T', 't', 'W', 'w':
			l.rank = krank(typ, name)
			l.name, l.len = uint32(len(k.names)), uint16(len(name))
			k.names = append(k.names, name...)
		}
		lines = append(lines, l)
	}
	keys := make([]key, len(lines))
	seen := false
	for i := range lines {
		keys[i] = key{start: lines[i].addr, ref: uint32(i)}
		seen = seen || lines[i].addr != 0
	}
	if !seen && len(lines) > 0 {
		return errHidden
	}
	keys = sortKeys(keys)
	k.funcs = make(kfuncs, 0, keptFunc*len(keys))
	for i := 0; i < len(keys); {
		best := &lines[keys[i].ref]
		j := i + 1
		for ; j < len(keys) && keys[j].start == keys[i].start; j++ {
			if l := &lines[keys[j].ref]; l.rank > best.rank {
				best = l
			}
		}
		if best.rank > 0 {
			end := max(best.addr, addSat(best.addr, 0x1fff)&^0xfff) // the last of its module: its size is unknown
			if j < len(keys) {
				if next := &lines[keys[j].ref]; next.mod == best.mod || next.addr < end {
					end = next.addr
				}
			}
			k.funcs = k.funcs.add(&kfunc{start: best.addr, end: end, name: best.name, len: best.len, mod: best.mod})
		}
		i = j
	}
	return nil
}

// krank orders the kernel's symbols of one address; the greatest is shown. A global one before a local before a weak
// one; few leading underscores; a long name. (perf shows the last of them in the file: __pi_memset for memset.) A
// function's is not 0.
func krank(typ byte, name []byte) uint32 {
	bind := uint32(2) // local
	switch typ {
	case 'T':
		bind = 3
	case 'W', 'w':
		bind = 1
	}
	lead := 0
	for lead < len(name) && name[lead] == '_' {
		lead++
	}
	return bind<<24 | uint32(255-min(lead, 255))<<16 | uint32(min(len(name), 1<<16-1))
}

// parseLine splits a line. mod has its brackets.
func parseLine(b []byte) (addr uint64, typ byte, name, mod []byte, ok bool) {
	i := 0
	for ; i < len(b) && i < 16; i++ {
		c := b[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		default:
			c = 16
		}
		if c > 15 {
			break
		}
		addr = addr<<4 | uint64(c)
		ok = true
		continue
	}
	if !ok || i+3 >= len(b) || b[i] != ' ' || b[i+2] != ' ' {
		return 0, 0, nil, nil, false
	}
	typ, name = b[i+1], b[i+3:]
	if i := bytes.IndexByte(name, '\t'); i >= 0 {
		name, mod = name[:i], name[i+1:]
	}
	return addr, typ, name, mod, len(name) > 0
}
