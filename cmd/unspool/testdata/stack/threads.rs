// Threads that wait for messages that never come.
use std::io::Write;
use std::sync::{mpsc, Arc, Barrier};

#[inline(never)]
fn wait_for(r: mpsc::Receiver<u32>) -> u32 {
    r.recv().unwrap_or(0) + 1
}

fn main() {
    let barrier = Arc::new(Barrier::new(5));
    let mut senders = Vec::new();
    for i in 0..4 {
        let (s, r) = mpsc::channel();
        senders.push(s);
        let b = barrier.clone();
        std::thread::Builder::new()
            .name(format!("waiter-{i}"))
            .spawn(move || {
                b.wait();
                wait_for(r)
            })
            .unwrap();
    }
    barrier.wait();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}
