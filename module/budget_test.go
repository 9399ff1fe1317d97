package module

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestBudget: what was used last stays, what is in use stays, and what was used just now may take twice as much.
func TestBudget(t *testing.T) {
	b := Budget{Max: 100}
	var dropped []int
	busy := map[int]bool{}
	shares := map[int]*Share{}
	add := func(i int, size int64) {
		shares[i] = b.Add(size, func() bool {
			if busy[i] {
				return false
			}
			dropped = append(dropped, i)
			return true
		})
	}
	age := func() { // all was used long ago
		for at := b.list.Front(); at != nil; at = at.Next() {
			at.Value.(*Share).used = time.Now().Add(-2 * recent)
		}
	}
	check := func(what string, used int64, want ...int) {
		t.Helper()
		if !slices.Equal(dropped, want) || b.Used() != used {
			t.Errorf("%s: dropped %v of which %d bytes stay, want %v and %d", what, dropped, b.Used(), want, used)
		}
		dropped = nil
	}
	for i := range 4 {
		add(i, 25)
	}
	check("room", 100)
	add(4, 50)
	check("too much, all just now", 150)
	age()
	shares[0].Touch()
	add(5, 10)
	check("the oldest go, the first was used", 50+25+10, 1, 2, 3)
	age()
	busy[4] = true
	shares[0].Use(80)
	check("the oldest is busy", 50+80+10)
	age()
	add(6, 5)
	check("and is the oldest no more", 50+5, 5, 0)
	busy[4] = false
	add(7, 100)
	check("the rest was used just now", 5+100, 4)
	add(8, 100)
	check("more than twice as much", 100+100, 6)
	shares[8].Remove()
	shares[8].Remove()
	shares[6].Use(1000) // it has gone
	check("removed", 100)
	add(9, 1000)
	check("one alone is more than the budget", 1000, 7)
	b.forget()
	shares[9].Touch()
	shares[9].Remove()
	check("nothing", 0)
}

// TestHold: a file stays mapped while somebody holds it, whoever closes it, however many do so at once.
func TestHold(t *testing.T) {
	oracle.Long(t)
	for range 50 {
		img, err := Open("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for img.Hold() {
					if string(img.Bytes()[1:4]) != "ELF" {
						t.Errorf("%s, which %d hold, is not mapped: its bytes 1 to 3 are %q, want \"ELF\"", img.Name(), img.holders.Load(), img.Bytes()[1:4])
					}
					img.Release()
				}
			})
		}
		if err := img.Close(); err != nil {
			t.Error(err)
		}
		img.Close() // once is enough
		wg.Wait()
		if img.b != nil {
			t.Errorf("closed twice and released by all, %s still has %d bytes mapped", img.Name(), len(img.b))
		}
	}
}
