//! The session service: sessions, turns, pauses, observers and replay.
//!
//! Protocol decisions live in `broca-proto`; this crate carries effects out: sockets, tasks, clock and
//! store. [`Service`] is the whole of it, [`Config`] every limit and default, [`AdminKey`] says how its operator gets in. [`store`] keeps what was
//! acknowledged or shown, [`models`] answers turns, [`tools`] are those that the service runs itself.
#![forbid(unsafe_code)]

mod admin;
pub mod config;
mod engine;
mod http;
mod hub;
pub mod keys;
pub mod models;
pub mod service;
pub mod store;
pub mod tools;

pub use admin::bootstrap::AdminKey;
pub use config::{Config, ConfigError, HubLimits};
pub use engine::Models;
pub use service::{NewProfile, Service, ServiceError};
