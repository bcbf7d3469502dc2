//! What is remembered of a message that has an id (feature `message-id`): how its turn ended, told by the log.

use super::Drive;
use crate::store::{MessageAnswer, MessageNote, MessageOutcome, Seq};
use broca_proto::run::log::LogEvent;
use broca_proto::session::content::Message;
use broca_proto::session::event::EventType;
use broca_proto::session::rpc::RpcFailure;

impl Drive {
    /// How the call ends, to be written together with its last events.
    pub(super) fn end_note(
        &self,
        answer: Result<&Message, &RpcFailure>,
        last: &[LogEvent],
    ) -> Option<MessageNote> {
        let message = self.call.message.clone()?;
        let is_logged =
            || last.iter().any(|event| event.event_type == EventType::ServerMessageSend);
        let answer = match answer {
            Ok(_) if is_logged() => MessageAnswer::Logged,
            Ok(message) => MessageAnswer::Unlogged(message.to_json().as_str().to_owned()),
            Err(RpcFailure { code, message }) => {
                MessageAnswer::Failed { code: *code, message: message.clone() }
            }
        };
        let outcome = Some(MessageOutcome { spans: self.spans(), answer });
        Some(MessageNote { message, outcome })
    }

    /// Remembers that the call has failed in a way that its own log cannot tell.
    pub(super) async fn note_end(&self, failure: &RpcFailure) {
        let Some(note) = self.end_note(Err(failure), &[]) else { return };
        let noted = self.engine.store().note_message(self.session.id.as_str(), note).await;
        if let Err(error) = noted {
            // Whoever asks again is told that the turn was interrupted.
            let code = error.code();
            tracing::error!(session = %self.session.id, code, %error, "an outcome is not stored");
        }
    }

    /// The places of the call's events in the log.
    fn spans(&self) -> Vec<(Seq, Seq)> {
        let mut spans: Vec<(Seq, Seq)> = Vec::new();
        for shown in &self.shown {
            match spans.last_mut() {
                Some((_, to)) if to.0 + 1 == shown.seq.0 => *to = shown.seq,
                _ => spans.push((shown.seq, shown.seq)),
            }
        }
        spans
    }
}
