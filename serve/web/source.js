// Source and instructions of a function, with the samples of each line.
import { Channel, base, el, offline, percent, weight } from './model.js';

const maxLines = 5000;

export class Source {
  constructor(box, app) {
    this.box = box;
    this.app = app;
    this.channel = new Channel();
    this.closed = new Set();
    this.mode = 'source';
  }

  async load() {
    const { fn } = this.app.state;
    if (offline.ask) return this.note('A saved page has no source: unspool serve shows it, from the recording.');
    if (!this.app.info.source) return this.note('Source is shown for recordings of this machine: perf.data files. A pprof profile does not lead to binaries.');
    if (fn === '') return this.note('Choose a function in another view, then come back, or press s there.');
    this.note('…');
    let a;
    try {
      a = await this.channel.ask('source', { ...this.app.params(), fn });
    } catch (e) {
      return this.note(e.message);
    }
    if (a) this.show(a);
  }

  note(text) { this.box.replaceChildren(el('p', { class: 'empty' }, text)); }

  show(a) {
    this.a = a;
    const unit = this.app.unit(), lines = a.lines || [], insts = a.insts || [];
    if (!lines.length && this.mode === 'source' && insts.length) this.mode = 'code';
    const mode = (id, text) => el('button', { 'aria-pressed': this.mode === id, onclick: () => { this.mode = id; this.show(a); } }, text);
    const head = el('div', { class: 'shead' },
      el('h2', {}, a.func), el('p', { class: 'dim' }, `${base(a.module)} · total ${percent(a.total, a.all)} (${weight(a.total, unit)}) · self ${percent(a.self, a.all)} (${weight(a.self, unit)}), with calls inlined in it; below, shares of the function`),
      ...(a.notes || []).map(n => el('p', { class: 'note' }, n)),
      el('div', { class: 'seg' }, mode('source', 'Source'), mode('code', 'Instructions')));
    const list = el('div', { class: 'code', tabindex: 0, role: 'table', 'aria-label': `${a.func}, by line` });
    const most = (this.mode === 'source' ? lines : insts).reduce((m, l) => Math.max(m, l.total), 1);
    const cells = l => [el('span', { class: 'c', role: 'cell' }, l.self ? percent(l.self, a.total) : ''), el('span', { class: 'c', role: 'cell' }, l.total ? percent(l.total, a.total) : '')];
    const heat = (e, l) => {
      if (l.total) e.style.setProperty('--heat', `${Math.round(70 * Math.sqrt(l.total / most))}%`);
      return e;
    };
    const inst = i => heat(el('div', { class: 'ln inst', role: 'row', title: i.bytes }, ...cells(i), el('span', { class: 'no', role: 'cell' }, i.addr.toString(16)),
      el('span', { class: 'tx', role: 'cell' }, i.text, i.targetName ? el('span', { class: 'dim' }, ` ${i.targetName}`) : '')), i);
    list.append(el('div', { class: 'ln lh', role: 'row' }, ...['Self', 'Total', this.mode === 'source' ? 'Line' : 'Address', ''].map(t => el('span', { class: t ? 'c' : 'tx', role: 'columnheader' }, t))));
    let file = '', hottest = null, n = 0, last = 0;
    if (this.mode === 'source') {
      for (const l of lines) {
        if (n++ > maxLines) break;
        if (l.file !== file) list.append(el('div', { class: 'file' }, file = l.file));
        else if (l.line > last + 1) list.append(el('div', { class: 'ln skip' }, '⋯'));
        last = l.line;
        const more = (l.insts || []).length > 0, row = heat(el('div', { class: 'ln' + (more ? ' more' : ''), role: 'row' }, ...cells(l), el('span', { class: 'no', role: 'cell' }, l.line), el('span', { class: 'tx', role: 'cell' }, l.text || ' ')), l);
        if (more) {
          row.tabIndex = -1;
          row.setAttribute('aria-expanded', 'false');
          const open = () => {
            if (row.kids) row.kids.forEach(k => k.remove());
            row.kids = row.kids ? null : l.insts.slice(0, 500).map(k => inst(insts[k]));
            if (row.kids) row.after(...row.kids);
            row.setAttribute('aria-expanded', !!row.kids);
          };
          row.addEventListener('click', open);
          row.addEventListener('keydown', e => { if (e.key === 'Enter') { open(); e.stopPropagation(); } });
        }
        list.append(row);
        if (!hottest || l.self > hottest[0]) hottest = [l.self, row];
      }
    } else {
      for (const i of insts.slice(0, maxLines)) {
        const row = inst(i);
        list.append(row);
        if (!hottest || i.self > hottest[0]) hottest = [i.self, row];
      }
    }
    list.addEventListener('keydown', e => {
      const rows = [...list.querySelectorAll('.more')], d = { ArrowDown: 1, ArrowUp: -1 }[e.key];
      if (!d || !rows.length) return;
      e.preventDefault();
      rows[Math.max(0, Math.min(rows.length - 1, rows.indexOf(document.activeElement) + d))].focus();
    });
    this.box.replaceChildren(head, list);
    if (hottest && hottest[0]) hottest[1].scrollIntoView({ block: 'center' });
  }
}
