/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frames.c: reads .eh_frame and .eh_frame_hdr (LSB core 5.0, section 10.6; DWARF 5, section 6.4), one FDE at a time, and
 * makes the rule that holds at one program counter. docs/SEMANTICS.md says what the instructions mean. What lies behind
 * the program counter is not read: an FDE that is damaged there still counts, which is where this reader is more
 * lenient than the one in Go.
 *
 * Nothing here trusts a byte: all reads go through the window, all loops consume input or are bounded.
 */
#define _GNU_SOURCE
#include "core.h"
#include "unspool_table.h"

#include <string.h>
#include <sys/mman.h>

/* ---- Numbers ---- */

/* A reader of the window from at up to end. After a number that is cut off or too large, bad is set. */
struct reader {
	struct us_window *w;
	uint64_t at, end;
	int bad;
};

static US_COLD int refill(struct us_window *w, uint64_t at)
{
	return w->refill && w->refill(w, at) && at >= w->lo && at < w->hi;
}

US_INLINE uint8_t u8(struct reader *r)
{
	struct us_window *w = r->w;
	uint64_t at = r->at;

	if (us_unlikely(at >= r->end) || (us_unlikely(at < w->lo || at >= w->hi) && !refill(w, at))) {
		r->bad = 1;
		return 0;
	}
	r->at++;
	return w->p[at - w->lo];
}

static US_COLD uint64_t fixed_slow(struct reader *r, unsigned n)
{
	uint64_t v = 0;

	if (r->end - r->at < n || r->at > r->end) {
		r->bad = 1;
		return 0;
	}
	for (unsigned i = 0; i < n; i++)
		v |= (uint64_t)u8(r) << 8 * i;
	return v;
}

US_INLINE uint64_t fixed(struct reader *r, unsigned n)
{
	uint64_t v = 0, off = r->at - r->w->lo, size = r->w->hi - r->w->lo;

	if (us_unlikely(r->at > r->end || r->end - r->at < n || off >= size || size - off < n))
		return fixed_slow(r, n);
	memcpy(&v, r->w->p + off, n);
	r->at += n;
	return v;
}

static uint64_t uleb(struct reader *r)
{
	uint64_t v = 0;

	for (unsigned shift = 0;; shift = shift < 64 ? shift + 7 : shift) {
		uint8_t c = u8(r);
		uint64_t low = c & 0x7f;

		if (r->bad || (shift >= 64 && low) || (shift == 63 && low > 1)) {
			r->bad = 1;
			return 0;
		}
		if (shift < 64)
			v |= low << shift;
		if (c < 0x80)
			return v;
	}
}

static int64_t sleb(struct reader *r)
{
	uint64_t v = 0;

	for (unsigned shift = 0;;) {
		uint8_t c = u8(r);
		uint64_t low = c & 0x7f, sign = (uint64_t)((int64_t)v >> 63) & 0x7f;

		if (r->bad)
			return 0;
		if (shift < 63)
			v |= low << shift;
		else if (shift == 63 && (low == 0 || low == 0x7f))
			v |= low << 63;
		else if (shift == 63 || low != sign) {
			r->bad = 1;
			return 0;
		}
		if (shift < 64)
			shift += 7;
		if (c < 0x80) {
			if (shift < 64 && c & 0x40)
				v |= ~(uint64_t)0 << shift;
			return (int64_t)v;
		}
	}
}

/* Pointer encodings. */
enum {
	PE_absptr = 0x00,
	PE_uleb128 = 0x01,
	PE_udata2 = 0x02,
	PE_udata4 = 0x03,
	PE_udata8 = 0x04,
	PE_signed = 0x08,
	PE_sleb128 = 0x09,
	PE_sdata2 = 0x0a,
	PE_sdata4 = 0x0b,
	PE_sdata8 = 0x0c,
	PE_pcrel = 0x10,
	PE_datarel = 0x30,
	PE_funcrel = 0x40,
	PE_aligned = 0x50,
	PE_indirect = 0x80,
	PE_omit = 0xff,
};

/* The raw value of a pointer in one of the formats. */
static uint64_t raw(struct reader *r, unsigned format)
{
	switch (format) {
	case PE_absptr:
	case PE_signed:
	case PE_udata8:
	case PE_sdata8:
		return fixed(r, 8);
	case PE_uleb128:
		return uleb(r);
	case PE_sleb128:
		return (uint64_t)sleb(r);
	case PE_udata2:
		return fixed(r, 2);
	case PE_sdata2:
		return (uint64_t)(int64_t)(int16_t)fixed(r, 2);
	case PE_udata4:
		return fixed(r, 4);
	case PE_sdata4:
		return (uint64_t)(int64_t)(int32_t)fixed(r, 4);
	}
	r->bad = 1;
	return 0;
}

/* A pointer, not followed where it is indirect; 0 for none. */
static uint64_t encoded(struct reader *r, uint8_t enc, uint64_t data, uint64_t fn)
{
	uint64_t at, v;

	if (enc == PE_omit)
		return 0;
	if ((enc & 0x70) == PE_aligned) {
		r->at += -r->at & 7;
		if (enc & 0x8f)
			r->bad = 1;
	}
	at = r->at;
	v = raw(r, enc & 0x0f);
	if (v == 0 || r->bad)
		return 0;
	switch (enc & 0x70) {
	case PE_absptr:
	case PE_aligned:
		return v;
	case PE_pcrel:
		return v + at;
	case PE_datarel:
		if (data)
			return v + data;
		break;
	case PE_funcrel:
		return v + fn;
	}
	r->bad = 1;
	return 0;
}

/* Follows an indirect pointer. */
static uint64_t follow(struct reader *r, uint64_t at)
{
	struct reader x = {r->w, at, at + 8, at > UINT64_MAX - 8};
	uint64_t v = fixed(&x, 8);

	r->bad |= x.bad;
	return v;
}

/* ---- Entries ---- */

/* The head of an entry: where its body starts and ends. kind: 0 terminator, 1 CIE, 2 FDE; -1 damaged. */
struct head {
	uint64_t body, end, cie;
};

static int open_head(struct us_window *w, uint64_t at, uint64_t limit, struct head *h)
{
	struct reader r = {w, at, limit, 0};
	uint64_t n = fixed(&r, 4), id, field;

	if (r.bad)
		return -1;
	if (n == 0) {
		h->end = r.at;
		return 0;
	}
	if (n == 0xffffffff)
		n = fixed(&r, 8);
	else if (n >= 0xfffffff0)
		return -1;
	if (r.bad || n < 4 || n > limit - r.at)
		return -1;
	field = r.at;
	h->end = field + n;
	id = fixed(&r, 4);
	if (r.bad)
		return -1;
	h->body = r.at;
	if (id == 0)
		return 1;
	if (id > field)
		return -1;
	h->cie = field - id;
	return 2;
}

/* Decodes the CIE at an address into fde. */
static int open_cie(struct us_window *w, uint64_t at, struct us_fde *f)
{
	struct head h;
	struct reader r;
	char aug[65];
	unsigned n = 0, version;
	uint64_t insns;

	if (open_head(w, at, UINT64_MAX - 64, &h) != 1)
		return US_DAMAGED;
	r = (struct reader){w, h.body, h.end, 0};
	version = u8(&r);
	if (version != 1 && version != 3 && version != 4 && version != 5)
		return US_DAMAGED;
	for (;;) {
		char c = (char)u8(&r);

		if (r.bad || n == sizeof aug)
			return US_DAMAGED;
		aug[n++] = c;
		if (c == 0)
			break;
	}
	if (aug[0] == 'e' && aug[1] == 'h' && aug[2] == 0)
		fixed(&r, 8); /* GCC 2: a pointer to exception data */
	else if (aug[0] && aug[0] != 'z')
		return US_DAMAGED;
	f->addr_size = 8;
	if (version >= 4) {
		if (u8(&r) != 8 || u8(&r) != 0)
			return US_DAMAGED; /* other address sizes and segments are not x86-64's */
	}
	f->caf = uleb(&r);
	f->daf = sleb(&r);
	f->ra = version == 1 ? u8(&r) : (uint32_t)uleb(&r);
	if (r.bad || f->caf > 1u << 24 || f->ra >= US_SLOTS)
		return US_DAMAGED;
	f->cie = at;
	f->cie_end = h.end;
	f->enc = PE_absptr;
	f->lsda_enc = f->handler_enc = PE_omit;
	f->handler = 0;
	f->signal = f->sized = 0;
	f->lsda_indirect = f->handler_indirect = 0;
	if (aug[0] == 'z') {
		uint64_t len = uleb(&r);

		if (r.bad || len > h.end - r.at)
			return US_DAMAGED;
		f->sized = 1;
		insns = r.at + len;
		r.end = insns;
		for (const char *c = aug + 1; *c && !r.bad; c++) {
			if (*c == 'L') {
				f->lsda_enc = u8(&r);
			} else if (*c == 'R') {
				f->enc = u8(&r);
			} else if (*c == 'P') {
				f->handler_enc = u8(&r);
				if (f->handler_enc != PE_omit) {
					f->handler = encoded(&r, f->handler_enc & 0x7f, 0, 0);
					f->handler_indirect = f->handler_enc >> 7;
				}
			} else if (*c == 'S') {
				f->signal = 1;
			} else if (*c != 'B' && *c != 'G') {
				break; /* its data and what follows are skipped by their length */
			}
		}
		if (r.bad)
			return US_DAMAGED;
		r.at = insns;
		r.end = h.end;
	}
	f->cie_insns = r.at;
	return r.bad ? US_DAMAGED : US_FOUND;
}

/* Decodes the FDE behind head h. */
static int open_fde(struct us_window *w, uint64_t at, const struct head *h, struct us_fde *f)
{
	struct reader r = {w, h->body, h->end, 0};
	uint64_t size, format;

	if (open_cie(w, h->cie, f) != US_FOUND)
		return US_DAMAGED;
	f->at = at;
	f->end = h->end;
	if (f->enc == PE_omit)
		return US_DAMAGED;
	f->lo = encoded(&r, f->enc & 0x7f, 0, 0);
	if (f->lo && f->enc & PE_indirect)
		f->lo = follow(&r, f->lo);
	format = f->enc & 0x0f;
	if (format != PE_sleb128)
		format &= ~(uint64_t)PE_signed;
	size = raw(&r, (unsigned)format);
	f->hi = f->lo + size;
	if (r.bad || f->hi < f->lo)
		return US_DAMAGED;
	f->lsda = 0;
	if (f->sized) {
		uint64_t n = uleb(&r);

		if (r.bad || n > h->end - r.at)
			return US_DAMAGED;
		f->insns = r.at + n;
		if (f->lsda_enc != PE_omit) {
			r.end = f->insns;
			f->lsda = encoded(&r, f->lsda_enc & 0x7f, 0, f->lo);
			f->lsda_indirect = f->lsda_enc >> 7;
			if (r.bad)
				f->lsda = 0;
		}
	} else {
		f->insns = r.at;
	}
	return US_FOUND;
}

int us_fde_open(struct us_window *w, uint64_t at, struct us_fde *f)
{
	struct head h;

	if (open_head(w, at, UINT64_MAX - 64, &h) != 2)
		return US_DAMAGED;
	return open_fde(w, at, &h, f);
}

/* ---- Finding ---- */

int us_frames_open(struct us_frames *f, struct us_window *w, uint64_t hdr)
{
	struct reader r = {w, hdr, hdr > UINT64_MAX - 64 ? hdr : hdr + 64, 0};
	uint8_t version = u8(&r), eh = u8(&r), count = u8(&r), table = u8(&r);

	memset(f, 0, sizeof *f);
	if (r.bad || version != 1)
		return US_DAMAGED;
	f->hdr = hdr;
	f->eh_frame = encoded(&r, eh & 0x7f, hdr, 0);
	if (r.bad)
		return US_DAMAGED;
	if (eh & PE_indirect)
		f->eh_frame = 0;
	if (count == PE_omit || table != (PE_datarel | PE_sdata4))
		return US_FOUND;
	f->n = encoded(&r, count & 0x0f, hdr, 0);
	f->table = r.at;
	if (r.bad || f->n > (UINT64_MAX - f->table) / 8)
		f->n = 0;
	return US_FOUND;
}

/* The first number of pair i: an address. */
static uint64_t pair(struct us_window *w, const struct us_frames *f, uint64_t i, unsigned which, int *bad)
{
	struct reader r = {w, f->table + 8 * i + 4 * which, f->table + 8 * i + 8, 0};
	uint64_t v = f->hdr + (uint64_t)(int64_t)(int32_t)fixed(&r, 4);

	*bad |= r.bad;
	return v;
}

/* Without a search table: all entries, one after the other. The greatest start that contains pc wins. */
static US_COLD int scan(const struct us_frames *f, struct us_window *w, uint64_t pc, struct us_fde *fde)
{
	uint64_t limit = f->eh_end ? f->eh_end : UINT64_MAX - 64;
	int found = US_NOT_FOUND;
	struct us_fde x;
	struct head h;

	if (!f->eh_frame)
		return US_NOT_FOUND;
	for (uint64_t at = f->eh_frame; at < limit; at = h.end) {
		int kind = open_head(w, at, limit, &h);

		if (kind < 0 || (kind == 0 && !f->eh_end))
			break;
		if (kind == 2 && open_fde(w, at, &h, &x) == US_FOUND && x.lo && x.lo <= pc && pc < x.hi &&
		    (found != US_FOUND || x.lo > fde->lo)) {
			*fde = x;
			found = US_FOUND;
		}
	}
	return found;
}

/* The number of pairs whose start is not above pc, of a table that is all in the window. */
static uint64_t search(const struct us_frames *f, const uint8_t *table, uint64_t pc)
{
	int64_t key = (int64_t)(pc - f->hdr);
	const uint8_t *p = table;
	int32_t v;

	for (uint64_t n = f->n; n > 0;) {
		uint64_t half = (n + 1) / 2;

		memcpy(&v, p + 8 * (half - 1), 4);
		p = v <= key ? p + 8 * half : p; /* without a branch, which would be wrong half of the time */
		n = v <= key ? n - half : half - 1;
	}
	return (uint64_t)(p - table) / 8;
}

int us_frames_find(const struct us_frames *f, struct us_window *w, uint64_t pc, struct us_fde *fde)
{
	uint64_t lo = 0, hi = f->n, at;
	int bad = 0;

	if (f->n == 0)
		return scan(f, w, pc, fde);
	if (f->table >= w->lo && f->table < w->hi && f->n <= (w->hi - f->table) / 8)
		lo = hi = search(f, w->p + (f->table - w->lo), pc);
	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (pair(w, f, mid, 0, &bad) <= pc)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (bad || lo == 0)
		return bad ? US_DAMAGED : US_NOT_FOUND;
	lo--;
	at = pair(w, f, lo, 0, &bad);
	for (unsigned n = 0; lo > 0 && n < 64 && pair(w, f, lo - 1, 0, &bad) == at; n++)
		lo--;
	at = pair(w, f, lo, 1, &bad);
	if (bad || us_fde_open(w, at, fde) != US_FOUND)
		return US_DAMAGED;
	return pc >= fde->lo && pc < fde->hi ? US_FOUND : US_NOT_FOUND;
}

/* ---- Instructions ---- */

/* A value of an expression: its address and its length. */
struct block {
	uint64_t at, n;
};

/* A register's rule: kind is UNSPOOL_UNDEFINED and the like; off an offset, a register, or an expression's address. */
struct reg_rule {
	int64_t off;
	uint32_t len;
	uint32_t kind;
};

/* A set of rules. Of the registers, only those whose bit is in has have one, and are initialized. */
struct set {
	uint32_t has;
	uint8_t cfa_kind, behind;
	uint16_t cfa_reg;
	int64_t cfa_off;
	struct block cfa_expr;
	struct reg_rule reg[US_SLOTS];
};

static void copy_set(struct set *to, const struct set *from)
{
	memcpy(to, from, offsetof(struct set, reg));
	for (uint32_t m = from->has; m; m &= m - 1)
		to->reg[__builtin_ctz(m)] = from->reg[__builtin_ctz(m)];
}

enum { INLINE_DEPTH = 6, MAX_DEPTH = 4096 };

/* The sets that remember_state has pushed: a few here, all in pages of their own where they are more. */
struct stack {
	struct set *sets;
	unsigned n, room;
	struct set few[INLINE_DEPTH];
};

static US_COLD int grow(struct stack *s)
{
	unsigned room = s->room * 4;
	struct set *p;

	if (room > MAX_DEPTH)
		return 0;
	p = mmap(NULL, room * sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	for (unsigned i = 0; i < s->n; i++)
		copy_set(&p[i], &s->sets[i]);
	if (s->sets != s->few)
		munmap(s->sets, s->room * sizeof *p);
	s->sets = p;
	s->room = room;
	return 1;
}

enum {
	CFA_advance_loc = 0x40,
	CFA_offset = 0x80,
	CFA_restore = 0xc0,
	CFA_nop = 0x00,
	CFA_set_loc = 0x01,
	CFA_advance_loc1 = 0x02,
	CFA_advance_loc2 = 0x03,
	CFA_advance_loc4 = 0x04,
	CFA_offset_extended = 0x05,
	CFA_restore_extended = 0x06,
	CFA_undefined = 0x07,
	CFA_same_value = 0x08,
	CFA_register = 0x09,
	CFA_remember_state = 0x0a,
	CFA_restore_state = 0x0b,
	CFA_def_cfa = 0x0c,
	CFA_def_cfa_register = 0x0d,
	CFA_def_cfa_offset = 0x0e,
	CFA_def_cfa_expression = 0x0f,
	CFA_expression = 0x10,
	CFA_offset_extended_sf = 0x11,
	CFA_def_cfa_sf = 0x12,
	CFA_def_cfa_offset_sf = 0x13,
	CFA_val_offset = 0x14,
	CFA_val_offset_sf = 0x15,
	CFA_val_expression = 0x16,
	CFA_MIPS_advance_loc8 = 0x1d,
	CFA_GNU_args_size = 0x2e,
	CFA_GNU_negative_offset_extended = 0x2f,
	CFA_LLVM_def_aspace_cfa = 0x30,
	CFA_LLVM_def_aspace_cfa_sf = 0x31,
};

static uint64_t reg(struct reader *r)
{
	uint64_t v = uleb(r);

	r->bad |= v > 0xffff;
	return v;
}

/* An unsigned operand, and one times the data alignment factor. */
static int64_t positive(struct reader *r)
{
	uint64_t v = uleb(r);

	r->bad |= v >> 63;
	return (int64_t)v;
}

static int64_t factored(struct reader *r, int64_t v, int64_t daf)
{
	int64_t p;

	if (__builtin_mul_overflow(v, daf, &p))
		r->bad = 1;
	return p;
}

static struct block block(struct reader *r)
{
	uint64_t n = uleb(r);
	struct block b = {r->at, n};

	if (r->bad || n > r->end - r->at || n > UINT32_MAX)
		r->bad = 1;
	else
		r->at += n;
	return b;
}

static void set_rule(struct set *s, uint64_t slot, unsigned kind, int64_t off, uint64_t len)
{
	if (slot >= US_SLOTS)
		return; /* a register that walking does not need */
	s->has |= 1u << slot;
	s->reg[slot] = (struct reg_rule){off, (uint32_t)len, kind};
}

/*
 * Runs instructions on s until the location passes pc. initial is what restore goes back to: NULL in a CIE. Returns 0
 * where they are damaged.
 */
static int run(struct us_window *w, const struct us_fde *f, uint64_t at, uint64_t end, uint64_t pc,
	       struct set *s, const struct set *initial)
{
	struct reader r = {w, at, end, 0};
	struct stack stack;
	uint64_t loc = f->lo, v, u;
	int64_t n;
	struct block b;

	stack.n = 0;
	stack.room = INLINE_DEPTH;
	stack.sets = stack.few;
	while (r.at < r.end && !r.bad) {
		uint8_t op = u8(&r), low = op & 0x3f;

		switch (op & 0xc0) {
		case CFA_advance_loc:
			v = low;
			goto advance;
		case CFA_offset:
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, low, UNSPOOL_OFFSET, n, 0);
			continue;
		case CFA_restore:
			v = low;
			goto restore;
		}
		switch (op) {
		case CFA_nop:
			break;
		case CFA_set_loc:
			u = encoded(&r, f->enc & 0x7f, 0, f->lo);
			if (u && f->enc & PE_indirect)
				u = follow(&r, u);
			if (u < loc || !initial)
				r.bad = 1;
			loc = u;
			if (loc > pc)
				goto done;
			break;
		case CFA_advance_loc1:
			v = fixed(&r, 1);
			goto advance;
		case CFA_advance_loc2:
			v = fixed(&r, 2);
			goto advance;
		case CFA_advance_loc4:
			v = fixed(&r, 4);
			goto advance;
		case CFA_MIPS_advance_loc8:
			v = fixed(&r, 8);
		advance:
			if (__builtin_mul_overflow(v, f->caf, &u) || loc + u < loc || (u && !initial))
				r.bad = 1;
			loc += u;
			if (loc > pc)
				goto done;
			break;
		case CFA_offset_extended:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, v, UNSPOOL_OFFSET, n, 0);
			break;
		case CFA_offset_extended_sf:
			v = reg(&r);
			n = factored(&r, sleb(&r), f->daf);
			set_rule(s, v, UNSPOOL_OFFSET, n, 0);
			break;
		case CFA_GNU_negative_offset_extended:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			if (n == INT64_MIN)
				r.bad = 1;
			else
				set_rule(s, v, UNSPOOL_OFFSET, -n, 0);
			break;
		case CFA_val_offset:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, v, UNSPOOL_VAL_OFFSET, n, 0);
			break;
		case CFA_val_offset_sf:
			v = reg(&r);
			n = factored(&r, sleb(&r), f->daf);
			set_rule(s, v, UNSPOOL_VAL_OFFSET, n, 0);
			break;
		case CFA_restore_extended:
			v = reg(&r);
		restore:
			if (!initial)
				r.bad = 1;
			else if (v < US_SLOTS && initial->has >> v & 1)
				set_rule(s, v, initial->reg[v].kind, initial->reg[v].off, initial->reg[v].len);
			else if (v < US_SLOTS)
				s->has &= ~(1u << v);
			break;
		case CFA_undefined:
			set_rule(s, reg(&r), UNSPOOL_UNDEFINED, 0, 0);
			break;
		case CFA_same_value:
			set_rule(s, reg(&r), UNSPOOL_SAME_VALUE, 0, 0);
			break;
		case CFA_register:
			v = reg(&r);
			u = reg(&r);
			set_rule(s, v, UNSPOOL_REGISTER, (int64_t)u, 0);
			break;
		case CFA_remember_state:
			if (stack.n == stack.room && !grow(&stack)) {
				r.bad = 1;
				break;
			}
			copy_set(&stack.sets[stack.n++], s);
			break;
		case CFA_restore_state:
			if (stack.n == 0)
				r.bad = 1;
			else
				copy_set(s, &stack.sets[--stack.n]);
			break;
		case CFA_def_cfa:
		case CFA_LLVM_def_aspace_cfa:
			s->cfa_reg = (uint16_t)reg(&r);
			s->cfa_off = positive(&r);
			goto def_cfa;
		case CFA_def_cfa_sf:
		case CFA_LLVM_def_aspace_cfa_sf:
			s->cfa_reg = (uint16_t)reg(&r);
			s->cfa_off = factored(&r, sleb(&r), f->daf);
		def_cfa:
			s->cfa_kind = UNSPOOL_CFA_REG;
			if (op == CFA_LLVM_def_aspace_cfa || op == CFA_LLVM_def_aspace_cfa_sf)
				positive(&r); /* the address space: all stacks lie in one */
			break;
		case CFA_def_cfa_register:
			/* After an expression, the offset is that of the last register rule before it. */
			if (s->cfa_kind != UNSPOOL_CFA_REG && !s->behind)
				r.bad = 1;
			s->cfa_kind = UNSPOOL_CFA_REG;
			s->cfa_reg = (uint16_t)reg(&r);
			break;
		case CFA_def_cfa_offset:
			n = positive(&r);
			goto def_cfa_offset;
		case CFA_def_cfa_offset_sf:
			n = factored(&r, sleb(&r), f->daf);
		def_cfa_offset:
			if (s->cfa_kind != UNSPOOL_CFA_REG)
				r.bad = 1;
			s->cfa_off = n;
			break;
		case CFA_def_cfa_expression:
			s->behind = s->behind || s->cfa_kind == UNSPOOL_CFA_REG;
			s->cfa_kind = UNSPOOL_CFA_EXPR;
			s->cfa_expr = block(&r);
			break;
		case CFA_expression:
		case CFA_val_expression:
			v = reg(&r);
			b = block(&r);
			set_rule(s, v, op == CFA_expression ? UNSPOOL_EXPR : UNSPOOL_VAL_EXPR, (int64_t)b.at, b.n);
			break;
		case CFA_GNU_args_size:
			positive(&r);
			break;
		default:
			r.bad = 1;
		}
	}
done:
	if (stack.sets != stack.few)
		munmap(stack.sets, stack.room * sizeof *stack.sets);
	return !r.bad;
}

/* ---- Rules ---- */

static int save_of(unsigned slot)
{
	for (unsigned i = 0; i < 7; i++)
		if (us_save_slot[i] == slot)
			return (int)i;
	return -1;
}

/* Makes a rule of 16 bytes without a wide; 0 if s does not fit one. */
static int narrow(const struct us_fde *f, const struct set *s, struct us_rule *r)
{
	int64_t least = 0;

	memset(r, 0, sizeof *r);
	r->flags = f->signal ? US_SIGNAL : 0;
	if (s->cfa_kind == UNSPOOL_CFA_NONE) {
		if (s->has >> f->ra & 1 && s->reg[f->ra].kind == UNSPOOL_UNDEFINED)
			r->flags |= US_OUTERMOST_FLAG;
		return 1;
	}
	if (s->cfa_kind != UNSPOOL_CFA_REG || s->cfa_reg >= US_SLOTS || s->cfa_off != (int32_t)s->cfa_off || f->ra != US_RA)
		return 0;
	r->kind = US_KIND_REG;
	r->reg = (uint8_t)s->cfa_reg;
	r->off = (int32_t)s->cfa_off;
	if (s->has >> US_RA & 1 && s->reg[US_RA].kind == UNSPOOL_UNDEFINED) {
		r->flags |= US_OUTERMOST_FLAG;
		return 1;
	}
	for (uint32_t m = s->has; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctz(m), k = s->reg[i].kind;
		int save = save_of(i);

		if (k == UNSPOOL_SAME_VALUE && i != US_RA && i != US_RSP && (f->signal || US_SAVED >> i & 1))
			continue;
		if (k != UNSPOOL_OFFSET || save < 0 || s->reg[i].off & 7)
			return 0;
		r->mask |= (uint8_t)(1 << save);
		if (s->reg[i].off < least)
			least = s->reg[i].off;
	}
	/* Without a rule, a return address is lost on x86-64; a rule of 16 bytes would take it for unchanged. */
	if (!(r->mask & 0x40))
		return 0;
	if (least < -1024) {
		int64_t aux = (-1024 - least + 1023) / 1024;

		if (least < -1024 * 256 || aux > 255)
			return 0;
		r->aux = (uint8_t)aux;
	}
	for (uint32_t m = r->mask; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctz(m);
		int64_t n = s->reg[us_save_slot[i]].off;

		if (n > 1 << 20)
			return 0;
		n = (n + 1024 * (int64_t)r->aux) / 8;
		if (n < -128 || n > 127)
			return 0;
		r->saves[i] = (int8_t)n;
	}
	return 1;
}

/*
 * Wides made here, each with its expressions behind it. Equal ones are one, so their number is bounded by what the
 * modules say, however often a rule is made.
 */
struct made {
	struct made *next;
	uint32_t hash, size;
	struct us_wides wides;
	uint8_t bytes[];
};

static struct made *_Atomic made[1 << 10];

static const struct us_wides *intern(const uint8_t *bytes, uint32_t wide, uint32_t size)
{
	uint32_t hash = 2166136261u;
	struct made *_Atomic *list;
	struct made *first, *m, *fresh = NULL;

	for (uint32_t i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	list = &made[(hash ^ hash >> 16) & ((1 << 10) - 1)];
	first = atomic_load_explicit(list, memory_order_acquire);
	do {
		for (m = first; m; m = m->next)
			if (m->hash == hash && m->size == size && m->wides.wide_size == wide && !memcmp(m->bytes, bytes, size))
				return &m->wides;
		if (!fresh) {
			fresh = us_alloc(sizeof *fresh + size);
			if (!fresh)
				return NULL;
			memcpy(fresh->bytes, bytes, size);
			fresh->hash = hash;
			fresh->size = size;
			fresh->wides = (struct us_wides){fresh->bytes, fresh->bytes + wide, wide, size - wide};
		}
		fresh->next = first;
	} while (!atomic_compare_exchange_weak_explicit(list, &first, fresh, memory_order_release, memory_order_acquire));
	return &fresh->wides;
}

enum { MAX_WIDE = 4096 };

static void put(uint8_t *to, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

/* Copies an expression behind the others; returns where it is, as a wide says it. */
static uint64_t copy(struct us_window *w, uint64_t at, uint64_t n, uint8_t *to, uint32_t *used, uint32_t room, int *bad)
{
	struct reader r = {w, at, at + n, 0};
	uint64_t where = *used | n << 32;

	if (n > room - *used) {
		*bad = 1;
		return 0;
	}
	for (uint64_t i = 0; i < n; i++)
		to[(*used)++] = u8(&r);
	*bad |= r.bad;
	return where;
}

static US_COLD int wide(struct us_window *w, const struct us_fde *f, const struct set *s, struct us_rule *r)
{
	enum { HEAD = UNSPOOL_WIDE_HEAD + US_SLOTS * UNSPOOL_WRULE_SIZE };
	uint8_t bytes[MAX_WIDE], *exprs = bytes + HEAD;
	uint32_t n = 0, used = 0, size;
	int bad = 0;
	uint64_t off = (uint64_t)s->cfa_off;

	memset(bytes, 0, HEAD);
	for (uint32_t m = s->has; m; m &= m - 1) {
		unsigned i = (unsigned)__builtin_ctz(m);
		uint8_t *x = bytes + UNSPOOL_WIDE_HEAD + n * UNSPOOL_WRULE_SIZE, k = (uint8_t)s->reg[i].kind;
		uint64_t v = (uint64_t)s->reg[i].off;

		n++;
		put(x + UNSPOOL_OFF_WRULE_OF, i, 2);
		x[UNSPOOL_OFF_WRULE_KIND] = k;
		if (k == UNSPOOL_REGISTER) {
			put(x + UNSPOOL_OFF_WRULE_REG, v, 2);
			v = 0;
		} else if (k == UNSPOOL_EXPR || k == UNSPOOL_VAL_EXPR) {
			v = copy(w, v, s->reg[i].len, exprs, &used, MAX_WIDE - HEAD, &bad);
		}
		put(x + UNSPOOL_OFF_WRULE_OFF, v, 8);
	}
	if (s->cfa_kind == UNSPOOL_CFA_EXPR)
		off = copy(w, s->cfa_expr.at, s->cfa_expr.n, exprs, &used, MAX_WIDE - HEAD, &bad);
	if (bad)
		return US_DAMAGED;
	bytes[UNSPOOL_OFF_WIDE_CFA_KIND] = s->cfa_kind;
	bytes[UNSPOOL_OFF_WIDE_FLAGS] = f->signal ? US_SIGNAL : 0;
	put(bytes + UNSPOOL_OFF_WIDE_RA, f->ra, 2);
	put(bytes + UNSPOOL_OFF_WIDE_CFA_REG, s->cfa_reg, 2);
	put(bytes + UNSPOOL_OFF_WIDE_N_RULES, n, 2);
	put(bytes + UNSPOOL_OFF_WIDE_OFF, off, 8);
	size = UNSPOOL_WIDE_HEAD + n * UNSPOOL_WRULE_SIZE;
	if (used)
		memmove(bytes + size, exprs, used);
	memset(r, 0, sizeof *r);
	r->kind = US_KIND_WIDE;
	r->flags = f->signal ? US_SIGNAL : 0;
	r->wide = intern(bytes, size, size + used);
	return r->wide ? US_FOUND : US_DAMAGED;
}

int us_fde_rule(struct us_window *w, const struct us_fde *f, uint64_t pc, struct us_rule *r)
{
	struct set s, initial;

	memset(&s, 0, offsetof(struct set, reg));
	if (!run(w, f, f->cie_insns, f->cie_end, UINT64_MAX, &s, NULL))
		return US_DAMAGED;
	copy_set(&initial, &s);
	if (!run(w, f, f->insns, f->end, pc, &s, &initial))
		return US_DAMAGED;
	return narrow(f, &s, r) ? US_FOUND : wide(w, f, &s, r);
}
