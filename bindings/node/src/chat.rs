//! The answer of a Chat Completions server, read piece by piece: for tests that play a provider.

use crate::fault::guard;
use broca_bridge::ChatStream as Stream;
use napi::bindgen_prelude::{Env, Uint8ArraySlice};
use napi_derive::napi;
use std::cell::RefCell;

/// Reads one answer of a provider.
#[napi]
pub struct ChatStream(RefCell<Stream>);

#[napi]
impl ChatStream {
    /// A reader at the start of a body that came with this HTTP status.
    ///
    /// # Errors
    /// `panic` only, as everywhere here.
    #[napi(constructor, catch_unwind)]
    pub fn new(env: &Env, status: u32) -> napi::Result<Self> {
        guard(env, || {
            let status = u16::try_from(status).unwrap_or_default();
            Ok(Self(RefCell::new(Stream::new(status))))
        })
    }

    /// The next bytes of the body.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn data(&self, env: &Env, bytes: Uint8ArraySlice<'_>) -> napi::Result<()> {
        guard(env, || {
            self.0.borrow_mut().data(&bytes);
            Ok(())
        })
    }

    /// The body ended cleanly.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn end(&self, env: &Env) -> napi::Result<()> {
        guard(env, || {
            self.0.borrow_mut().end();
            Ok(())
        })
    }

    /// The connection broke.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn broken(&self, env: &Env) -> napi::Result<()> {
        guard(env, || {
            self.0.borrow_mut().broken();
            Ok(())
        })
    }

    /// What came since the last call: JSON with `units`, `warnings` and `usage`.
    ///
    /// # Errors
    /// `panic` only.
    #[napi(catch_unwind)]
    pub fn take(&self, env: &Env) -> napi::Result<String> {
        guard(env, || Ok(self.0.borrow_mut().take()))
    }
}
