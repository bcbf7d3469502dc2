//! The broca command.
fn main() {}
