//! Keys and ids: how they are minted, recognised and kept (session service §2).
//!
//! A key's plaintext is shown once. At rest there is only the SHA-256 of it: the key itself has 192
//! random bits, so a slow hash would protect nothing and cost every request.

use broca_proto::Secret;
use sha2::{Digest, Sha256};
use std::fmt;

/// What a key is good for. Look-ups always name the role, so one kind can never act as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Opens and joins sessions; bound to one profile.
    Client,
    /// Acts in one session for the client key that it was minted for.
    Session,
    /// Administers the service.
    Admin,
}

impl Role {
    /// What plaintext keys of this role begin with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Client => "bae_",
            Self::Session => "bae_ses_",
            Self::Admin => "bae_admin_",
        }
    }
}

/// A new key: the plaintext, to be shown once, and what is kept of it.
#[derive(Debug, Clone)]
pub struct NewKey {
    /// The plaintext: the role's prefix and 48 lowercase hex digits (24 random bytes).
    pub plaintext: Secret,
    /// What the store keeps.
    pub hash: KeyHash,
    /// The first eight characters, shown in lists so that people can tell keys apart.
    pub display_prefix: String,
}

impl NewKey {
    /// Draws a key from the operating system's random numbers.
    ///
    /// # Errors
    /// [`NoRandomness`] when the operating system has none to give.
    pub fn mint(role: Role) -> Result<Self, NoRandomness> {
        Ok(Self::from_random(role, draw::<24>()?))
    }

    /// The key that these 24 random bytes make.
    #[must_use]
    pub fn from_random(role: Role, random: [u8; 24]) -> Self {
        let mut text = String::with_capacity(role.prefix().len() + 48);
        text.push_str(role.prefix());
        push_hex(&mut text, &random);
        Self {
            hash: KeyHash::of(&text),
            display_prefix: display_prefix(&text),
            plaintext: Secret::new(text),
        }
    }
}

/// The first eight characters of a plaintext key, as lists show it.
#[must_use]
pub fn display_prefix(plaintext: &str) -> String {
    plaintext.chars().take(8).collect()
}

/// The SHA-256 of a plaintext key, as 64 lowercase hex digits. Compared in constant time.
#[derive(Clone)]
pub struct KeyHash(Secret);

impl KeyHash {
    /// The hash of a key that somebody presented.
    #[must_use]
    pub fn of(plaintext: &str) -> Self {
        let mut text = String::with_capacity(64);
        push_hex(&mut text, &Sha256::digest(plaintext.as_bytes()));
        Self(Secret::new(text))
    }

    /// The hash that these 64 lowercase hex digits write; nothing for any other text.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let is_hex =
            text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self(Secret::new(text)))
    }

    /// The 64 hex digits, for the store.
    #[must_use]
    pub fn as_hex(&self) -> &str {
        self.0.expose()
    }

    /// Whether `stored` is this hash. A damaged stored hash is one that does not match, never an
    /// error: it must not lock others out.
    #[must_use]
    pub fn matches(&self, stored: &str) -> bool {
        self.0 == Secret::new(stored)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdKind {
    /// A session, `ses_…`.
    Session,
    /// An event, `evt_…`.
    Event,
    /// A key, `key_…`.
    Key,
    /// A profile, `pro_…`.
    Profile,
}

impl IdKind {
    /// What ids of this kind begin with.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Session => "ses_",
            Self::Event => "evt_",
            Self::Key => "key_",
            Self::Profile => "pro_",
        }
    }

    /// Draws a new id: the prefix and 32 lowercase hex digits.
    ///
    /// # Errors
    /// [`NoRandomness`] when the operating system has none to give.
    pub fn mint(self) -> Result<String, NoRandomness> {
        let mut id = String::with_capacity(36);
        id.push_str(self.prefix());
        push_hex(&mut id, &draw::<16>()?);
        Ok(id)
    }
}

/// The operating system gave no random numbers, so no key or id can be made.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the operating system gave no random numbers ({0}); check that this process may read them")]
pub struct NoRandomness(String);

fn draw<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
    Ok(bytes)
}

/// Writes bytes as lowercase hex digits.
pub(crate) fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_prefix_and_48_hex_digits() {
        for (role, length) in [(Role::Client, 52), (Role::Session, 56), (Role::Admin, 58)] {
            let key = NewKey::mint(role).unwrap();
            let text = key.plaintext.expose();
            assert_eq!(text.len(), length);
            let digits = text.strip_prefix(role.prefix()).unwrap();
            assert!(digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
            assert_eq!(key.display_prefix, text[..8]);
        }
    }

    #[test]
    fn the_hash_is_the_published_sha_256() {
        assert_eq!(
            KeyHash::of("abc").as_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn a_damaged_stored_hash_does_not_match() {
        let hash = KeyHash::of("bae_1");
        assert!(hash.matches(hash.as_hex()));
        for damaged in ["", "zz", &hash.as_hex()[..63], "\u{fffd}"] {
            assert!(!hash.matches(damaged));
        }
    }

    #[test]
    fn ids_are_a_prefix_and_32_hex_digits_and_do_not_repeat() {
        let one = IdKind::Event.mint().unwrap();
        assert!(one.starts_with("evt_") && one.len() == 36);
        assert_ne!(one, IdKind::Event.mint().unwrap());
    }

    #[test]
    fn neither_key_nor_hash_is_ever_printed() {
        let key = NewKey::from_random(Role::Client, [0xab; 24]);
        let printed = format!("{key:?}");
        assert!(!printed.contains("abababab") && !printed.contains(key.hash.as_hex()));
    }
}
