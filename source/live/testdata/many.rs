// Threads in Rust: blocked below closures and generics.
use std::sync::{Arc, Barrier};

#[inline(never)]
fn descend<T: Fn() -> usize>(n: usize, f: &T) -> usize {
    if n == 0 { f() } else { descend(n - 1, f) + 1 }
}

fn main() {
    let all = Arc::new(Barrier::new(21));
    let ts: Vec<_> = (0..20)
        .map(|i| {
            let all = all.clone();
            std::thread::Builder::new()
                .name(format!("rust-{i}"))
                .spawn(move || descend(i, &|| { all.wait(); loop { std::thread::park(); } }))
                .unwrap()
        })
        .collect();
    all.wait();
    println!("up");
    for t in ts { let _ = t.join(); }
}
