// SPDX-License-Identifier: Apache-2.0
// eh_panic.rs panics and catches, and prints backtraces' lengths: the same with any unwinder.
use std::backtrace::Backtrace;
use std::panic;
use std::thread;

struct Guard(u32);

impl Drop for Guard {
    fn drop(&mut self) {
        println!("drop {} {}", self.0, thread::panicking());
    }
}

#[inline(never)]
fn deep(n: u32) -> u32 {
    let g = Guard(n);
    if n == 0 {
        let b = Backtrace::force_capture().to_string();
        println!("deep: {}, main: {}", b.matches("::deep").count(), b.matches("::main").count());
        panic!("thrown");
    }
    deep(n - 1) + g.0
}

fn order(a: &u32, b: &u32) -> std::cmp::Ordering {
    if *a == 7 {
        panic::panic_any(*a);
    }
    a.cmp(b)
}

fn main() {
    panic::set_hook(Box::new(|_| println!("hook")));
    for i in 0..4 {
        let r = panic::catch_unwind(|| deep(i));
        println!("{:?}", r.unwrap_err().downcast_ref::<&str>());
    }
    let r = panic::catch_unwind(|| {
        let mut v: Vec<u32> = (0..20).rev().collect();
        v.sort_by(order);
    });
    println!("{:?}", r.unwrap_err().downcast_ref::<u32>());
    let r = panic::catch_unwind(|| {
        let _g = Guard(90);
        if let Err(e) = panic::catch_unwind(|| deep(1)) {
            panic::resume_unwind(e);
        }
    });
    println!("{}", r.is_err());
    let threads: Vec<_> = (0..16).map(|i| thread::spawn(move || if i % 2 == 0 { panic::resume_unwind(Box::new(i)) } else { i })).collect();
    for t in threads {
        match t.join() {
            Ok(n) => println!("ended {n}"),
            Err(e) => println!("panicked {:?}", e.downcast_ref::<i32>()),
        }
    }
    if std::env::args().count() > 1 {
        struct Twice;
        impl Drop for Twice {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let _t = Twice;
        panic!("once");
    }
}
