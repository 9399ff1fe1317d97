// The table of functions: as many rows as there are, of which those in sight are asked for.
import { Channel, Kind, base, colour, comma, el, palette, percent, points, weight } from './model.js';

const row = 26, page = 200;

export class Table {
  constructor(box, app) {
    this.box = box;
    this.app = app;
    this.pages = new Map();
    this.asked = new Set(); // channels that are waited for
    this.count = 0;
    this.at = 0;
    this.sort = 'self';
    this.down = true;
    this.head = el('div', { class: 'tr th', role: 'row' });
    this.body = el('div', { class: 'tbody', role: 'rowgroup' });
    this.scroll = el('div', { class: 'tscroll', tabindex: 0, role: 'table', 'aria-label': 'Functions' }, el('div', { role: 'rowgroup', class: 'thead' }, this.head), this.body);
    box.append(this.scroll);
    this.scroll.addEventListener('scroll', () => this.draw());
    this.scroll.addEventListener('keydown', e => this.key(e));
    new ResizeObserver(() => this.draw()).observe(box);
  }

  columns() {
    const two = this.app.info.inputs.length > 1;
    const unit = this.app.unit();
    const all = [['self', `Self, ${unit}`], ['delta', 'Self, change'], ['total', `Total, ${unit}`], ['tdelta', 'Total, change'], ['module', 'Module'], ['name', 'Function']];
    return two ? all : all.filter(([id]) => !id.includes('delta'));
  }

  // load forgets all rows and asks for those in sight.
  load() {
    const asked = JSON.stringify([this.app.params(), this.app.state.search]);
    if (asked !== this.query) {
      this.at = this.scroll.scrollTop = 0;
      this.query = asked;
    }
    this.pages.clear();
    for (const c of this.asked) c.stop();
    this.asked.clear();
    this.version = (this.version || 0) + 1;
    this.head.replaceChildren(...this.columns().map(([id, text]) => el('div', { role: 'columnheader', class: 'c-' + id, 'aria-sort': this.sort === id ? this.down ? 'descending' : 'ascending' : 'none' },
      el('button', { onclick: () => this.by(id) }, text, el('span', { class: 'arrow', 'aria-hidden': 'true' }, this.sort === id ? this.down ? '↓' : '↑' : '')))));
    return this.need(Math.floor(Math.floor(this.scroll.scrollTop / row) / page));
  }

  by(id) {
    this.down = this.sort === id ? !this.down : id !== 'name' && id !== 'module';
    this.sort = id;
    this.scroll.scrollTop = 0;
    this.at = 0;
    this.load();
  }

  async need(n) {
    if (this.pages.has(n)) return;
    const entry = { rows: [] }, version = this.version, channel = new Channel();
    this.pages.set(n, entry);
    this.asked.add(channel);
    let t;
    try {
      t = await channel.ask('top', { ...this.app.params(), match: this.app.state.search, sort: this.sort, dir: this.down ? '' : 'up', offset: n * page, limit: page });
    } catch (e) {
      if (version === this.version) this.app.fail(e);
      return;
    }
    this.asked.delete(channel);
    if (!t || version !== this.version) return;
    entry.rows = t.rows;
    this.all = t.all;
    this.count = t.count;
    this.most = t.most;
    this.scroll.setAttribute('aria-rowcount', t.count);
    this.app.loaded(this, t);
    if (this.app.chosenBy === this && this.app.chosen) {
      const same = [...this.pages.values()].flatMap(p => p.rows).find(r => r.id === this.app.chosen.id);
      if (same || t.count <= page) this.app.numbers(same && this.describe(same));
    }
    this.draw();
  }

  draw() {
    if (!this.all) return;
    const h = this.scroll.clientHeight, first = Math.max(0, Math.floor(this.scroll.scrollTop / row) - 5), last = Math.min(this.count, first + Math.ceil(h / row) + 10);
    this.body.style.height = `${this.count * row}px`;
    const out = [];
    for (let i = first; i < last; i++) {
      const p = this.pages.get(Math.floor(i / page)), r = p?.rows[i % page];
      if (!p) this.need(Math.floor(i / page));
      out.push(this.line(i, r));
    }
    this.body.replaceChildren(...out);
    if (!this.count) this.body.replaceChildren(el('p', { class: 'empty' }, 'No function matches.'));
  }

  line(i, r) {
    const e = el('div', { class: 'tr' + (i === this.at ? ' at' : ''), role: 'row', 'aria-rowindex': i + 1 });
    e.style.top = `${i * row}px`;
    if (!r) return e;
    const unit = this.app.unit(), all = this.all[0], info = this.app.info;
    const share = (n, id, most) => {
      const fill = el('i');
      fill.style.width = `${100 * n / (most || 1)}%`;
      return el('div', { class: 'c-' + id, role: 'cell', title: weight(n, unit) }, el('span', { class: 'p' }, percent(n, all)),
        el('span', { class: 'meter', 'aria-hidden': 'true' }, fill), el('span', { class: 'n' }, unit === 'ns' ? weight(n, unit) : comma(n)));
    };
    const cells = [];
    for (const [id, n, most] of [['self', r.self, this.most], ['total', r.total, all]]) {
      cells.push(share(n[0], id, most));
      if (info.inputs.length < 2) continue;
      const d = n[0] / (all || 1) - n[1] / (this.all[1] || 1);
      cells.push(el('div', { class: `c-${id === 'self' ? '' : 't'}delta ` + (d > 0 ? 'more' : d < 0 ? 'less' : ''), role: 'cell', title: `was ${percent(n[1], this.all[1])}` }, points(d)));
    }
    const dot = el('i', { class: 'dot' });
    dot.style.background = colour(palette(), r, info.modules);
    cells.push(el('div', { class: 'c-module', role: 'cell' }, dot, r.kind === Kind.none ? '' : base(info.modules[r.module].path)));
    cells.push(el('div', { class: 'c-name', role: 'cell', title: r.text }, r.text));
    e.append(...cells);
    e.addEventListener('click', () => this.choose(i));
    e.addEventListener('dblclick', () => this.app.go('sandwich', r.id));
    return e;
  }

  row(i) { return this.pages.get(Math.floor(i / page))?.rows[i % page]; }

  choose(i) {
    this.at = Math.max(0, Math.min(this.count - 1, i));
    const y = this.at * row, view = this.scroll.clientHeight - 30;
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    else if (y + row > this.scroll.scrollTop + view) this.scroll.scrollTop = y + row - view;
    this.draw();
    const r = this.row(this.at);
    if (!r) return;
    const d = this.describe(r);
    this.app.choose(r, d, this);
    this.app.say(`${r.text}, ${d.lines.map(l => l.join(' ')).join(', ')}`);
  }

  describe(r) {
    const lines = [['Self', percent(r.self[0], this.all[0])], ['Total', percent(r.total[0], this.all[0]), weight(r.total[0], this.app.unit())]];
    return { name: r.text, lines, notes: [base(this.app.info.modules[r.module].path)] };
  }

  key(e) {
    const many = Math.floor(this.scroll.clientHeight / row) - 2;
    const to = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, PageDown: this.at + many, PageUp: this.at - many, Home: 0, End: this.count - 1 }[e.key];
    if (e.target.tagName === 'BUTTON') return;
    if (to !== undefined) {
      e.preventDefault();
      this.choose(to);
    } else if (e.key === 'Enter' && this.row(this.at)) this.app.go('sandwich', this.row(this.at).id);
  }
}
