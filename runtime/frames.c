/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frames.c: finds an FDE of .eh_frame by .eh_frame_hdr, and decodes it and its CIE (LSB core 5.0, section 10.6; DWARF 5,
 * section 6.4). Nothing here trusts a byte: all reads go through the window, all loops consume input or are bounded.
 */
#include "reader.h"

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

/*
 * Of FDEs with one start, lld keeps the first in the search table. Where that is of an empty function, it hides the next function's, which
 * follows in .eh_frame (docs/FINDINGS.md).
 */
static US_COLD int hidden(struct us_window *w, uint64_t pc, struct us_fde *fde)
{
	struct us_fde next;

	for (unsigned n = 0; n < 64 && fde->lo == fde->hi; n++) {
		if (us_fde_open(w, fde->end, &next) != US_FOUND || next.lo != fde->lo)
			return US_NOT_FOUND;
		*fde = next;
	}
	return pc >= fde->lo && pc < fde->hi ? US_FOUND : US_NOT_FOUND;
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
	if (pc >= fde->lo && pc < fde->hi)
		return US_FOUND;
	return f->strict ? US_NOT_FOUND : hidden(w, pc, fde);
}
