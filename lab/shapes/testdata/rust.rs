// chain: LIB* s_spin s_mid LIB+ main START
// Rust, from its own main to the one that the C library calls.
use std::hint::{black_box, spin_loop};
use std::io::Write;

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
