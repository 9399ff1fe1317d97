// SPDX-License-Identifier: Apache-2.0
// counted.rs allocates in every way of Rust's global allocator, in threads, through inlined calls, and counts what it does. At its end it writes
// the objects and bytes that it allocated, and those in use.
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

struct Counting;

static OBJECTS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static FREED_OBJECTS: AtomicU64 = AtomicU64::new(0);
static FREED_BYTES: AtomicU64 = AtomicU64::new(0);

fn count(p: *mut u8, n: usize) -> *mut u8 {
    if !p.is_null() {
        OBJECTS.fetch_add(1, SeqCst);
        BYTES.fetch_add(n as u64, SeqCst);
    }
    p
}

fn discount(n: usize) {
    FREED_OBJECTS.fetch_add(1, SeqCst);
    FREED_BYTES.fetch_add(n as u64, SeqCst);
}

unsafe impl GlobalAlloc for Counting {
    #[inline(never)]
    unsafe fn alloc(&self, l: Layout) -> *mut u8 {
        count(unsafe { System.alloc(l) }, l.size())
    }
    #[inline(never)]
    unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
        count(unsafe { System.alloc_zeroed(l) }, l.size())
    }
    #[inline(never)]
    unsafe fn dealloc(&self, p: *mut u8, l: Layout) {
        discount(l.size());
        unsafe { System.dealloc(p, l) }
    }
    #[inline(never)]
    unsafe fn realloc(&self, p: *mut u8, l: Layout, n: usize) -> *mut u8 {
        let q = count(unsafe { System.realloc(p, l, n) }, n);
        if !q.is_null() {
            discount(l.size());
        }
        q
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[repr(align(128))]
#[allow(dead_code)]
struct Wide([u8; 256]);

#[inline(always)]
fn inlined(n: usize) -> Vec<u8> {
    Vec::with_capacity(n)
}

#[inline(never)]
fn outer() {
    for _ in 0..7 {
        std::mem::forget(black_box(inlined(black_box(12345))));
    }
}

#[inline(never)]
fn aligned() {
    for _ in 0..5 {
        std::mem::forget(black_box(Box::new(Wide([1; 256]))));
        drop(black_box(Box::new(Wide([2; 256]))));
    }
    let mut v: Vec<Wide> = Vec::new();
    for i in 0..100 {
        v.push(Wide([i; 256]));
    }
    black_box(&v);
}

struct Holder<T>(T);

impl<T: Clone> Holder<T> {
    #[inline(never)]
    fn generic(&self, n: usize) -> Vec<T> {
        vec![self.0.clone(); n]
    }
}

fn work(k: usize) -> usize {
    let mut m = HashMap::new();
    let mut text = String::new();
    for i in 0..3000 {
        text.push_str("abc");
        m.insert(format!("{i}"), vec![0u64; (i + k) % 50]);
    }
    m.retain(|_, v| v.len() % 3 == 0);
    m.shrink_to_fit();
    let closure = |n: usize| black_box(vec![1u8; n]).len();
    text.shrink_to_fit();
    m.values().map(|v| v.len()).sum::<usize>() + text.len() + closure(100)
}

unsafe extern "C" {
    fn atexit(f: extern "C" fn()) -> i32;
    fn write(fd: i32, p: *const u8, n: usize) -> isize;
}

extern "C" fn say() {
    use std::io::Write;
    let mut to = [0u8; 100];
    let (o, b) = (OBJECTS.load(SeqCst), BYTES.load(SeqCst));
    let (fo, fb) = (FREED_OBJECTS.load(SeqCst), FREED_BYTES.load(SeqCst));
    let mut left = &mut to[..];
    let _ = writeln!(left, "{} {} {} {}", o, b, o - fo, b - fb);
    let n = 100 - left.len();
    unsafe { write(1, to.as_ptr(), n) };
}

fn main() {
    unsafe { atexit(say) };
    outer();
    aligned();
    std::mem::forget(Holder(String::from("of some length")).generic(9));
    let all: Vec<_> = (0..4).map(|k| thread::spawn(move || work(k))).collect();
    let sum: usize = all.into_iter().map(|t| t.join().unwrap()).sum();
    black_box(sum);
}
