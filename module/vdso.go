package module

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
)

// VDSO returns the image of this process's vDSO, copied from memory. Every process of a running kernel
// has the same one (for its class).
var VDSO = sync.OnceValues(func() (*Image, error) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer maps.Close()
	for sc := bufio.NewScanner(maps); sc.Scan(); {
		if !strings.HasSuffix(sc.Text(), "[vdso]") {
			continue
		}
		var lo, hi uint64
		if _, err := fmt.Sscanf(sc.Text(), "%x-%x", &lo, &hi); err != nil || hi-lo > 1<<20 {
			return nil, fmt.Errorf("/proc/self/maps: %q: %w", sc.Text(), ErrMalformed)
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return nil, err
		}
		defer mem.Close()
		b := make([]byte, hi-lo)
		if _, err := mem.ReadAt(b, int64(lo)); err != nil {
			return nil, fmt.Errorf("read the vDSO: %w", err)
		}
		return New("[vdso]", b)
	}
	return nil, fmt.Errorf("this process has no vDSO: %w", ErrUnsupported)
})
