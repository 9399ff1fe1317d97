// Short names of functions, for the flame graph and for the page of package serve.

// fit shortens a name to n columns: first the parameters go, then the arguments of templates, then the
// namespaces; what is still too long is cut.
function fit(name, n) {
  if (columns(name) <= n) return name;
  if (n < 3) return '';
  let s = '';
  for (s of forms(name)) if (columns(s) <= n) return s;
  const out = [];
  let left = n - 1;
  for (const c of s) if ((left -= columns(c)) >= 0) out.push(c); else break;
  return out.join('') + '…';
}

const wide = /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60]/g;
const columns = s => s.length + (s.match(wide) || []).length;

const shorter = new Map();

function forms(name) {
  let f = shorter.get(name);
  if (!f) {
    const plain = fold(name, '(', ')', '()'), bare = fold(plain, '<', '>', '<…>');
    if (shorter.size > 50000) shorter.clear();
    shorter.set(name, f = [plain, bare, last(bare)]);
  }
  return f;
}

const operator = /operator ?(\(\)|\[\]|<=>|->\*?|<<=?|>>=?|<=?|>=?)/y;

// fold replaces what open and close enclose. "(anonymous namespace)", Go's "(*T)", operators, and what Rust begins with stay.
function fold(s, open, close, by) {
  let out = '', depth = 0;
  for (let i = 0; i < s.length; i++) {
    operator.lastIndex = i;
    const op = s[i] === 'o' && operator.exec(s);
    if (op) {
      if (!depth) out += op[0];
      i += op[0].length - 1;
    } else if (s[i] === open && (depth || open === '<' && i || open === '(' && !/^\((anonymous|\*)/.test(s.slice(i, i + 11)))) {
      if (!depth++) out += by;
    } else if (s[i] === close && depth && s[i - 1] !== '-') {
      depth--;
    } else if (!depth) out += s[i];
  }
  return depth ? s : out;
}

// last is a name without the namespaces, or packages, in front.
function last(s) {
  const go = s.lastIndexOf('/');
  const path = go > 0 && !/[ <(:]/.test(s.slice(0, go)) ? s.slice(go + 1) : s;
  const at = path.replace(/ const$/, '').lastIndexOf('::');
  return at > 0 ? path.slice(at + 2) : path;
}
