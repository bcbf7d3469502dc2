//! The session service's contract: JSON-RPC 2.0 over NDJSON and the REST calls around it.
//!
//! [`ndjson`] cuts bytes into lines, [`rpc`] says what a line is, [`exchange`] follows one `/rpc`
//! answer to its end. [`event`], [`payload`] and [`content`] are what the lines carry. [`turn`] and
//! [`subscription`] are the client's state machines; the service's own are in [`crate::run`]. [`saved`] and
//! [`standing`] carry a session from one program to the next. [`media`] and [`mcp`] make content blocks of images, files and the
//! results of MCP servers.

pub mod approval;
pub mod budget;
pub mod content;
pub mod display;
pub mod event;
pub mod exchange;
pub mod feature;
pub mod generation;
pub mod ids;
pub mod info;
pub mod mcp;
pub mod media;
pub mod method;
pub mod narrow;
pub mod ndjson;
pub mod notice;
pub mod payload;
pub mod problem;
pub mod rest;
pub mod rpc;
pub mod saved;
pub mod seen;
pub mod standing;
pub mod subscription;
pub mod tool;
pub mod trail;
pub mod turn;
