package symbol

import (
	"strconv"
	"strings"
	"sync"

	"github.com/ianlancetaylor/demangle"

	"github.com/unspool/unspool/internal/procfs"
)

// maxName bounds a linkage name, in bytes: a longer one is cut. Boost's longest are below 10,000. The
// demangler's stack grows with it.
const maxName = 1 << 14

// namesBytes bounds the names of a generation, with their demangled text, and nameCost is what an entry takes beside them.
const namesBytes, nameCost = 32 << 20, 64

// names remembers demangled names, by linkage name. It has two generations: when the young one is full, it becomes the old one, and what is asked again
// moves to the new young one. It is safe for concurrent use.
type names struct {
	mu         sync.Mutex
	young, old [2]map[string]string // with parameters, without
	bytes      int                  // of young
	most       int                  // of a generation; 0: not known yet
}

// get returns the demangled form of a name.
func (n *names) get(linkage string, short bool) string {
	if !mangled(linkage) {
		if strings.IndexByte(linkage, '@') < 0 {
			return linkage
		}
		return Demangle(linkage, short)
	}
	k := 0
	if short {
		k = 1
	}
	n.mu.Lock()
	s, ok := n.young[k][linkage]
	if !ok {
		if s, ok = n.old[k][linkage]; ok {
			n.add(k, linkage, s)
		}
	}
	n.mu.Unlock()
	if ok {
		return s
	}
	s = Demangle(linkage, short)
	n.mu.Lock()
	n.add(k, linkage, s)
	n.mu.Unlock()
	return s
}

// add adds a name. n.mu is held.
func (n *names) add(k int, linkage, s string) {
	if n.most == 0 {
		n.most = namesBytes
		if limit, ok := procfs.MemoryLimit(); ok {
			n.most = min(n.most, int(limit/64))
		}
	}
	if n.bytes > n.most {
		n.old, n.young, n.bytes = n.young, [2]map[string]string{}, 0
	}
	if n.young[k] == nil {
		n.young[k] = map[string]string{}
	}
	if _, ok := n.young[k][linkage]; !ok {
		n.young[k][linkage] = s
		n.bytes += len(linkage) + len(s) + nameCost
	}
}

// mangled says whether a name can be one of C++ or Rust.
func mangled(s string) bool {
	return len(s) > 2 && s[0] == '_' && (s[1] == 'Z' || s[1] == 'R' || s[1] == '_' && strings.HasPrefix(s, "___Z") || s[1] == 'G' && strings.HasPrefix(s, "_GLOBAL_"))
}

// Demangle returns the C++ or Rust name of linkage, or linkage itself. short omits the parameters. A symbol's version (after '@') is omitted;
// the mark of a procedure linkage table stays.
func Demangle(linkage string, short bool) (name string) {
	base, version, _ := strings.Cut(linkage, "@")
	if version == "plt" || strings.HasSuffix(version, "@plt") {
		version = "@plt"
	} else {
		version = ""
	}
	if base == "" {
		return linkage
	}
	if !mangled(base) || len(base) > maxName {
		return base + version
	}
	defer func() {
		if recover() != nil { // an input that the demangler does not expect
			name = base + version
		}
	}()
	opts := []demangle.Option{demangle.MaxLength(16)}
	if short {
		opts = append(opts, demangle.NoParams)
	}
	fixed, clone := legacyRust(base)
	s, err := demangle.ToString(fixed, opts...)
	if err != nil {
		return base + version
	}
	if clone != "" && !short {
		s += " [clone " + clone + "]"
	}
	return s + version
}

// legacyRust prepares a name of Rust's first mangling, _ZN4core3fmt5write17h0123456789abcdefE, for the demangler,
// which wants nothing after the hash and drops an underscore in front of an identifier. It returns the suffix of a
// clone, and other names as they are. The suffix that LLVM adds to a local name that it exports says nothing.
func legacyRust(s string) (fixed, clone string) {
	rest, ok := strings.CutPrefix(s, "_ZN")
	if !ok {
		return s, ""
	}
	out := []byte("_ZN")
	id := ""
	for rest != "" && rest[0] != 'E' {
		digits := 0
		for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
			digits++
		}
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || n == 0 || n > len(rest)-digits {
			return s, ""
		}
		id, rest = rest[digits:digits+n], rest[digits+n:]
		if id[0] == '_' {
			id = "_" + id
		}
		out = append(strconv.AppendInt(out, int64(len(id)), 10), id...)
	}
	if len(id) != 17 || id[0] != 'h' || strings.Trim(id[1:], "0123456789abcdef") != "" || rest == "" || rest[1:] != "" && rest[1] != '.' {
		return s, ""
	}
	if clone = rest[1:]; strings.HasPrefix(clone, ".llvm.") {
		clone = ""
	}
	return string(append(out, 'E')), clone
}
