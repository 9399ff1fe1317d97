/* What main.go calls. */
void c_outer(int what, int n, int depth);
void c_sorted(int what, int n);
void c_inner(int n);
void c_crash(int *at);
void c_abort(void);
void c_null(void);
void c_start(int threads, int n);
void c_join(void);
void c_target(void);
int c_signals(int n);
void c_allocate(int n);
void c_load(void);
void c_calls(int what, int n);
int c_walks(int by_libgcc, int depth, int n);
