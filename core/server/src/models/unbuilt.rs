//! Providers whose wire is not built into this service: they can be configured and named, and every attempt fails and says so.

use super::{DeltaSink, Model, ModelDescription, ModelFailure, ModelFuture, ModelRequest};
use broca_proto::provider::unit::ErrorClass;

/// Where Anthropic itself is.
pub const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com";

/// Such a provider.
#[derive(Debug, Clone)]
pub struct Unbuilt(ModelDescription);

impl Unbuilt {
    /// One that is described so.
    #[must_use]
    pub const fn new(description: ModelDescription) -> Self {
        Self(description)
    }
}

impl Model for Unbuilt {
    fn describe(&self) -> ModelDescription {
        self.0.clone()
    }

    fn call<'a>(&'a self, _: &'a ModelRequest, _: &'a dyn DeltaSink) -> ModelFuture<'a> {
        let wire = &self.0.provider;
        let words = format!("the wire \"{wire}\" is not built into this service");
        Box::pin(std::future::ready(Err(ModelFailure::new(ErrorClass::Permanent, words))))
    }
}
