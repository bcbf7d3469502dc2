//! Approvals may narrow, never widen (two-lane §15).
//!
//! What is narrower depends on the tool: taking a filter away widens. So narrowing is declared: a
//! rule for a JSON pointer into the arguments. Everything without a rule must stay equal.

mod fit;

use crate::Json;
use serde_json::Value;

/// How one argument may be narrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NarrowRule {
    /// An array may lose elements; order and multiplicity stay, and one must remain.
    RemoveElements,
    /// A number may become smaller.
    AtMost,
    /// A number may become larger.
    AtLeast,
    /// A path may become one at or below it, without `..`.
    PathWithin,
    /// A string may be extended at its end.
    OneOfPrefix,
}

impl NarrowRule {
    /// The rule that `word` stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "remove_elements" => Self::RemoveElements,
            "at_most" => Self::AtMost,
            "at_least" => Self::AtLeast,
            "path_within" => Self::PathWithin,
            "one_of_prefix" => Self::OneOfPrefix,
            _ => return None,
        })
    }

    /// The word used in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RemoveElements => "remove_elements",
            Self::AtMost => "at_most",
            Self::AtLeast => "at_least",
            Self::PathWithin => "path_within",
            Self::OneOfPrefix => "one_of_prefix",
        }
    }

    fn admits(self, requested: &Value, given: &Value) -> bool {
        match (self, requested, given) {
            (Self::RemoveElements, Value::Array(requested), Value::Array(given)) => {
                let mut rest = requested.iter();
                !given.is_empty() && given.iter().all(|g| rest.any(|r| equal(r, g)))
            }
            (Self::AtMost, Value::Number(requested), Value::Number(given)) => {
                compare(given, requested).is_some_and(|o| o.is_le())
            }
            (Self::AtLeast, Value::Number(requested), Value::Number(given)) => {
                compare(given, requested).is_some_and(|o| o.is_ge())
            }
            (Self::PathWithin, Value::String(requested), Value::String(given)) => {
                path_within(requested, given)
            }
            (Self::OneOfPrefix, Value::String(requested), Value::String(given)) => {
                given.starts_with(requested.as_str())
            }
            _ => false,
        }
    }
}

/// The rules of one tool: JSON pointer → rule.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NarrowRules(Vec<(String, NarrowRule)>);

impl NarrowRules {
    /// Rules by JSON pointer (RFC 6901), such as `/paths`.
    pub fn new(rules: impl IntoIterator<Item = (String, NarrowRule)>) -> Self {
        Self(rules.into_iter().collect())
    }

    /// The rules, as they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, NarrowRule)> {
        self.0.iter().map(|(pointer, rule)| (pointer.as_str(), *rule))
    }

    /// Whether `given` is the requested input or narrower in declared places only.
    ///
    /// Numbers are compared exactly when both are integers. Input that cannot be read is refused.
    #[must_use]
    pub fn admit(&self, requested: &Json, given: &Json) -> bool {
        self.widened(requested, given).is_none()
    }

    /// The place, as a JSON pointer, at which `given` is neither the requested input nor narrower; nothing when it is
    /// admitted. The whole input is the empty pointer.
    #[must_use]
    pub fn widened(&self, requested: &Json, given: &Json) -> Option<String> {
        if requested == given {
            return None;
        }
        let (Ok(requested), Ok(given)) = (requested.decode::<Value>(), given.decode::<Value>())
        else {
            return Some(String::new());
        };
        let mut pointer = String::new();
        (!self.admit_at(&mut pointer, &requested, &given)).then_some(pointer)
    }

    /// When it does not admit, `pointer` is left at the place at fault.
    fn admit_at(&self, pointer: &mut String, requested: &Value, given: &Value) -> bool {
        if equal(requested, given) {
            return true;
        }
        if let Some((_, rule)) = self.0.iter().find(|(at, _)| at == pointer) {
            return rule.admits(requested, given);
        }
        let mut child = |token: &str, r: &Value, g: &Value| {
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
            let admitted = self.admit_at(pointer, r, g);
            if admitted {
                pointer.truncate(length);
            }
            admitted
        };
        match (requested, given) {
            (Value::Object(requested), Value::Object(given)) => {
                requested.len() == given.len()
                    && requested.keys().all(|name| given.contains_key(name))
                    && requested.iter().all(|(k, r)| given.get(k).is_some_and(|g| child(k, r, g)))
            }
            (Value::Array(requested), Value::Array(given)) => {
                requested.len() == given.len()
                    && requested
                        .iter()
                        .zip(given)
                        .enumerate()
                        .all(|(i, (r, g))| child(&i.to_string(), r, g))
            }
            _ => false,
        }
    }
}

/// Equality as values: object members in any order, numbers by value.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_some_and(|o| o.is_eq()),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, a)| b.get(k).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

fn compare(a: &serde_json::Number, b: &serde_json::Number) -> Option<std::cmp::Ordering> {
    let integer =
        |n: &serde_json::Number| n.as_i64().map(i128::from).or_else(|| n.as_u64().map(i128::from));
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn path_within(requested: &str, given: &str) -> bool {
    let absolute = |path: &str| path.starts_with('/');
    if absolute(requested) != absolute(given) || given.is_empty() {
        return false;
    }
    let parts = |path: &str| -> Option<Vec<String>> {
        let parts = path.split('/').filter(|p| !p.is_empty() && *p != ".");
        let parts: Vec<String> = parts.map(str::to_owned).collect();
        // A backslash separates on some systems, a NUL ends the path on others: neither is judged here.
        let odd = |p: &String| p == ".." || p.contains(['\\', '\0']);
        (!parts.iter().any(odd)).then_some(parts)
    };
    match (parts(requested), parts(given)) {
        (Some(requested), Some(given)) => given.starts_with(&requested),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(rules: &[(&str, &str)], requested: &str, given: &str) -> bool {
        let rules = rules.iter().map(|(p, r)| ((*p).to_owned(), NarrowRule::parse(r).unwrap()));
        let json = |t: &str| Json::parse(t.to_owned()).unwrap();
        NarrowRules::new(rules).admit(&json(requested), &json(given))
    }

    #[test]
    fn without_rules_only_the_same_input_passes() {
        assert!(admits(&[], r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#));
        assert!(!admits(&[], r#"{"a":1}"#, r#"{"a":2}"#));
        assert!(!admits(&[], r#"{"a":1}"#, r#"{}"#));
        assert!(!admits(&[], r#"{"a":1}"#, r#"{"a":1,"b":2}"#));
    }

    #[test]
    fn elements_may_be_removed_but_not_added_reordered_or_all_removed() {
        let rules = [("/paths", "remove_elements")];
        assert!(admits(&rules, r#"{"paths":["a","b"]}"#, r#"{"paths":["a"]}"#));
        assert!(!admits(&rules, r#"{"paths":["a","b"]}"#, r#"{"paths":[]}"#));
        assert!(!admits(&rules, r#"{"paths":["c"]}"#, r#"{"paths":["c","d"]}"#));
        assert!(!admits(&rules, r#"{"paths":["a","b"]}"#, r#"{"paths":["b","a"]}"#));
        assert!(!admits(&rules, r#"{"paths":["a"]}"#, r#"{"paths":["a","a"]}"#));
        assert!(!admits(&rules, r#"{"paths":["a"],"x":1}"#, r#"{"paths":["a"],"x":2}"#));
    }

    #[test]
    fn numbers_move_one_way_only_and_exactly() {
        assert!(admits(&[("/n", "at_most")], r#"{"n":5}"#, r#"{"n":4}"#));
        assert!(!admits(
            &[("/n", "at_most")],
            r#"{"n":9007199254740992}"#,
            r#"{"n":9007199254740993}"#
        ));
        assert!(admits(&[("/n", "at_least")], r#"{"n":5}"#, r#"{"n":5.5}"#));
        assert!(!admits(&[("/n", "at_least")], r#"{"n":5}"#, r#"{"n":"9"}"#));
    }

    #[test]
    fn paths_may_only_go_down() {
        let rules = [("/p", "path_within")];
        assert!(admits(&rules, r#"{"p":"/a/b"}"#, r#"{"p":"/a/b/c"}"#));
        assert!(admits(&rules, r#"{"p":"/a/b/"}"#, r#"{"p":"/a//b"}"#));
        for given in ["/a", "/a/bc", "/a/b/../c", "a/b/c", "/a/b/..", "/a/b\\\\..\\\\c", ""] {
            assert!(
                !admits(&rules, r#"{"p":"/a/b"}"#, &format!(r#"{{"p":"{given}"}}"#)),
                "{given}"
            );
        }
    }

    #[test]
    fn rules_reach_into_objects_and_arrays() {
        let rules = [("/a/0/n", "at_most"), ("/b~1c", "one_of_prefix")];
        assert!(admits(&rules, r#"{"a":[{"n":2}],"b/c":"x"}"#, r#"{"a":[{"n":1}],"b/c":"xy"}"#));
        assert!(!admits(&rules, r#"{"a":[{"n":2}],"b/c":"x"}"#, r#"{"a":[{"n":1},1],"b/c":"x"}"#));
    }
}
