//! Numbers that a seed decides.

/// A source of numbers; two with one seed give the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The source number `stream` of the run with this seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        // Splitmix64: every state follows every other, and neighbours have nothing in common.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// A number made of a text, the same in every run.
pub(crate) fn hash(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_the_same_numbers_and_streams_have_their_own() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 1), draw(7, 1));
        assert_ne!(draw(7, 1), draw(7, 2));
        assert_ne!(draw(7, 1), draw(8, 1));
    }
}
