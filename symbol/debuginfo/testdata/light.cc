// Classes, templates and inlined calls, in two units: with -DMAIN and without. No headers: it is compiled many times.
extern "C" int printf(const char *, ...);
inline void *operator new(__SIZE_TYPE__, void *p) { return p; }

namespace shapes {
struct shape {
	virtual int area(int k) const = 0;
};

template <int N> struct square : shape {
	int side[N] = {};
	static int add(const int *from, const int *to, int k) {
		int n = k;
		for (; from != to; from++) n += *from * k;
		return n;
	}
	int area(int k) const override { return add(side, side + N, k); }
};

template <typename T, int N> class list {
	T at[N];
	int n = 0;

  public:
	void push(T v) {
		if (n < N) new (&at[n++]) T(v);
	}
	T *begin() { return at; }
	T *end() { return at + n; }

	template <typename F> void sort(F less) {
		for (T *p = begin(); p != end(); p++)
			for (T *q = p; q != begin() && less(*q, q[-1]); q--) swap(*q, q[-1]);
	}

  private:
	static void swap(T &a, T &b) {
		T c = a;
		a = b, b = c;
	}
};

template <int N> int all(list<shape *, N> &v, int k) {
	int n = 0;
	for (auto s : v) n += s->area(k);
	return n;
}
} // namespace shapes

int other(int, char **);

#ifdef MAIN
int main(int argc, char **argv) {
	shapes::square<3> s;
	shapes::square<5> t;
	shapes::list<shapes::shape *, 2> v;
	v.push(&s), v.push(&t);
	return shapes::all(v, argc) + other(argc, argv);
}
#else
namespace {
struct less {
	bool operator()(int a, int b) const { return a % 7 < b % 7; }
};
}

int unused(int n) { return shapes::square<9>::add(nullptr, nullptr, n); }

static int __attribute__((noinline)) counted(shapes::list<int, 50> &v, int n) {
	struct local {
		static int __attribute__((noinline)) twice(int x) { return x * 2 + x / 3; }
	};
	v.push(local::twice(n));
	v.sort(less());
	auto f = [n](int x) { return x > n; };
	int k = 0;
	for (int x : v) k += f(x);
	v.sort([k](int a, int b) { return (a ^ k) < (b ^ k); });
	return k;
}

int other(int argc, char **argv) {
	shapes::list<int, 50> v;
	int n = 0;
	for (int i = 0; i < argc * 9; i++) n += counted(v, argv[i % argc][0] * i);
	shapes::square<7> s;
	shapes::list<shapes::shape *, 1> w;
	w.push(&s);
	printf("%d\n", n);
	return shapes::all(w, n);
}
#endif
