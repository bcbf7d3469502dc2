//! Under construction in this commit.
pub mod http1;
