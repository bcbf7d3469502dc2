//! Texts of the configuration file that name environment variables: `${VAR}`, resolved when they are used.

use broca_proto::Secret;
use std::fmt;

/// A text in which `${VAR}` stands for an environment variable. A `$` before anything else is itself.
///
/// It is kept as it was written: what the variables hold is looked up for each use and never kept. What is written may be
/// a secret itself, so debug output shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    written: Secret,
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq)]
enum Part {
    Text(Secret),
    Variable(String),
}

/// An environment variable that a text needs is not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {0} is not set")]
pub struct UnsetVariable(pub String);

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it: a `${` that is not closed, or one that names no variable.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find("${") {
            let (before, after) = (&rest[..open], &rest[open + 2..]);
            let close = after.find('}').ok_or("a \"${\" is not closed by a \"}\"")?;
            let name = &after[..close];
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err("a \"${}\" must name an environment variable");
            }
            if !before.is_empty() {
                parts.push(Part::Text(Secret::new(before)));
            }
            parts.push(Part::Variable(name.to_owned()));
            rest = &after[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(Secret::new(rest)));
        }
        Ok(Self { written: Secret::new(text), parts })
    }

    /// The text with the variables that `variable` looks up.
    ///
    /// # Errors
    /// [`UnsetVariable`] naming the first one that is not set.
    pub fn resolve(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Secret, UnsetVariable> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part.expose()),
                Part::Variable(name) => {
                    let value = variable(name).ok_or_else(|| UnsetVariable(name.clone()))?;
                    text.push_str(Secret::new(value).expose());
                }
            }
        }
        Ok(Secret::new(text))
    }

    /// The text as it was written, variables unresolved.
    #[must_use]
    pub fn written(&self) -> &Secret {
        &self.written
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Template(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<String, UnsetVariable> {
        let variable = |name: &str| (name == "KEY").then(|| "k1".to_owned());
        Ok(Template::parse(text).unwrap().resolve(variable)?.expose().to_owned())
    }

    #[test]
    fn variables_are_resolved_and_a_plain_dollar_is_itself() {
        for (text, resolved) in [
            ("", ""),
            ("plain", "plain"),
            ("${KEY}", "k1"),
            ("Bearer ${KEY}!", "Bearer k1!"),
            ("${KEY}${KEY}", "k1k1"),
            ("$KEY costs $5 $", "$KEY costs $5 $"),
            ("$${KEY}", "$k1"),
        ] {
            assert_eq!(resolve(text).unwrap(), resolved, "{text}");
        }
        assert_eq!(resolve("a${OTHER}"), Err(UnsetVariable("OTHER".to_owned())));
    }

    #[test]
    fn an_unterminated_variable_is_an_error_and_nothing_is_shown() {
        assert!(Template::parse("a${KEY").unwrap_err().contains("not closed"));
        assert!(Template::parse("${}").unwrap_err().contains("must name"));
        assert_eq!(format!("{:?}", Template::parse("hunter2").unwrap()), "Template(…)");
    }
}
