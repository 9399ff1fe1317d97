package unspool_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"os"

	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/store"
)

// The stacks of a core file, with names. The program lies below testdata/root.
func Example_core() {
	mods := modules.New()
	defer mods.Close()
	mods.Files = names.Files("testdata/root", nil) // "": where they were mapped
	namer := names.New(names.Options{Mods: mods})
	defer namer.Close()
	core, err := corefile.Open("testdata/core", corefile.Options{Mods: mods.Module, Image: namer.Image, Files: mods.Files})
	if err != nil {
		log.Fatal(err)
	}
	defer core.Close()
	p, err := stacks.Walk(&core.Process, stacks.Options{})
	if err != nil {
		log.Fatal(err)
	}
	p.Name(namer)
	for _, t := range p.Threads {
		fmt.Printf("%v\n", p.Signal)
		for i := range t.Frames {
			fmt.Printf("%#x %s, by %v\n", t.Frames[i].PC, t.Frames[i].Name.Func, t.Frames[i].How)
		}
		fmt.Println("whole:", t.Incomplete() == "")
	}
	// Output:
	// SIGILL: illegal operand (ILL_ILLOPN), address 0x400176
	// 0x400176 spin, by start
	// 0x400196 work, by cfi
	// 0x4001a4 main, by cfi
	// 0x40014f _start, by cfi
	// whole: true
}

// The stacks of a recording of perf record --call-graph dwarf, with names, as flame graphs are made of.
func Example_recording() {
	mods := modules.New()
	defer mods.Close()
	mods.Files = names.Files("testdata/root", nil) // "": where they were recorded
	f, err := record.Open("testdata/perf.data", record.FileOptions{Mods: mods})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	p, err := f.Profile(context.Background(), nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := report.Folded(os.Stdout, p, report.Options{}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// spin;_start;main;work;spin 10
	// # 10 samples of cpu-clock · 100.0 % whole · 0.0 % truncated · 0.0 % broken · 0 lost 0
}

// A file's unwind information becomes a table, and the table steps from a frame to its caller.
func Example_table() {
	img, err := module.Open("testdata/root/opt/spin")
	if err != nil {
		log.Fatal(err)
	}
	defer img.Close()
	frames, err := format.Open(img)
	if err != nil {
		log.Fatal(err)
	}
	_, table, err := store.Build(frames) // proven equal to what the frames say
	if err != nil {
		log.Fatal(err)
	}
	const pc = 0x400191 // in work, whose frame has 40 bytes
	id, _ := table.Find(pc)
	rule := table.Set(id)
	fmt.Println(rule.Text(img.Machine()))

	sp := img.Machine().Slot(img.Machine().SP)
	var state rows.State
	state.Start(pc, 1<<sp)
	state.Snap[sp] = 0x7000
	stack := rows.Memory{Lo: 0x7028, Bytes: binary.LittleEndian.AppendUint64(nil, 0x4001a4)}
	fmt.Println(table.Apply(id, &state, &stack))
	fmt.Printf("returns to %#x, CFA %#x\n", state.PC, state.CFA)
	// Output:
	// cfa=rsp+48  ra=c-8
	// ok
	// returns to 0x4001a4, CFA 0x7030
}
