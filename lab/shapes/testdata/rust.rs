// chain: LIB* s_spin s_mid LIB+ main START
// Rust, from its own main to the one that the C library calls.
use std::hint::spin_loop;
use std::io::Write;

// black_box hides a value from the compiler.
fn black_box<T>(v: T) -> T {
    let got = unsafe { std::ptr::read_volatile(&v) };
    std::mem::forget(v);
    got
}

#[inline(never)]
fn s_spin(n: usize) -> usize {
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").unwrap();
    out.flush().unwrap();
    while black_box(n) > 0 {
        spin_loop();
    }
    n
}

#[inline(never)]
fn s_mid(n: usize) -> usize {
    let local = black_box([n; 50]);
    s_spin(local[7]) + local[9]
}

fn main() {
    println!("{}", s_mid(std::env::args().count()));
}
