//! Under construction in this commit.
