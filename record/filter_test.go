package record

import (
	"math"
	"regexp"
	"testing"

	"github.com/unspool/unspool/profile"
)

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		name         string
		f            Filter
		active       bool
		want, stacks bool // of PID 10, TID 11, comm "work", at 5 ns
	}{
		{"none", Filter{}, false, true, true},
		{"pid", Filter{PIDs: []int{9, 10}}, true, true, true},
		{"another pid", Filter{PIDs: []int{11}}, true, false, false},
		{"tid", Filter{TIDs: []int{11}}, true, true, true},
		{"pid and another tid", Filter{PIDs: []int{10}, TIDs: []int{10}}, true, false, false},
		{"comm", Filter{Comm: regexp.MustCompile("^wo")}, true, true, true},
		{"another comm", Filter{Comm: regexp.MustCompile("^rk")}, true, false, false},
		{"time", Filter{Timed: true, From: 5, To: 5}, true, true, true},
		{"later", Filter{Timed: true, From: 6, To: math.MaxUint64}, true, false, true},
		{"earlier", Filter{Timed: true}, true, false, true},
	} {
		if got := c.f.active(); got != c.active {
			t.Errorf("%s: Active = %v", c.name, got)
		}
		if got := c.f.wants(10, 11, "work", 5); got != c.want {
			t.Errorf("%s: Want = %v", c.name, got)
		}
		if got := c.f.stack(&profile.Stack{PID: 10, TID: 11, Comm: "work"}); got != c.stacks {
			t.Errorf("%s: Stack = %v", c.name, got)
		}
	}
}

// TestSetTime: times are exact to the nanosecond, either end may be open, and what is no time is an error.
func TestSetTime(t *testing.T) {
	for text, want := range map[string][2]uint64{
		"4918.072454123,4919": {4918_072454123, 4919_000000000}, "1.5,": {1_500000000, math.MaxUint64}, ",0.000000001": {0, 1}, ",": {0, math.MaxUint64},
	} {
		var f Filter
		if err := f.SetTime(text); err != nil || !f.Timed || f.From != want[0] || f.To != want[1] {
			t.Errorf("%q: %+v, %v, want %d", text, f, err, want)
		}
	}
	for _, text := range []string{"", "1", "a,b", "-1,2", "1,2,3", "1.x,2", "99999999999,"} {
		var f Filter
		if err := f.SetTime(text); err == nil {
			t.Errorf("%q: %+v", text, f)
		}
	}
}
