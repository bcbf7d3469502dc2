//! How long to wait before something that failed is tried again.

/// The wait before try `n` (from 0), in milliseconds: `first_ms`, doubled each time, at most `cap_ms`, and spread between half and
/// whole of that by `jitter`, any random number.
pub(crate) fn delay_ms(first_ms: u64, n: u32, cap_ms: u64, jitter: u64) -> u64 {
    let whole = first_ms.saturating_mul(1 << n.min(20)).min(cap_ms).max(1);
    whole / 2 + jitter % (whole - whole / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_double_up_to_the_cap() {
        let most = |n| (0..1000).map(|jitter| delay_ms(100, n, 1000, jitter)).max().unwrap();
        assert_eq!([0, 1, 2, 3, 4, 99].map(most), [99, 199, 399, 799, 999, 999]);
    }

    proptest! {
        #[test]
        fn a_wait_is_never_longer_than_the_cap(first: u64, n: u32, cap in 1u64.., jitter: u64) {
            prop_assert!(delay_ms(first, n, cap, jitter) <= cap);
        }
    }
}
