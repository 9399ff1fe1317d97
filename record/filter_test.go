package record

import (
	"math"
	"regexp"
	"testing"
	"time"

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
		if err := f.SetTime(text, time.Now()); err != nil || !f.Timed || f.From != want[0] || f.To != want[1] {
			t.Errorf("%q: %+v, %v, want %d", text, f, err, want)
		}
	}
	for _, text := range []string{"", "1", "a,b", "-1,2", "1,2,3", "1.x,2", "99999999999,"} {
		var f Filter
		if err := f.SetTime(text, time.Now()); err == nil {
			t.Errorf("%q: %+v", text, f)
		}
	}
}

// TestSetWall: times of day are the last ones, those of an end the first after the beginning.
func TestSetWall(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := time.Date(2026, 3, 1, 12, 30, 15, 0, zone)
	at := func(day, hour, minute, second int) time.Time {
		return time.Date(2026, 2, 28+day, hour, minute, second, 0, zone)
	}
	for text, want := range map[string][2]time.Time{
		"-15m,":                                {now.Add(-15 * time.Minute)},
		"-1h30m,-1h":                           {now.Add(-90 * time.Minute), now.Add(-time.Hour)},
		"12:30,":                               {at(1, 12, 30, 0)},
		"12:31,":                               {at(0, 12, 31, 0)}, // yesterday
		"23:50,00:10":                          {at(0, 23, 50, 0), at(1, 0, 10, 0)},
		"11:00:30,11:00":                       {at(1, 11, 0, 30), at(2, 11, 0, 0)},
		",11:00":                               {{}, at(1, 11, 0, 0)},
		"2026-02-28,":                          {at(0, 0, 0, 0)},
		"2026-02-28T07:08":                     {}, // no comma
		"2026-02-28T07:08,2026-02-28 07:09:10": {at(0, 7, 8, 0), at(0, 7, 9, 10)},
		"2026-02-28T07:08:00Z,":                {at(0, 9, 8, 0)},
		"-1h,-2h":                              {},
		"25:00,":                               {},
		"1h,":                                  {},
	} {
		var f Filter
		err := f.SetTime(text, now)
		if want == [2]time.Time{} {
			if err == nil {
				t.Errorf("%q: %v %v", text, f.Since, f.Until)
			}
			continue
		}
		if err != nil || f.Timed || !f.Since.Equal(want[0]) || !f.Until.Equal(want[1]) {
			t.Errorf("%q: %v %v, %v; want %v", text, f.Since, f.Until, err, want)
		}
	}
}
