package compact

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// TestPacked: a set that is packed says the same when it is read, and frames as compilers make them are packed.
func TestPacked(t *testing.T) {
	oracle.Long(t)
	r := rand.New(rand.NewPCG(21, 22))
	sh := shapeOf(arch.ARM64)
	packed, wide, runs, below, onReg := 0, 0, 0, 0, 0
	for range 200_000 {
		set := rowstest.Set(r, arch.ARM64)
		s := sh.normal(&set, nil)
		rule := make([]byte, sh.size)
		if !sh.fixed(rule, &s) {
			wide++
			continue
		}
		packed++
		if kind, _, _ := parts(rule); kind != kindReg {
			continue
		}
		if rule[packedRun] != 0 {
			runs++
			if rule[packedPlace]&1 != 0 {
				below++
			}
		}
		if rule[packedAux]&baseOnReg != 0 {
			onReg++
		}
		if msg := sh.checkPacked(rule); msg != "" {
			t.Fatalf("%s: %s", s.Text(arch.ARM64), msg)
		}
		got := sh.fixedSet(rule)
		if got.Text(arch.ARM64) != s.Text(arch.ARM64) {
			t.Fatalf("packed as % x\n got  %s\n want %s", rule, got.Text(arch.ARM64), s.Text(arch.ARM64))
		}
	}
	t.Logf("%d packed, %d wide; %d with a run, %d of them below its first register; %d bases on a register", packed, wide, runs, below, onReg)
	if packed < 50_000 || runs < 1_000 || below < 100 || onReg < 1_000 {
		t.Errorf("%d packed, %d with a run, %d below its first register, %d bases on a register; want 50000, 1000, 100, 1000 or more", packed, runs, below, onReg)
	}
}

// TestPackedBounds: at each bound of a packed rule, what still fits is packed, and what does not is wide.
func TestPackedBounds(t *testing.T) {
	for text, packed := range map[string]bool{
		"cfa=sp+262136  x29=c-16  ra=c-8":                          true, // an offset of 16 bits
		"cfa=sp+262144  x29=c-16  ra=c-8":                          false,
		"cfa=sp-262144  x29=c-16  ra=c-8":                          true,
		"cfa=sp+12  x29=c-16  ra=c-8":                              false, // not in units
		"cfa=sp+16  x29=c-12  ra=c-8":                              false,
		"cfa=sp+16  x29=c-16  ra=c+8":                              false, // above the CFA
		"cfa=sp+16  ra=c+0":                                        true,
		"cfa=sp+16  x29=c-112  ra=c+0":                             true, // 14 units above a base that is even
		"cfa=sp+16  x29=c-120  ra=c+0":                             false,
		"cfa=sp+9000  x29=c-2032  ra=c-2024":                       true, // the lowest base that is relative to the CFA
		"cfa=sp+9000  x29=c-2040  ra=c-2032":                       false,
		"cfa=sp+9000  x29=c-9000  ra=c-8992":                       true, // to the register
		"cfa=sp+9000  x29=c-6968  ra=c-6960":                       true,
		"cfa=sp+9000  x29=c-6960  ra=c-6848":                       true,  // 15 units above the base
		"cfa=sp+9000  x29=c-6952  ra=c-6944":                       false, // 256 units above the register
		"cfa=sp+9000  x29=c-9008  ra=c-9000":                       false, // below it
		"cfa=sp+262080  x29=c-262080  ra=c-262072":                 true,  // the lowest base
		"cfa=sp+262096  x29=c-262096  ra=c-262088":                 false,
		"cfa=sp+96  x29=c-32  ra=c-24  v8=c-96":                    true, // a run 8 units below the base
		"cfa=sp+96  x29=c-32  ra=c-24  v8=c-104":                   false,
		"cfa=sp+96  x29=c-32  ra=c-24  v8=c-40  v15=c-96":          true, // down
		"cfa=sp+96  x29=c-32  ra=c-24  v8=c-96  v15=c-40":          true, // up
		"cfa=sp+96  x29=c-32  ra=c-24  v8=c-96  v15=c-48":          false,
		"cfa=sp+96  x29=c-96  ra=c-88  v9=c-72  v10=c-80":          true,
		"cfa=sp+96  x29=c-96  ra=c-88  v8=c-88  v9=c-72  v10=c-80": false,
		"cfa=sp+640  x29=c-640  ra=c-632  v8=c-136":                true, // 63 units above the base
		"cfa=sp+640  x29=c-640  ra=c-632  v8=c-128":                false,
		"cfa=sp+640  v8=c-640":                                     true, // nothing but a run
		"cfa=sp+96  x18=c-16  ra=c-8":                              false,
		"cfa=x19+96  x29=c-16  ra=c-8":                             true,
		"cfa=sp+96  ra=u":                                          true,
	} {
		ref, err := rows.ParseText(strings.NewReader("machine aarch64\n400000  " + text + "\n400100  gap\n"))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if s := emit(t, ref).Stats(); (s.Wide == 0) != packed {
			t.Errorf("%s: %d wide rules, want packed: %v", text, s.Wide, packed)
		}
	}
}
