//! Profiles, keys and sessions as an operator lists them (session service §13).

use super::event::WallTime;
use super::session::Profile;
use crate::keys::KeyHash;
use broca_proto::run::quota::KeyLimits;

/// A place in a list that only grows: things are listed in the order in which they were recorded.
/// [`ListPlace::START`] is before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ListPlace(pub u64);

impl ListPlace {
    /// Before the first thing of a list.
    pub const START: Self = Self(0);
}

/// A part of a list, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// The things.
    pub items: Vec<T>,
    /// Where the list goes on, when it does.
    pub next: Option<ListPlace>,
}

/// A profile that was not deleted, and its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileRecord {
    /// The profile.
    pub profile: Profile,
    /// When it was made.
    pub created_at: WallTime,
    /// When it was last replaced.
    pub updated_at: WallTime,
}

/// A client key that was not revoked, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientKeyRecord {
    /// Its id.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// The first eight characters of the plaintext.
    pub display_prefix: String,
    /// The profile that it is bound to.
    pub profile_id: String,
    /// When it was made.
    pub created_at: WallTime,
    /// When it was last used, as exactly as the store keeps it.
    pub last_used_at: Option<WallTime>,
    /// Until when the plaintext from before the last rotation is good; absent when it is not any more.
    pub previous_until: Option<WallTime>,
    /// What it may use, before what its profile says.
    pub limits: KeyLimits,
}

/// New plaintext for a client key that is there, as the store keeps it.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// The client key.
    pub id: String,
    /// The first eight characters of the new plaintext.
    pub display_prefix: String,
    /// The hash of the new plaintext.
    pub hash: KeyHash,
    /// Until when the old plaintext is good beside it.
    pub previous_until: WallTime,
}

/// An admin key to be put in place of the one there is.
#[derive(Debug, Clone)]
pub struct NewAdminKey {
    /// `key_` and 32 hex digits.
    pub id: String,
    /// What its owner calls it.
    pub name: String,
    /// The first eight characters of the plaintext.
    pub display_prefix: String,
    /// The hash of the plaintext.
    pub hash: KeyHash,
}
