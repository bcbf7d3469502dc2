//! The bodies of streamed `/rpc` answers: one frame for each batch of lines that is ready.

use crate::config::Config;
use crate::engine::{Feed, Listening, Replay, ReplayStep};
use crate::hub::{Reader, Then};
use axum::body::HttpBody;
use broca_proto::session::feature::Features;
use broca_proto::session::notice;
use bytes::Bytes;
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The stream of a `session.sendMessage` or a `session.subscribe`.
pub(crate) struct StreamBody {
    source: Source,
    heartbeat: Option<Heartbeat>,
}

enum Source {
    /// Waits at the gate: not a byte, unless it asked for its places.
    Queued(Listening),
    /// Shows what was logged before.
    Replaying(Pin<Box<dyn Future<Output = ReplayStep> + Send>>),
    Live(Reader),
    Over,
}

impl StreamBody {
    /// The stream of a call that waits at the gate.
    pub(crate) fn call(listening: Listening, alive: Option<Alive>) -> Self {
        let heartbeat = alive.map(Heartbeat::new);
        Self { source: Source::Queued(listening), heartbeat }
    }

    /// The stream of a subscription.
    pub(crate) fn subscription(replay: Replay, alive: Option<Alive>) -> Self {
        let heartbeat = alive.map(Heartbeat::new);
        Self { source: Source::Replaying(Box::pin(replay.step())), heartbeat }
    }

    fn poll_lines(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let (lines, next) = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::Queued(listening) => match listening.poll_feed(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Feed::Place(place))) => {
                        return Poll::Ready(Some(place.line()));
                    }
                    Poll::Ready(Some(Feed::Live(reader))) => (Bytes::new(), Source::Live(reader)),
                    Poll::Ready(Some(Feed::Answer(line))) => (line, Source::Over),
                    Poll::Ready(None) => (Bytes::new(), Source::Over),
                },
                Source::Replaying(step) => match step.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(ReplayStep::Lines(lines, replay)) => {
                        (lines, Source::Replaying(Box::pin(replay.step())))
                    }
                    Poll::Ready(ReplayStep::Live(reader)) => (Bytes::new(), Source::Live(reader)),
                    Poll::Ready(ReplayStep::End(lines)) => (lines, Source::Over),
                },
                Source::Live(reader) => match reader.poll_batch(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(batch) => match batch.then {
                        Then::More => return Poll::Ready(Some(batch.lines)),
                        Then::End | Then::Lagged => (batch.lines, Source::Over),
                    },
                },
            };
            self.source = next;
            if !lines.is_empty() {
                return Poll::Ready(Some(lines));
            }
        }
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let polled = self.poll_lines(cx);
        let Some(heartbeat) = &mut self.heartbeat else {
            return polled.map(|lines| lines.map(|lines| Ok(Frame::data(lines))));
        };
        match polled {
            Poll::Ready(lines) => {
                heartbeat.restart();
                Poll::Ready(lines.map(|lines| Ok(Frame::data(lines))))
            }
            Poll::Pending => match heartbeat.poll(cx) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(line) => Poll::Ready(Some(Ok(Frame::data(line)))),
            },
        }
    }
}

/// How a stream shows in its silence that it lives.
#[derive(Debug, Clone)]
pub(crate) struct Alive {
    every: Duration,
    line: Bytes,
}

impl Alive {
    /// The notification for a request that asked for it, a blank line for others where the operator wants it.
    pub(crate) fn of(features: Features, config: &Config) -> Option<Self> {
        if features.heartbeat {
            return Some(Self { every: config.heartbeat_notice, line: notice::heartbeat_line() });
        }
        let line = Bytes::from_static(b"\n");
        config.heartbeat.map(|every| Self { every, line })
    }
}

/// Says when a silent stream should show that it lives, and with which line.
struct Heartbeat {
    alive: Alive,
    sleep: Pin<Box<Sleep>>,
}

impl Heartbeat {
    fn new(alive: Alive) -> Self {
        let sleep = Box::pin(tokio::time::sleep(alive.every));
        Self { alive, sleep }
    }

    fn restart(&mut self) {
        self.sleep.as_mut().reset(Instant::now() + self.alive.every);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.restart();
        // Registers the new time.
        let _ = self.sleep.as_mut().poll(cx);
        Poll::Ready(self.alive.line.clone())
    }
}
