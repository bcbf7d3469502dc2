//! What goes beyond the plain contract, asked for with each request (design §6).
//!
//! A request says what it understands in the header [`HEADER`]; the service announces what it has
//! in `GET /api/v1/meta`. A request that asks for nothing sees the plain contract.

use super::content::open_enum;

/// The request header that lists features, separated by commas.
pub const HEADER: &str = "Broca-Features";

open_enum! {
    /// One feature beyond the plain contract.
    Feature {
        /// The display lane: words, reasoning and tool input as they are produced, lossy.
        Display = "display",
        /// `session.cancel`.
        Cancel = "cancel",
    }
}

/// A set of features; a request's, or a service's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// The display lane.
    pub display: bool,
    /// `session.cancel` and what it leaves in the log.
    pub cancel: bool,
}

impl Features {
    /// Everything this version implements.
    pub const ALL: Self = Self { display: true, cancel: true };
    /// The plain contract.
    pub const NONE: Self = Self { display: false, cancel: false };

    /// Reads a header value or a list of words; words nobody knows are skipped.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut found = Self::NONE;
        for word in words.into_iter().flat_map(|list| list.split(',')) {
            match Feature::parse(word.trim()) {
                Feature::Display => found.display = true,
                Feature::Cancel => found.cancel = true,
                Feature::Unknown(_) => {}
            }
        }
        found
    }

    /// The features that are also in `other`.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self { display: self.display && other.display, cancel: self.cancel && other.cancel }
    }

    /// The words of the set, in a fixed order.
    #[must_use]
    pub fn words(self) -> Vec<&'static str> {
        let mut words = Vec::new();
        if self.display {
            words.push("display");
        }
        if self.cancel {
            words.push("cancel");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_skipped() {
        let found = Features::parse(["display , hologram", "cancel"]);
        assert_eq!(found, Features::ALL);
        assert_eq!(Features::parse(["x,,"]), Features::NONE);
        assert_eq!(Features::parse(Features::ALL.words()), Features::ALL);
    }
}
