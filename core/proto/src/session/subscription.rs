//! The client side of a subscription.
