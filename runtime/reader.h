/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reader.h: numbers and pointers of call frame information (LSB core 5.0, section 10.5.1; DWARF 5, section 7.6), out of a
 * window. Every read is checked, and says so in the reader.
 */
#ifndef UNSPOOL_READER_H
#define UNSPOOL_READER_H

#include "core.h"

#include <string.h>

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

static inline uint64_t uleb(struct reader *r)
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

static inline int64_t sleb(struct reader *r)
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
static inline uint64_t raw(struct reader *r, unsigned format)
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
static inline uint64_t encoded(struct reader *r, uint8_t enc, uint64_t data, uint64_t fn)
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
static inline uint64_t follow(struct reader *r, uint64_t at)
{
	struct reader x = {r->w, at, at + 8, at > UINT64_MAX - 8};
	uint64_t v = fixed(&x, 8);

	r->bad |= x.bad;
	return v;
}

#endif /* UNSPOOL_READER_H */
