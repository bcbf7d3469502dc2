//! The service over real sockets: every row of the contract that a client can see.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod admin;
mod admin_keys;
mod approve;
mod bad_input;
mod blocks;
mod cancel;
mod depth;
mod display;
mod envelope;
mod gate;
mod harness;
mod hold;
mod keep_open;
mod killed;
mod lean;
mod limits;
mod message_id;
mod metadata;
mod notices;
mod options;
mod pauses;
mod provider;
mod rest;
mod restart;
mod streams;
mod stress;
mod turns;
mod wire;
