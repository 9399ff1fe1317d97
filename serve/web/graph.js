// A flame graph on a canvas: it draws what the server cut to its width, and asks for more when somebody zooms.
import { Channel, Inlined, Kind, base, change, colour, el, onScheme, palette, percent, points, weight } from './model.js';
import { fit } from './names.js';

const row = 20; // pixels
const size = 6; // numbers of a node, as in graph.go
const font = '12px ui-monospace, "SF Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace';

export class Graph {
  // app is that of app.js. up: the root is at the bottom.
  constructor(box, view, app, label) {
    this.box = box;
    this.view = view;
    this.app = app;
    this.up = false;
    this.path = [];
    this.channel = new Channel();
    this.canvas = el('canvas', { tabindex: 0, role: 'application', 'aria-label': label });
    this.inner = el('div', { class: 'inner' }, this.canvas);
    box.append(this.inner);
    this.hover = this.focus = -1;
    new ResizeObserver(() => this.resized()).observe(box);
    box.addEventListener('scroll', () => this.draw());
    onScheme(() => this.draw());
    const c = this.canvas;
    c.addEventListener('pointermove', e => this.point(e));
    c.addEventListener('pointerleave', () => this.point(null));
    c.addEventListener('click', e => {
      const i = this.at(e);
      if (i < 0) return;
      this.choose(i);
      this.zoom(i);
    });
    c.addEventListener('keydown', e => this.key(e));
  }

  // load asks for the graph of the path again.
  async load() {
    this.width = this.box.clientWidth;
    if (!this.width) return;
    this.asked = this.width;
    const n = this.asks = (this.asks || 0) + 1;
    let g;
    try {
      g = await this.channel.ask('graph', { ...this.app.params(), view: this.view, width: this.width, path: this.path.map(n => n.toString(36)).join('.'), ...this.extra });
    } catch (e) {
      this.app.fail(e);
      return;
    }
    await this.moving;
    if (g && n === this.asks) this.set(g);
  }

  set(g) {
    const old = this.g, oldPath = this.shown;
    const n = g.nodes.length / size;
    const chosen = this.focus >= 0 && old ? this.labels(this.focus) : null;
    Object.assign(this, { g, n, shown: this.path.slice(0, g.path), path: this.path.slice(0, g.path) });
    this.depth = new Int32Array(n);
    this.label = new Int32Array(n);
    this.parent = new Int32Array(n);
    this.x = new Float64Array(n);
    this.rows = [];
    this.hits = new Set(g.hits);
    const next = [], above = [];
    for (let i = 0; i < n; i++) {
      const d = this.depth[i] = g.nodes[i * size];
      this.label[i] = g.nodes[i * size + 1];
      this.parent[i] = d ? above[d - 1] : -1;
      this.x[i] = d && i > g.path ? next[d - 1] : 0;
      if (d && i > g.path) next[d - 1] += this.total(i);
      next[d] = this.x[i];
      above[d] = i;
      (this.rows[d] ||= []).push(i);
    }
    this.win = [0, this.total(g.path) || 1];
    // What was larger or smaller before moves to where it is now.
    if (old && oldPath.length > this.shown.length && this.shown.every((l, k) => l === oldPath[k])) {
      const was = this.find(oldPath);
      if (was >= 0) this.animate([this.x[was], this.x[was] + this.total(was)], this.win);
    }
    this.focus = chosen ? this.find(chosen, true) : -1;
    if (this.picked && this.app.chosenBy === this) {
      const same = this.find(this.picked);
      this.app.numbers(same < 0 ? null : this.describe(same));
    }
    this.hover = -1;
    this.layout();
    this.app.loaded?.(this, g);
  }

  total(i) { return this.g.nodes[i * size + 2]; }
  self(i) { return this.g.nodes[i * size + 3]; }
  before(i) { return this.g.nodes[i * size + 4]; }
  marks(i) { return this.g.nodes[i * size + 5]; }
  name(i) { return this.g.labels[this.label[i]]; }
  text(i) { return this.label[i] ? this.name(i).text : 'smaller ones'; }

  // labels is the path to a node, without the root.
  labels(i) {
    const out = [];
    for (; this.parent[i] >= 0; i = this.parent[i]) out.unshift(this.name(i).id);
    return out;
  }

  // find returns the node of a path, or -1; or, if near, the last one that there is.
  find(path, near) {
    let at = 0;
    for (const id of path) {
      const next = (this.rows[this.depth[at] + 1] || []).find(k => this.parent[k] === at && this.name(k).id === id);
      if (next === undefined) return near ? at : -1;
      at = next;
    }
    return at;
  }

  layout() {
    const h = this.rows.length * row + 1;
    const stick = this.up && (!this.height || this.box.scrollTop + this.tall >= this.height - 2);
    this.tall = this.box.clientHeight;
    this.height = Math.max(h, this.tall);
    this.inner.style.height = `${this.height}px`;
    if (stick) this.box.scrollTop = this.height;
    this.draw();
  }

  // turn follows a change of up.
  turn() {
    if (!this.g) return;
    this.height = 0;
    this.box.scrollTop = 0;
    this.layout();
  }

  resized() {
    if (!this.g) return;
    this.layout();
    clearTimeout(this.timer);
    if (this.box.clientWidth && this.box.clientWidth !== this.asked) this.timer = setTimeout(() => this.load(), 150);
  }

  // span is where a node is drawn: left and right in pixels.
  span(i) {
    if (i < this.g.path) return [0, this.wide];
    const k = this.wide / (this.win[1] - this.win[0]);
    const a = (this.x[i] - this.win[0]) * k, b = a + this.total(i) * k;
    return i === this.g.path || this.within?.has(i) ? [Math.max(0, a), Math.min(this.wide, b)] : [a, b];
  }

  top(i) { return this.up ? this.height - (this.depth[i] + 1) * row : this.depth[i] * row; }

  draw() {
    if (!this.g || !this.box.clientWidth) return;
    const dpr = devicePixelRatio || 1, w = this.wide = this.box.clientWidth, h = this.box.clientHeight, c = palette();
    const cv = this.canvas;
    if (cv.width !== Math.round(w * dpr) || cv.height !== Math.round(h * dpr)) {
      cv.width = Math.round(w * dpr);
      cv.height = Math.round(h * dpr);
      cv.style.width = `${w}px`;
      cv.style.height = `${h}px`;
    }
    const top = this.box.scrollTop;
    const x = cv.getContext('2d');
    x.setTransform(dpr, 0, 0, dpr, 0, 0);
    x.clearRect(0, 0, w, h);
    x.translate(0, -top);
    x.textBaseline = 'middle';
    x.font = font;
    const em = this.em ||= x.measureText('0000000000').width / 10;
    const { info } = this.app, two = info.inputs.length > 1, searched = !!this.g.found, same = this.hover >= 0 ? this.label[this.hover] : 0;
    for (let d = 0; d < this.rows.length; d++) {
      const y = this.up ? this.height - (d + 1) * row : d * row;
      if (y + row < top || y > top + h) continue;
      for (const i of this.rows[d]) {
        const [a, b] = this.span(i);
        if (b <= 0 || a >= w || b - a < 0.2) continue;
        const l = this.name(i), rest = !this.label[i], hit = this.hits.has(this.label[i]) && !rest;
        x.fillStyle = rest ? c.rest : hit ? c.hit : two && l.kind !== Kind.stop ? this.changed(c, i) : colour(c, l, info.modules);
        x.globalAlpha = (i < this.g.path ? 0.45 : 1) * (searched && !hit ? 0.4 : 1) * (this.inlined(i) && !hit ? 0.62 : 1);
        const gap = b - a > 3 ? 1 : 0;
        x.fillRect(a, y, b - a - gap, row - 1);
        if (l.kind === Kind.stop && !rest) this.hatch(x, a, y, b - a - gap, c);
        x.globalAlpha = 1;
        if (b - a < 3 * em || rest) continue;
        const text = fit(l.text, Math.floor((Math.min(b, w) - Math.max(a, 0) - 8) / em));
        if (!text) continue;
        x.fillStyle = hit ? c.hitText : c.text;
        x.globalAlpha = searched && !hit ? 0.55 : 1;
        if (this.inlined(i)) x.font = `italic ${font}`;
        x.fillText(text, Math.max(a, 0) + 4, y + row / 2);
        x.font = font;
        x.globalAlpha = 1;
      }
    }
    const frame = i => {
      const [a, b] = this.span(i);
      if (b - a > 1.5 && b > 0 && a < w) x.strokeRect(a + 0.5, this.top(i) + 0.5, b - a - 2, row - 2);
    };
    x.lineWidth = 1;
    x.strokeStyle = c.line;
    x.globalAlpha = 0.35;
    if (same > 0) for (let i = 0; i < this.n; i++) if (this.label[i] === same) frame(i);
    x.lineWidth = 2;
    x.strokeStyle = c.accent;
    x.globalAlpha = 1;
    if (this.focus >= 0) frame(this.focus);
  }

  inlined(i) { return this.label[i] && this.name(i).kind === Kind.func && this.marks(i) & Inlined; }

  // changed is the colour of a node in a comparison. Numbers of the side that widths are of come first.
  changed(c, i) {
    if (!this.label[i]) return c.rest;
    const { all, totals } = this.g, s = this.extra?.side ? 1 : 0;
    const shares = [this.total(i) / (all[s] || 1), this.before(i) / (all[1 - s] || 1)];
    return change(c, shares[s], shares[1 - s], totals[0].samples, totals[1].samples);
  }

  hatch(x, a, y, w, c) {
    x.save();
    x.beginPath();
    x.rect(a, y, w, row - 1);
    x.clip();
    x.strokeStyle = c.paper;
    x.globalAlpha = 0.35;
    x.lineWidth = 3;
    x.beginPath();
    for (let k = Math.max(a, 0) - row - Math.max(a, 0) % 10; k < Math.min(a + w, this.wide); k += 10) {
      x.moveTo(k, y + row);
      x.lineTo(k + row, y);
    }
    x.stroke();
    x.restore();
  }

  // at returns the node under a pointer, or -1.
  at(e) {
    if (!this.g) return -1;
    const r = this.canvas.getBoundingClientRect();
    const y = e.clientY - r.top + this.box.scrollTop, px = e.clientX - r.left;
    const d = Math.floor((this.up ? this.height - y : y) / row);
    return (this.rows[d] || []).find(i => { const [a, b] = this.span(i); return px >= a && px < b; }) ?? -1;
  }

  point(e) {
    const i = e ? this.at(e) : -1;
    this.canvas.style.cursor = i >= 0 ? 'pointer' : '';
    if (i !== this.hover) {
      this.hover = i;
      this.draw();
    }
    this.app.tip(e, i < 0 ? null : this.describe(i));
  }

  // describe says in words and numbers what a node is.
  describe(i) {
    const { info } = this.app, { all } = this.g, unit = this.app.unit(), s = this.extra?.side ? 1 : 0;
    const l = this.name(i), lines = [];
    lines.push(['Total', percent(this.total(i), all[s]), weight(this.total(i), unit)]);
    if (this.label[i]) lines.push(['Self', percent(this.self(i), all[s]), weight(this.self(i), unit)]);
    if (info.inputs.length > 1) {
      lines.push([s ? 'Now' : 'Baseline', percent(this.before(i), all[1 - s]), weight(this.before(i), unit)]);
      const d = this.total(i) / (all[s] || 1) - this.before(i) / (all[1 - s] || 1);
      lines.push(['Change', points(s ? -d : d), 'percentage points']);
    }
    const notes = [];
    if (l.module >= 0 && l.kind !== Kind.none) notes.push(base(info.modules[l.module].path));
    const hows = info.howNames.filter((_, k) => k < 14 && this.marks(i) & 1 << k);
    if (hows.length && hows[0] !== 'unknown') notes.push('found by ' + hows.join(', '));
    if (this.inlined(i)) notes.push('inlined into its caller');
    if (l.note) notes.push('Why it ended: ' + l.note);
    if (!this.label[i]) notes.push('too small to be drawn one by one; zoom in to see them');
    return { name: this.text(i), lines, notes, label: l };
  }

  choose(i) {
    this.focus = i;
    this.draw();
    const d = this.describe(i);
    this.picked = this.labels(i);
    this.app.choose(this.label[i] ? this.name(i) : null, d, this);
  }

  // zoom makes a node fill the width.
  zoom(i) {
    if (!this.label[i]) i = this.parent[i];
    this.path = this.labels(i);
    if (i > this.g.path) {
      // The node's callers fill the width while it grows.
      this.within = new Set();
      for (let k = i; k >= 0; k = this.parent[k]) this.within.add(k);
      this.animate(this.win, [this.x[i], this.x[i] + this.total(i)]);
    }
    this.app.pathChanged(this);
    this.load();
  }

  outward() {
    this.path = this.path.slice(0, -1);
    this.app.pathChanged(this);
    this.load();
  }

  animate(from, to) {
    const still = matchMedia('(prefers-reduced-motion: reduce)').matches, start = performance.now(), ms = still ? 0 : 180;
    this.win = from;
    this.moving = new Promise(done => {
      const step = now => {
        const k = ms ? Math.min(1, Math.max(0, now - start) / ms) : 1, e = 1 - (1 - k) ** 3;
        this.win = [from[0] + (to[0] - from[0]) * e, from[1] + (to[1] - from[1]) * e];
        this.draw();
        if (k < 1) requestAnimationFrame(step);
        else {
          this.within = null;
          done();
        }
      };
      step(start);
      if (ms && document.hidden) step(start + ms);
    });
  }

  key(e) {
    if (!this.g || e.ctrlKey || e.metaKey || e.altKey) return;
    const i = this.focus < 0 || this.focus >= this.n ? this.g.path : this.focus, r = this.rows[this.depth[i]], k = r.indexOf(i);
    const out = this.up ? 'ArrowDown' : 'ArrowUp', inward = this.up ? 'ArrowUp' : 'ArrowDown';
    let to = -1;
    switch (e.key) {
      case 'ArrowLeft': to = r[k - 1] ?? i; break;
      case 'ArrowRight': to = r[k + 1] ?? i; break;
      case out: to = this.parent[i] >= 0 ? this.parent[i] : i; break;
      case inward: {
        const kids = (this.rows[this.depth[i] + 1] || []).filter(n => this.parent[n] === i);
        to = kids.reduce((a, b) => this.label[b] && this.total(b) > (a < 0 || !this.label[a] ? -1 : this.total(a)) ? b : a, kids[0] ?? i);
        break;
      }
      case 'Home': to = 0; break;
      case 'Enter': case ' ': this.choose(i); this.zoom(i); e.preventDefault(); return;
      case 'Escape': case 'Backspace': if (this.path.length) { this.outward(); e.preventDefault(); e.stopPropagation(); } return;
      default: return;
    }
    e.preventDefault();
    this.choose(to);
    const y = this.top(to);
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    else if (y + row > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = y + row - this.box.clientHeight;
    const d = this.describe(to);
    this.app.say([d.name, ...d.lines.map(l => l.join(' ')), ...d.notes].join(', '));
  }
}
