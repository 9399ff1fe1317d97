package lab

import (
	"fmt"
	"html"
	"math"
	"os"
	"strings"
	"testing"
)

// Plots are SVG, written here, and legible on light and on dark paper.

// A plot is a drawing of w by h units.
type plot struct {
	strings.Builder
	w, h float64
}

const plotStyle = `<style>
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 14px } .end { text-anchor: end } .mid { text-anchor: middle }
.axis { stroke: #57606a } .grid { stroke: #57606a; stroke-opacity: .2 } .bar { fill: #2f6f9f } .other { fill: #b8722c }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .axis, .grid { stroke: #9da7b3 } .bar { fill: #6cb0e0 } .other { fill: #e3a062 } }
</style>
`

func newPlot(w, h float64, title string) *plot {
	p := &plot{w: w, h: h}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" aria-label="%s">`+"\n", w, h, w, h, html.EscapeString(title))
	p.WriteString(plotStyle)
	p.text(w/2, 20, "title mid", title)
	return p
}

func (p *plot) text(x, y float64, class, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(s))
}

func (p *plot) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(p, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

// rect draws a bar that says what it is where a pointer rests on it.
func (p *plot) rect(x, y, w, h float64, class, says string) {
	fmt.Fprintf(p, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s"><title>%s</title></rect>`+"\n", x, y, w, h, class, html.EscapeString(says))
}

func (p *plot) write(t testing.TB, path string) {
	p.WriteString("</svg>\n")
	if t.Failed() {
		return
	}
	if err := os.WriteFile(path, []byte(p.String()), 0o666); err != nil {
		t.Error(err)
	}
}

// A histogram counts what has lo to hi of something; density is the share of all, for each single value.
type histogram []bin

type bin struct {
	lo, hi, n int
	density   float64
}

// write draws h with both axes logarithmic.
func (h histogram) write(t testing.TB, path string) {
	const w, ht, left, right, top, bottom = 720.0, 360.0, 70.0, 20.0, 40.0, 50.0
	p := newPlot(w, ht, "Rows of an FDE")
	most, least, end := 0.0, 1.0, 2.0
	for _, b := range h {
		if b.n > 0 {
			most, least, end = max(most, b.density), min(least, b.density), float64(b.hi+1)
		}
	}
	loY, hiY := math.Floor(math.Log10(max(least, 1e-12))), math.Ceil(math.Log10(max(most, 1e-11)))
	x := func(v float64) float64 { return left + (w-left-right)*math.Log10(v)/math.Log10(end) }
	y := func(v float64) float64 { return ht - bottom - (ht-top-bottom)*(math.Log10(v)-loY)/max(hiY-loY, 1) }
	for e := loY; e <= hiY; e++ {
		v := math.Pow(10, e)
		p.line(left, y(v), w-right, y(v), "grid")
		p.text(left-8, y(v)+4, "end", power(int(e)))
	}
	for _, b := range h {
		if b.n > 0 {
			x0, x1, y0 := x(float64(b.lo)), x(float64(b.hi+1)), y(b.density)
			says := fmt.Sprintf("%d rows: %d FDEs", b.lo, b.n)
			if b.hi > b.lo {
				says = fmt.Sprintf("%d to %d rows: %d FDEs", b.lo, b.hi, b.n)
			}
			p.rect(x0, y0, max(x1-x0-0.5, 0.5), ht-bottom-y0, "bar", says)
		}
	}
	p.line(left, ht-bottom, w-right, ht-bottom, "axis")
	for v := 1.0; v < end; v *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if v*k < end {
				p.line(x(v*k), ht-bottom, x(v*k), ht-bottom+5, "axis")
				p.text(x(v*k), ht-bottom+18, "mid", fmt.Sprintf("%g", v*k))
			}
		}
	}
	p.text((left+w-right)/2, ht-12, "mid", "rows")
	fmt.Fprintf(p, `<text transform="translate(16 %.0f) rotate(-90)" class="mid">share of FDEs, for each number of rows</text>`+"\n", (top+ht-bottom)/2)
	p.write(t, path)
}

// power is the text of a power of ten.
func power(e int) string {
	if e >= -3 {
		return fmt.Sprintf("%g", math.Pow(10, float64(e)))
	}
	digits := strings.NewReplacer("-", "⁻", "0", "⁰", "1", "¹", "2", "²", "3", "³", "4", "⁴", "5", "⁵", "6", "⁶", "7", "⁷", "8", "⁸", "9", "⁹")
	return "10" + digits.Replace(fmt.Sprint(e))
}

// A quantity is one bar of a chart. Those of others, such as the report's, are drawn in another colour.
type quantity struct {
	name  string
	v     float64
	other bool
}

// bars draws quantities as lines of a chart, with the numbers behind them; logarithmic where they differ much.
func bars(t testing.TB, path, title, unit string, qs []quantity) {
	const left, right, top, line, width = 230.0, 90.0, 40.0, 24.0, 720.0
	p := newPlot(width, top+line*float64(len(qs))+10, title)
	most, least := 0.0, math.Inf(1)
	for _, q := range qs {
		if q.v > 0 && !math.IsInf(q.v, 1) {
			most, least = max(most, q.v), min(least, q.v)
		} else {
			t.Errorf("%s: %s cannot be %v %s", path, q.name, q.v, unit)
		}
	}
	log := most > 50*least
	length := func(v float64) float64 {
		if v <= 0 || most == 0 {
			return 0
		}
		if log {
			from := math.Floor(math.Log10(least)) - 0.3
			return (width - left - right) * (math.Log10(v) - from) / (math.Log10(most) - from)
		}
		return (width - left - right) * v / most
	}
	if log {
		p.text(width-right, top-4, "end", "logarithmic")
	}
	for i, q := range qs {
		y := top + line*float64(i)
		class := "bar"
		if q.other {
			class = "other"
		}
		p.text(left-8, y+line/2+4, "end", q.name)
		p.rect(left, y+4, length(q.v), line-8, class, fmt.Sprintf("%s: %.4g %s", q.name, q.v, unit))
		number := fmt.Sprintf("%.3g", q.v)
		if q.v >= 100 {
			number = fmt.Sprintf("%.0f", q.v)
		}
		p.text(left+length(q.v)+6, y+line/2+4, "", number+" "+unit)
	}
	p.line(left, top, left, top+line*float64(len(qs)), "axis")
	p.write(t, path)
}
