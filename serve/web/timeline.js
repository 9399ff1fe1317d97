// Samples by time: one lane for all threads and, if wanted, one for each. Dragging selects a range of time.
import { $, Channel, bytes, comma, el, onScheme, palette, percent, seconds } from './model.js';

const axis = 18, tall = 40, low = 22; // pixels

export class Timeline {
  constructor(app) {
    this.app = app;
    this.channel = new Channel();
    this.canvas = $('lanecanvas');
    this.open = false;
    this.from = 0;
    this.to = app.info.duration;
    $('timeline').hidden = false;
    $('lanes').onclick = () => this.toggle();
    $('clear').onclick = () => this.select(null);
    $('into').onclick = () => this.look(this.app.state.lo, this.app.state.hi);
    $('out').onclick = () => this.look(0, this.app.info.duration);
    const c = this.canvas;
    c.addEventListener('pointerdown', e => {
      if (e.button) return;
      c.setPointerCapture(e.pointerId);
      this.drag = [e.offsetX, e.offsetX];
    });
    c.addEventListener('pointermove', e => {
      if (this.drag) {
        this.drag[1] = Math.max(0, Math.min(this.width, e.offsetX));
        this.draw();
      }
      this.point(e);
    });
    c.addEventListener('pointerup', e => {
      if (!this.drag) return;
      const [a, b] = this.drag.sort((x, y) => x - y);
      this.drag = null;
      if (b - a >= 3) this.select([this.time(a), this.time(b)]);
      else {
        const l = this.g && this.g.lanes[this.laneAt(e.offsetY)];
        if (l?.thread) this.app.set({ pid: l.thread.pid, tid: l.thread.tid });
        else this.select(null);
      }
    });
    c.addEventListener('pointercancel', () => { this.drag = null; this.draw(); });
    c.addEventListener('pointerleave', () => this.app.tip(null));
    c.addEventListener('dblclick', () => this.app.state.hi && this.look(this.app.state.lo, this.app.state.hi));
    c.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => this.resized()).observe(c.parentElement);
    onScheme(() => this.draw());
  }

  toggle() {
    this.open = !this.open;
    $('lanes').setAttribute('aria-expanded', this.open);
    return this.load();
  }

  // look shows a range of time in all of the width.
  look(from, to) {
    this.from = Math.round(from);
    this.to = Math.round(to);
    this.load();
  }

  async load() {
    this.width = this.canvas.parentElement.clientWidth - (this.open ? 170 : 0);
    const p = this.app.params();
    delete p.lo;
    delete p.hi;
    let g;
    try {
      g = await this.channel.ask('timeline', { ...p, from: this.from, to: this.to, bins: Math.min(2000, Math.max(50, Math.floor(this.width / 2))), limit: this.open ? 100 : 0 });
    } catch (e) {
      this.app.fail(e);
      return;
    }
    if (!g) return;
    this.g = g;
    $('lanebox').classList.toggle('open', this.open);
    const name = t => t.comm || (t.tid ? '' : 'no thread');
    $('lanelist').replaceChildren(...!this.open ? [] : g.lanes.map((l, k) => l.thread
      ? el('button', { class: 'lane' + (this.app.state.tid === l.thread.tid ? ' on' : ''), title: `${l.thread.comm} · process ${l.thread.pid} · thread ${l.thread.tid} · ${comma(l.thread.samples)} samples`,
        onclick: () => this.app.set(this.app.state.tid === l.thread.tid ? { pid: '', tid: '' } : { pid: l.thread.pid, tid: l.thread.tid }) }, name(l.thread), el('span', { class: 'dim' }, ` ${l.thread.tid}`))
      : el('div', { class: 'lane all' }, 'All threads')));
    if (this.open && g.count > g.lanes.length - 1) $('lanelist').append(el('div', { class: 'lane dim' }, `and ${comma(g.count - g.lanes.length + 1)} more`));
    this.resized();
  }

  resized() {
    if (!this.g) return;
    this.width = this.canvas.parentElement.clientWidth - (this.open ? 170 : 0);
    this.draw();
  }

  x(t) { return (t - this.g.lo) / (this.g.hi - this.g.lo) * this.width; }
  time(x) { return Math.round(this.g.lo + x / this.width * (this.g.hi - this.g.lo)); }
  laneAt(y) { return y < axis + tall ? 0 : 1 + Math.floor((y - axis - tall) / low); }

  draw() {
    const g = this.g;
    if (!g) return;
    const { lo, hi } = this.app.state, c = palette(), dpr = devicePixelRatio || 1, w = this.width, h = axis + tall + (g.lanes.length - 1) * low;
    const cv = this.canvas;
    cv.width = Math.round(w * dpr);
    cv.height = Math.round(h * dpr);
    cv.style.width = `${w}px`;
    cv.style.height = `${h}px`;
    const x = cv.getContext('2d');
    x.setTransform(dpr, 0, 0, dpr, 0, 0);
    x.font = '11px system-ui, sans-serif';
    x.textBaseline = 'middle';
    // The axis.
    const step = nice((g.hi - g.lo) / Math.max(2, w / 110));
    x.fillStyle = c.dim;
    x.strokeStyle = c.grid;
    x.lineWidth = 1;
    for (let t = Math.ceil(g.lo / step) * step, n = 0; t < g.hi && n < w; t += step, n++) { // late times are too coarse for small steps
      const px = Math.round(this.x(t)) + 0.5;
      x.beginPath();
      x.moveTo(px, 0);
      x.lineTo(px, h);
      x.stroke();
      if (px < w - 40) x.fillText(t ? tick(t, step) : '0', px + 4, axis / 2);
    }
    const bins = g.lanes[0].all.length, bw = w / bins;
    let y = axis;
    g.lanes.forEach((l, k) => {
      const height = k ? low : tall, most = Math.max(...k ? this.most(g) : l.all, 1), at = n => n ? Math.max(1, (height - 4) * Math.min(1, n / most)) : 0;
      const steps = list => {
        x.beginPath();
        x.moveTo(0, y + height - 1);
        for (let i = 0; i < bins; i++) {
          const top = y + height - 1 - at(list[i]);
          x.lineTo(i * bw, top);
          x.lineTo((i + 1) * bw, top);
        }
        x.lineTo(w, y + height - 1);
      };
      for (const [list, fill] of [[l.all, c.same], [l.kept, c.area]]) {
        steps(list);
        x.fillStyle = fill;
        x.fill();
      }
      x.strokeStyle = c.accent;
      x.stroke();
      y += height;
      x.fillStyle = c.grid;
      x.fillRect(0, y - 1, w, 1);
    });
    const sel = this.drag ? [...this.drag].sort((a, b) => a - b) : hi ? [this.x(lo), this.x(hi)] : null;
    if (sel) {
      x.fillStyle = c.paper;
      x.globalAlpha = 0.62;
      x.fillRect(0, 0, Math.max(0, sel[0]), h);
      x.fillRect(sel[1], 0, w, h);
      x.globalAlpha = 1;
      x.fillStyle = c.accent;
      for (const s of sel) x.fillRect(Math.round(s) - 1, 0, 2, h);
    }
    $('range').textContent = this.drag ? `${this.when(this.time(sel[0]))} to ${this.when(this.time(sel[1]))}` : hi ? `${this.when(lo)} to ${this.when(hi)} chosen` : `${seconds(g.hi - g.lo, 4)}`;
    $('clear').hidden = $('into').hidden = !hi;
    $('out').hidden = g.lo === 0 && g.hi >= this.app.info.duration;
  }

  // when is a moment: by the clock on the wall where samples are of intervals, else since the first sample.
  when(t) {
    const { interval, start } = this.app.info;
    return interval ? new Date(start + t / 1e6).toLocaleTimeString() : seconds(t, 5);
  }

  // most is the scale of the lanes of threads: the same for all, so that they can be compared.
  most(g) {
    if (this.scaled !== g) {
      this.scaled = g;
      this.scale = [g.lanes.slice(1).reduce((m, l) => Math.max(m, ...l.all), 1)];
    }
    return this.scale;
  }

  point(e) {
    const g = this.g, l = g?.lanes[this.laneAt(e.offsetY)];
    if (!l) return;
    const i = Math.max(0, Math.min(l.all.length - 1, Math.floor(e.offsetX / this.width * l.all.length))), t = l.thread;
    // Of waits there are thousandths of a thread, of snapshots bytes or objects.
    const memory = n => this.app.state.by === 'periods' ? bytes(n * g.unit) : `${comma(n * g.unit)} objects`;
    const number = n => g.unit ? memory(n) : !g.waits ? comma(n) : t ? percent(n, 1000) : `${+(n / 1000).toFixed(2)} threads`;
    const what = g.unit ? this.app.info.events[0]?.name || 'Memory' : g.waits ? 'Blocked' : 'Samples';
    this.app.tip(e, {
      name: t ? `${t.comm} ${t.tid}` : 'All threads',
      lines: [['At', this.when(this.time(e.offsetX))], [what, number(l.all[i])], ...l.kept[i] !== l.all[i] ? [['Matching', number(l.kept[i])]] : []],
      notes: [t ? `process ${t.pid}; click to see this thread only` : 'drag to choose a range of time', ...g.unit ? [g.grows ? 'what was added, from snapshot to snapshot' : 'a range shows the snapshot at its end'] : [], ...this.app.info.interval ? [`within ${seconds(this.app.info.interval)}, samples are drawn evenly: when they were taken is not known`] : []],
    });
  }

  select(range) {
    if (range && range[1] <= range[0]) range = null;
    this.app.set({ lo: range ? range[0] : '', hi: range ? range[1] : '' });
  }

  key(e) {
    if (!this.g) return;
    const { lo, hi } = this.app.state, { lo: from, hi: to } = this.g, step = (to - from) / 40;
    const clamp = t => Math.round(Math.max(from, Math.min(to, t)));
    let a = lo === '' ? from : lo, b = hi || to;
    switch (e.key) {
      case 'ArrowRight': e.shiftKey ? b += step : !hi ? b = a + 4 * step : (a += step, b += step); break;
      case 'ArrowLeft': e.shiftKey ? b -= step : !hi ? a = b - 4 * step : (a -= step, b -= step); break;
      case 'ArrowDown': if (!this.open) this.toggle(); return;
      case '+': if (hi) this.look(lo, hi); return;
      case '-': this.look(0, this.app.info.duration); return;
      case 'Escape': this.select(null); e.stopPropagation(); return;
      default: return;
    }
    e.preventDefault();
    if (clamp(b) > clamp(a)) this.select([clamp(a), clamp(b)]);
  }
}

// nice is the step of an axis that is 1, 2 or 5 times a power of ten, at least so large.
function nice(least) {
  const p = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map(k => k * p).find(s => s >= least);
}

function tick(t, step) {
  const [f, unit] = step >= 1e8 ? [1e9, 's'] : step >= 1e5 ? [1e6, 'ms'] : step >= 100 ? [1e3, 'µs'] : [1, 'ns'];
  return `${+(t / f).toFixed(1)} ${unit}`;
}
