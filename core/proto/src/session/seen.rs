//! Which events were delivered lately: duplicates are told by event id (design §7).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// How many ids are remembered: more than a service's ring and stream buffer hold.
const REMEMBERED: usize = 1_024;

/// The ids delivered last, bounded.
#[derive(Debug, Default)]
pub struct Seen {
    set: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl Seen {
    /// Notes an id; false when it was there already.
    pub fn insert(&mut self, id: &str) -> bool {
        if self.set.contains(id) {
            return false;
        }
        if self.order.len() >= REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.set.remove(&oldest);
        }
        let id: Arc<str> = id.into();
        self.order.push_back(Arc::clone(&id));
        self.set.insert(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_once_and_memory_is_bounded() {
        let mut seen = Seen::default();
        for i in 0..REMEMBERED * 3 {
            assert!(seen.insert(&i.to_string()));
            assert!(!seen.insert(&i.to_string()));
        }
        assert_eq!((seen.set.len(), seen.order.len()), (REMEMBERED, REMEMBERED));
    }
}
