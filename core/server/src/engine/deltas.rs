//! From a model's deltas to the display lane.

use crate::hub::{Delta, Hub};
use crate::models::{self, DeltaSink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Passes deltas on to the display lane.
pub(super) struct Sink {
    hub: Arc<Hub>,
    message_id: Arc<str>,
    used: AtomicBool,
}

impl Sink {
    pub(super) fn new(hub: &Arc<Hub>, message_id: &Arc<str>) -> Self {
        let (hub, message_id) = (Arc::clone(hub), Arc::clone(message_id));
        Self { hub, message_id, used: AtomicBool::new(false) }
    }

    /// What was shown does not count.
    pub(super) fn void(&self) {
        if self.used.load(Ordering::Relaxed) {
            self.hub.show(&Delta::Reset);
        }
    }
}

impl DeltaSink for Sink {
    fn delta(&self, delta: models::Delta) {
        let message_id = Arc::clone(&self.message_id);
        let delta = match delta {
            models::Delta::Text(delta) => Delta::Text { message_id, delta },
            models::Delta::Reasoning(delta) => Delta::Reasoning { message_id, delta },
            // Pieces of a call without an id could not be told apart.
            models::Delta::ToolInput { id: Some(id), delta, .. } => {
                Delta::ToolInput { tool_call_id: id.into(), delta }
            }
            models::Delta::ToolInput { .. } => return,
        };
        self.used.store(true, Ordering::Relaxed);
        self.hub.show(&delta);
    }
}
