//! The attempts of one round: requests, failures, tries after a wait, fallbacks (session service §6.4).

use super::{Doing, Effect, ModelCall, ModelFailure, Outcome, Turn};
use crate::Json;
use crate::backoff;
use crate::run::log::{Elided, LogEvent, boolean};
use crate::session::event::EventType;
use crate::session::rpc::{RpcFailure, code};
use std::sync::Arc;

/// How far a round has come with its attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attempt {
    /// The number in this round, from 0.
    number: usize,
    /// The provider of the chain that is asked.
    provider: usize,
    /// How often this provider was tried again.
    retries: u32,
}

impl Attempt {
    const FIRST: Self = Self { number: 0, provider: 0, retries: 0 };

    const fn again(self) -> Self {
        Self { number: self.number + 1, retries: self.retries + 1, ..self }
    }

    const fn fallback(self) -> Self {
        Self { number: self.number + 1, provider: self.provider + 1, retries: 0 }
    }

    const fn kind(self) -> &'static str {
        if self.provider == 0 { "primary" } else { "fallback" }
    }
}

impl Turn {
    /// The attempt failed. Ignored when no model was asked.
    pub fn handle_model_failure(&mut self, failure: ModelFailure) {
        let Doing::Model(attempt) = self.doing else { return };
        self.log_failed_response(attempt, &failure);
        if let Some(ms) = self.wait_before_retry(attempt, &failure) {
            self.doing = Doing::Waiting(attempt.again());
            self.next = Some(Effect::Wait { ms });
            return;
        }
        if attempt.provider == 0 {
            let provider = self.providers.first().map_or("", |p| p.provider.as_str());
            let members =
                [("detail", Json::string(&failure.error)), ("provider", Json::string(provider))];
            self.log_error("provider_call_failed", &members);
        }
        if attempt.provider + 1 < self.providers.len() {
            self.call_model(attempt.fallback());
        } else {
            let attempts = attempt.number + 1;
            self.log_error("all_providers_failed", &[("attempts", count(attempts))]);
            let last = &failure.error;
            let words = format!("providers failed: attempts: {attempts}, the last one: {last}");
            self.fail(RpcFailure::new(code::PROVIDERS_FAILED, words), Outcome::ProvidersFailed);
        }
    }

    /// The time of an [`Effect::Wait`] is over. Ignored when nothing waits.
    pub fn handle_wait_over(&mut self) {
        let Doing::Waiting(attempt) = self.doing else { return };
        self.call_model(attempt);
    }

    pub(super) fn begin_round(&mut self) {
        if self.round < self.max_rounds {
            return self.call_model(Attempt::FIRST);
        }
        let limit = Json::integer(i64::from(self.max_rounds));
        self.log_error("loop_limit", &[("max_iterations", limit)]);
        let words = format!("loop limit: no answer after {} model rounds", self.max_rounds);
        self.fail(RpcFailure::new(code::LOOP_LIMIT, words), Outcome::LoopLimit);
    }

    /// How long to wait before the same provider is asked again; nothing when it is given up.
    fn wait_before_retry(&self, attempt: Attempt, failure: &ModelFailure) -> Option<u64> {
        let policy = self.keep_open?;
        if !failure.retryable || attempt.retries >= policy.retries {
            return None;
        }
        let turn = u32::try_from(attempt.number % 64).unwrap_or(0);
        let jitter = policy.jitter.rotate_left(turn * 7);
        let own = backoff::delay_ms(policy.base_ms, attempt.retries, policy.cap_ms, jitter);
        let told = failure.retry_after_ms.unwrap_or(0);
        Some(own.max(told.min(policy.cap_ms)))
    }

    fn call_model(&mut self, attempt: Attempt) {
        let asked = self.generation.members();
        let payload = self.providers.get(attempt.provider).map(|provider| {
            let limit = self.generation.options().max_tokens.or(provider.max_tokens);
            let limit = limit.and_then(|n| i64::try_from(n).ok());
            let members = [
                ("attempt", &count(attempt.number)),
                ("base_url", &Json::string(&provider.base_url)),
                ("kind", &Json::string(attempt.kind())),
                ("max_tokens", &limit.map_or_else(Json::null, Json::integer)),
                ("model", &Json::string(&provider.model)),
                ("provider", &Json::string(&provider.provider)),
                ("tools", &self.tools_json),
            ];
            Json::object(members.into_iter().chain(asked.iter().map(|(name, said)| (*name, said))))
        });
        let mut request = LogEvent::new(
            EventType::ProviderRequest,
            self.actor.clone(),
            payload.unwrap_or_else(Json::empty_object),
        );
        request.elided =
            Some(Elided { tail: Json::array(&self.tail), messages: Arc::clone(&self.messages) });
        self.pending.push(request);
        self.doing = Doing::Model(attempt);
        self.next = Some(Effect::CallModel(ModelCall {
            provider: attempt.provider,
            round: self.round,
            messages: Arc::clone(&self.messages),
            tools: Arc::clone(&self.tools),
            generation: self.generation.clone(),
        }));
    }

    pub(super) fn log_response(
        &mut self,
        attempt: Attempt,
        write: impl FnOnce(&[(&str, Json); 3]) -> Json,
    ) {
        let provider = self.providers.get(attempt.provider).map_or("", |p| p.provider.as_str());
        let common = [
            ("attempt", count(attempt.number)),
            ("kind", Json::string(attempt.kind())),
            ("provider", Json::string(provider)),
        ];
        self.log(EventType::ProviderResponse, write(&common));
    }

    pub(super) fn log_failed_response(&mut self, attempt: Attempt, failure: &ModelFailure) {
        let status = failure.status.map_or_else(Json::null, |s| Json::integer(i64::from(s)));
        let body = failure.body.as_deref().map_or_else(Json::null, Json::string);
        let error = Json::string(&failure.error);
        self.log_response(attempt, |common| {
            let members = [("body", &body), ("error", &error)];
            let rest = [("ok", &boolean(false)), ("status", &status)];
            Json::object(common.iter().map(|(k, v)| (*k, v)).chain(members).chain(rest))
        });
    }
}

fn count(number: usize) -> Json {
    Json::integer(i64::try_from(number).unwrap_or(i64::MAX))
}
