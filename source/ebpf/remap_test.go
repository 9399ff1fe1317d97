package ebpf

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// plugin is a library whose function calls itself depth times and then calls back. By the rules of the one with frames of 64
// bytes, every other frame of the one with 32 is passed over, and the stack ends where it should.
const plugin = `	.text
	.globl work
	.type work, @function
work:	.cfi_startproc
	sub	$FRAME, %rsp
	.cfi_def_cfa_offset FRAME+8
	test	%edi, %edi
	jz	1f
	dec	%edi
	call	work@PLT
	jmp	2f
1:	call	*%rsi
2:	add	$FRAME, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size work, .-work
	.section .note.GNU-stack,"",@progbits
`

// TestRemap: code that is mapped where other code was a moment ago is walked by its own rules, from the first sample on.
func TestRemap(t *testing.T) {
	const depth = 31
	prog := compile(t, fmt.Sprintf(`#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
__attribute__((noinline)) static void spin(void) {
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	do { for (volatile int i = 0; i < 2000; i++); clock_gettime(CLOCK_MONOTONIC, &b); }
	while ((b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec < 4000000);
}
int main(int argc, char **argv) {
	void *last = 0;
	int moved = 0;
	for (int i = 0; i < 600; i++) {
		void *so = dlopen(argv[1 + i %% 2], RTLD_NOW);
		void (*work)(int, void (*)(void)) = so ? dlsym(so, "work") : 0;
		if (!work) return puts(dlerror()), 1;
		moved += last && last != (void *)work;
		last = (void *)work;
		work(%d, spin);
		dlclose(so);
	}
	return moved > 10;
}`, depth))
	var libs []string
	for i, frame := range []string{"24", "56"} {
		path := filepath.Join(filepath.Dir(prog), fmt.Sprintf("lib%d.so", i))
		cmd := exec.Command("gcc", "-shared", "-x", "assembler", "-o", path, "-")
		cmd.Stdin = strings.NewReader(strings.ReplaceAll(plugin, "FRAME", frame))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		libs = append(libs, path)
	}
	p := load(t, Options{})
	n, whole, wrong, walked := 0, 0, 0, 0
	record(t, p, perfevent.Options{Command: append([]string{prog}, libs...), User: true, Frequency: 1999}, func(s *source.Sample) {
		in := inside(s, libs[0]) + inside(s, libs[1])
		if len(s.User) == 0 || s.User[0].Mapping == nil || s.User[0].Mapping.Module.Path != prog || in == 0 && s.Stop == unwind.Outermost {
			return // at work in dlopen
		}
		n++
		if s.Record.ID == source.WalkedID {
			walked++
		}
		if s.Stop == unwind.Outermost {
			whole++
			if in != depth+1 {
				wrong++
			}
		}
	})
	t.Logf("%d samples, %d walked in the kernel, %d whole, %d of them wrong", n, walked, whole, wrong)
	if wrong > 0 {
		t.Errorf("%d of %d whole stacks are wrong", wrong, whole)
	}
	if n < 200 || whole < n*99/100 {
		t.Errorf("%d of %d stacks are whole", whole, n)
	}
	if walked < n/4 {
		t.Errorf("the kernel has walked %d of %d", walked, n)
	}
}

// TestRemapBySystemCalls: the same where functions of the kernel cannot be traced.
func TestRemapBySystemCalls(t *testing.T) {
	defer func(all []string) { mappingPrograms = all }(mappingPrograms)
	mappingPrograms = mappingPrograms[1:]
	TestRemap(t)
}

// TestMappingsRefused: where no program can be attached, the error says why of each, in a line.
func TestMappingsRefused(t *testing.T) {
	p := load(t, Options{})
	defer func(all []string, maps *ebpf.Collection) { mappingPrograms, p.maps = all, maps }(mappingPrograms, p.maps)
	mappingPrograms = []string{"on_event", "on_tracepoint"} // which are none of tracing
	err := p.traceMappings()
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "on_event") || !strings.Contains(err.Error(), "; attaching on_tracepoint") {
		t.Errorf("%v", err)
	}
}
