//! The client side of a turn.
