use std::collections::HashMap;

mod words {
    pub trait Weigh {
        fn weigh(&self) -> usize;
    }
    impl Weigh for String {
        fn weigh(&self) -> usize {
            self.bytes().map(|b| b as usize % 7).sum()
        }
    }
    pub fn total<T: Weigh>(v: &[T]) -> usize {
        v.iter().map(|w| w.weigh()).fold(0, |a, b| a + b)
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut m: HashMap<usize, Vec<String>> = HashMap::new();
    for a in &args {
        m.entry(a.len()).or_default().push(a.clone());
    }
    let mut keys: Vec<_> = m.keys().copied().collect();
    keys.sort_by(|a, b| b.cmp(a));
    for k in keys {
        println!("{} {}", k, words::total(&m[&k]));
    }
}
