// Calls in functions that save all kinds of registers, with and without something to clean up.
extern "C" int out(int, ...);
extern "C" double real(double);
extern "C" void *take(unsigned);

struct Clean {
	int n;
	explicit Clean(int n) : n(n) { out(n); }
	~Clean() { out(-n); }
};

int plain(int a) { return out(a) + out(a + 1); }

int cleaned(int a, int b) {
	Clean x(a);
	Clean y(b);
	return out(a, b) + out(b, a);
}

int caught(int a) {
	try {
		Clean x(a);
		return out(a) * 2;
	} catch (int e) {
		return out(e);
	} catch (...) {
		out(0);
		throw;
	}
}

double doubles(double a, double b, double c) {
	Clean x(1);
	double p = real(a), q = real(b), r = real(c);
	double s = real(p + q);
	return real(p * q + r) + s * r + real(a - b);
}

int dynamic(int n) {
	Clean x(n);
	char *p = static_cast<char *>(__builtin_alloca(n));
	p[0] = static_cast<char>(out(n));
	return out(p[0], n) + x.n;
}

int large(int n) {
	Clean x(n);
	volatile char room[5000];
	room[n] = static_cast<char>(out(n));
	return out(room[n]) + room[n / 2];
}

int many(int a, int b, int c, int d, int e, int f) {
	Clean x(a);
	int g = out(a, b, c, d, e, f, x.n), h = out(b), i = out(c), j = out(d), k = out(e);
	return out(g, h, i, j, k, f) + g * h + i * j + k * a + b * c + d * e;
}

int variable(int n, ...) {
	__builtin_va_list l;
	__builtin_va_start(l, n);
	Clean x(n);
	int s = 0;
	for (int i = 0; i < n; i++)
		s += out(__builtin_va_arg(l, int));
	__builtin_va_end(l);
	return s;
}

struct Base {
	virtual int f(int) = 0;
	virtual ~Base() {}
};

int virtually(Base *b, int n) {
	Clean x(n);
	int s = b->f(n);
	delete b;
	return s + b->f(out(n));
}
