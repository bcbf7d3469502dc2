//! One reader's display lane: deltas that wait, joined and bounded.

use crate::config::HubLimits;
use broca_proto::session::display::{DisplayEvent, METHOD};
use broca_proto::session::rpc;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most pieces that wait for one reader, however small they are: a piece takes more room than its text.
const MOST_PIECES: usize = 1024;

/// Something the model produces, as it is produced.
#[derive(Debug, Clone)]
pub(crate) enum Delta {
    /// Text of the message.
    Text {
        /// The message that will be logged.
        message_id: Arc<str>,
        /// The piece.
        delta: String,
    },
    /// The model's reasoning.
    Reasoning {
        /// The message that will be logged.
        message_id: Arc<str>,
        /// The piece.
        delta: String,
    },
    /// Arguments of a tool call, as JSON text in pieces.
    ToolInput {
        /// The call.
        tool_call_id: Arc<str>,
        /// The piece.
        delta: String,
    },
    /// What has been shown of the message is void: its attempt failed.
    Reset,
}

/// The deltas that wait for one reader.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// Pieces shed since the last line that left.
    dropped: u64,
}

#[derive(Debug)]
struct Piece {
    /// The position of the first event after it.
    before: u64,
    delta: Delta,
    /// How many deltas were joined in it.
    joined: u64,
}

impl Lane {
    /// Adds a delta produced when the next event's position was `before`.
    pub(crate) fn push(&mut self, before: u64, delta: &Delta, limits: &HubLimits) {
        if matches!(delta, Delta::Reset) {
            // What has not left yet needs no taking back.
            self.pieces.retain(|piece| piece.before != before);
            self.bytes = self.pieces.iter().map(Piece::bytes).sum();
            if self.pieces.back().is_none_or(|last| last.joined > 0) {
                self.pieces.push_back(Piece { before, delta: delta.clone(), joined: 0 });
            }
            return;
        }
        let size = delta.text().len();
        if size == 0 {
            return;
        }
        self.bytes += size;
        match self.pieces.back_mut() {
            Some(last)
                if last.before == before
                    && last.delta.same_stream(delta)
                    && last.bytes() + size <= limits.display_join =>
            {
                last.delta.append(delta.text());
                last.joined += 1;
            }
            _ => self.pieces.push_back(Piece { before, delta: delta.clone(), joined: 1 }),
        }
        while self.bytes > limits.display_bytes || self.pieces.len() > MOST_PIECES {
            // Resets weigh nothing and stay.
            let Some(oldest) = self.pieces.iter().position(|piece| piece.joined > 0) else { break };
            self.shed(oldest);
        }
    }

    /// Sheds what an event that already waits replaces.
    pub(crate) fn shed_before(&mut self, tip: u64) {
        while let Some(i) = self.pieces.iter().position(|p| p.joined > 0 && p.before < tip) {
            self.shed(i);
        }
    }

    /// Hands out the lines that stand before the event at `position`.
    pub(crate) fn take(&mut self, position: u64, out: &mut dyn FnMut(Bytes)) {
        if self.dropped > 0 {
            out(line(&DisplayEvent::Gap { dropped: std::mem::take(&mut self.dropped) }));
        }
        while self.pieces.front().is_some_and(|piece| piece.before <= position) {
            if let Some(piece) = self.pieces.pop_front() {
                self.bytes -= piece.bytes();
                out(line(&piece.delta.into_event()));
            }
        }
    }

    fn shed(&mut self, index: usize) {
        if let Some(piece) = self.pieces.remove(index) {
            self.bytes -= piece.bytes();
            self.dropped += piece.joined;
        }
        // Of two resets with nothing between them the second takes nothing back.
        let is_reset = |i: usize| self.pieces.get(i).is_some_and(|piece| piece.joined == 0);
        if index > 0 && is_reset(index - 1) && is_reset(index) {
            self.pieces.remove(index);
        }
    }
}

impl Piece {
    fn bytes(&self) -> usize {
        self.delta.text().len()
    }
}

impl Delta {
    fn text(&self) -> &str {
        match self {
            Self::Text { delta, .. }
            | Self::Reasoning { delta, .. }
            | Self::ToolInput { delta, .. } => delta,
            Self::Reset => "",
        }
    }

    fn into_event(self) -> DisplayEvent {
        match self {
            Self::Text { message_id, delta } => {
                DisplayEvent::TextDelta { message_id: message_id.to_string(), delta }
            }
            Self::Reasoning { message_id, delta } => {
                DisplayEvent::ReasoningDelta { message_id: message_id.to_string(), delta }
            }
            Self::ToolInput { tool_call_id, delta } => {
                DisplayEvent::ToolInputDelta { tool_call_id: tool_call_id.to_string(), delta }
            }
            Self::Reset => DisplayEvent::Reset,
        }
    }

    fn append(&mut self, more: &str) {
        match self {
            Self::Text { delta, .. }
            | Self::Reasoning { delta, .. }
            | Self::ToolInput { delta, .. } => delta.push_str(more),
            Self::Reset => {}
        }
    }

    fn same_stream(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Text { message_id: a, .. }, Self::Text { message_id: b, .. })
            | (Self::Reasoning { message_id: a, .. }, Self::Reasoning { message_id: b, .. })
            | (Self::ToolInput { tool_call_id: a, .. }, Self::ToolInput { tool_call_id: b, .. }) => {
                a == b
            }
            _ => false,
        }
    }
}

fn line(event: &DisplayEvent) -> Bytes {
    rpc::notification_line(METHOD, &event.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_that_nobody_reads_is_bounded_in_pieces_too() {
        let (limits, mut lane) = (HubLimits::default(), Lane::default());
        let message_id: Arc<str> = "m".into();
        for position in 0..100_000 {
            let (text, message_id) = (String::new(), Arc::clone(&message_id));
            lane.push(position, &Delta::Reasoning { message_id, delta: text }, &limits);
            let delta = "x".to_owned();
            let tool_call_id = if position % 2 == 0 { "a" } else { "b" }.into();
            lane.push(position, &Delta::ToolInput { tool_call_id, delta }, &limits);
            lane.push(position + 1, &Delta::Reset, &limits);
        }
        assert!(lane.pieces.len() <= 2 * MOST_PIECES + 1, "{}", lane.pieces.len());
        assert!(lane.dropped > 0);
    }
}
