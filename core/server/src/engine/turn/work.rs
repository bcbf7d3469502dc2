//! What a turn has done outside: models, tools, questions, and waits between attempts. A turn that is to stop leaves them.

use super::{Broken, Drive};
use crate::engine::approve::OpenQuestion;
use crate::engine::deltas::Sink;
use crate::engine::millis;
use crate::engine::record::{Write, mint};
use crate::engine::session::{Stop, mark_cancelled};
use crate::keys::IdKind;
use crate::models::{ModelReply as ModelAnswer, ModelRequest};
use broca_proto::provider::ToolSpec;
use broca_proto::run::log::LogEvent;
use broca_proto::run::turn::{ModelCall, ModelFailure, ModelReply, ToolOutcome, ToolRun, Turn};
use broca_proto::session::approval::{Question, SettledBy};
use broca_proto::session::payload::TokenUsage;
use broca_proto::session::tool::ToolDeclaration;
use std::time::Duration;
use tokio::sync::watch;

impl Drive {
    pub(super) async fn call_model(
        &mut self,
        turn: &mut Turn,
        call: ModelCall,
    ) -> Result<(), Broken> {
        let Some(model) = self.chain.get(call.provider).cloned() else {
            turn.handle_model_failure(ModelFailure::lasting("this provider is not configured"));
            return Ok(());
        };
        self.message_id = mint(IdKind::Event)?.into();
        let spec = |tool: &ToolDeclaration| ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input_schema: tool.input_schema.clone(),
        };
        let request = ModelRequest {
            messages: call.messages.as_ref().clone(),
            tools: call.tools.iter().map(spec).collect(),
            max_tokens: call.generation.options().max_tokens,
            generation: call.generation,
            media: self.call.features.blocks,
        };
        let sink = Sink::new(&self.session.hub, &self.message_id);
        let answered = tokio::select! {
            biased;
            stop = stop(&mut self.stopped) => Err(stop),
            answer = model.call(&request, &sink) => Ok(answer),
        };
        let answer = match answered {
            Ok(answer) => answer,
            Err(stop) => {
                sink.void();
                return self.stop(turn, stop);
            }
        };
        if let Ok(ModelAnswer { usage: Some(usage), .. }) = &answer {
            let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
            self.engine.count_tokens(&self.call.who, tokens).await?;
        }
        match answer {
            Ok(reply) => turn.handle_model_reply(ModelReply {
                content: reply.content,
                body: reply.body,
                usage: reply.usage.map(|usage| TokenUsage {
                    input_tokens: usage.input_tokens,
                    output_tokens: usage.output_tokens,
                }),
            }),
            Err(failure) => {
                sink.void();
                turn.handle_model_failure(ModelFailure {
                    status: failure.status,
                    error: failure.error,
                    body: failure.body,
                    retryable: failure.retryable,
                    retry_after_ms: failure.retry_after.map(millis),
                });
            }
        }
        Ok(())
    }

    pub(super) async fn call_tool(&mut self, turn: &mut Turn, run: ToolRun) -> Result<(), Broken> {
        let found = self
            .engine
            .tools
            .iter()
            .rev()
            .find(|tool| tool.server_name() == run.server_name && tool.spec().name == run.name);
        let outcome = match found.cloned() {
            None => ToolOutcome::Failed(format!("the tool '{}' is gone", run.name)),
            Some(tool) => tokio::select! {
                biased;
                stop = stop(&mut self.stopped) => return self.stop(turn, stop),
                answer = tool.call(&run.input) => match answer {
                    Ok(answer) => ToolOutcome::Answered(answer.result()),
                    Err(reason) => ToolOutcome::Failed(reason),
                },
            },
        };
        turn.handle_tool_outcome(outcome);
        Ok(())
    }

    /// Asks for consent to a call, and waits for the answer.
    pub(super) async fn ask(
        &mut self,
        turn: &mut Turn,
        events: Vec<LogEvent>,
        question: Question,
    ) -> Result<(), Broken> {
        // Who sees the question may answer at once.
        let (open, answered) = OpenQuestion::new(&self.session, &self.call.who, question.clone());
        self.log(events).await?;
        self.question = Some(open);
        let wait = Duration::from_millis(question.expires_in_ms);
        let stopped = tokio::select! {
            biased;
            stop = stop(&mut self.stopped) => stop,
            // Nobody can connect to a service that goes down.
            () = std::future::ready(()), if self.engine.is_stopping() => Stop::Shutdown,
            answer = answered => {
                match answer {
                    Ok(answer) => turn.handle_answer(answer),
                    Err(_) => turn.handle_approval_deadline(),
                }
                return Ok(());
            }
            () = tokio::time::sleep(wait) => {
                turn.handle_approval_deadline();
                return Ok(());
            }
        };
        self.stop(turn, stopped)
    }

    /// The turn ends without the machine's word: a question that it waits on is settled all the same.
    pub(super) async fn withdraw_question(&mut self, why: &Broken) {
        let Some(open) = &self.question else { return };
        let by = match why {
            Broken::Closed => SettledBy::Close,
            Broken::Shutdown | Broken::Store(_) => SettledBy::Shutdown,
        };
        let withdrawn = LogEvent::approval_withdrawn(&self.call.who, open.tool_use_id(), &by);
        // Nobody waits for it any more in a session that cannot be written; its successor settles it.
        if let Err(Broken::Store(error)) =
            self.record(Write::Append(None), vec![withdrawn], None).await
        {
            let code = error.code();
            tracing::error!(session = %self.session.id, code, %error, "a question stays open");
        }
    }

    /// Waits before a model is asked again.
    pub(super) async fn wait(&mut self, turn: &mut Turn, ms: u64) -> Result<(), Broken> {
        tokio::select! {
            biased;
            stop = stop(&mut self.stopped) => return self.stop(turn, stop),
            () = tokio::time::sleep(Duration::from_millis(ms)) => turn.handle_wait_over(),
        }
        Ok(())
    }

    fn stop(&self, turn: &mut Turn, why: Stop) -> Result<(), Broken> {
        match why {
            Stop::Cancel | Stop::No => {
                turn.handle_cancel();
                mark_cancelled(&self.cancelled);
                Ok(())
            }
            Stop::Closed => Err(Broken::Closed),
            Stop::Shutdown => Err(Broken::Shutdown),
        }
    }
}

/// Waits until the turn is to stop.
async fn stop(stopped: &mut watch::Receiver<Stop>) -> Stop {
    let why = stopped.wait_for(|why| *why != Stop::No).await.ok().map(|why| *why);
    match why {
        Some(why) => why,
        // The session keeps the sender while the turn runs.
        None => std::future::pending().await,
    }
}
