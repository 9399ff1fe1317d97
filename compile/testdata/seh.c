// Structured exceptions of Windows: filters that decide and that take all, termination handlers, and all of them within each other.
int ext(int);
int filter(int);

int all(int a) {
  __try { return ext(a); } __except (1) { return ext(7); }
}
int some(int a) {
  int r = 0;
  __try { r = ext(a); } __except (filter(a)) { r = ext(8); }
  return r;
}
int last(int a) {
  int r = 0;
  __try { r = ext(a); } __finally { ext(9); }
  return r;
}
int nested(int a) {
  int r = 0;
  __try {
    r += ext(1);
    __try { r = ext(a); } __finally { ext(9); }
    r += ext(2);
    __try {
      __try { r += ext(3); } __except (filter(4)) { r += ext(5); }
    } __finally { ext(6); }
  } __except (filter(r)) { r = 3; }
  __try { r += ext(10); } __except (1) { r = 4; }
  return r;
}
int none(int a) { return ext(a) + 1; }
