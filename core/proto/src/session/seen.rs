//! Which events were delivered lately: duplicates are told by event id (design §7).

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// How many ids are remembered: more than a service's ring and stream buffer hold.
const REMEMBERED: usize = 1_024;

/// The ids delivered last, bounded. Each is kept as 128 bits made of all its bytes, which takes no allocation for an
/// event; two ids of a thousand would have to agree in all of them to be taken for one.
#[derive(Debug, Default)]
pub struct Seen {
    set: HashSet<Id, BuildHasherDefault<Mixed>>,
    order: VecDeque<Id>,
}

type Id = (u64, u64);

impl Seen {
    /// Notes an id; false when it was there already.
    #[inline]
    pub fn insert(&mut self, id: &[u8]) -> bool {
        let id = mix(id);
        if !self.set.insert(id) {
            return false;
        }
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        self.order.push_back(id);
        true
    }

    /// Whether an id is there.
    #[must_use]
    pub fn contains(&self, id: &[u8]) -> bool {
        self.set.contains(&mix(id))
    }
}

/// Two independent 64-bit mixes of all bytes and their number.
#[inline]
fn mix(bytes: &[u8]) -> Id {
    const A: u64 = 0x9e37_79b9_7f4a_7c15;
    const B: u64 = 0xc2b2_ae3d_27d4_eb4f;
    let mut a = A ^ bytes.len() as u64;
    let mut b = B;
    let mut take = |word: u64| {
        a = (a ^ word).wrapping_mul(A).rotate_left(29);
        b = (b.rotate_left(31) ^ word).wrapping_mul(B);
        b ^= b >> 29;
    };
    let mut rest = bytes;
    while let Some((word, more)) = rest.split_first_chunk::<8>() {
        take(u64::from_le_bytes(*word));
        rest = more;
    }
    if !rest.is_empty() {
        take(rest.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte)));
    }
    (a ^ (a >> 32), b)
}

/// The keys are mixed already.
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    #[inline]
    fn write_u64(&mut self, half: u64) {
        self.0 = self.0.rotate_left(32) ^ half;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_is_new_once_and_memory_is_bounded() {
        let mut seen = Seen::default();
        for i in 0..REMEMBERED * 3 {
            assert!(seen.insert(i.to_string().as_bytes()));
            assert!(!seen.insert(i.to_string().as_bytes()));
        }
        assert_eq!((seen.set.len(), seen.order.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn ids_that_count_up_never_meet() {
        let mut all = HashSet::new();
        for i in 0..300_000_u32 {
            assert!(all.insert(mix(format!("evt_{i:032x}").as_bytes())));
        }
    }

    proptest! {
        #[test]
        fn ids_that_differ_anywhere_are_told_apart(a in prop::collection::vec(any::<u8>(), 0..48), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
            let mut b = a.clone();
            if b.is_empty() { b.push(0) } else { let i = at.index(b.len()); b[i] ^= 1 << bit; }
            prop_assert_ne!(mix(&a), mix(&b));
        }
    }
}
