//! Whether a rule can ever apply: a place that the tool's arguments do not have would silently allow no narrowing at all.

use super::{NarrowRule, NarrowRules};
use crate::Json;
use serde_json::Value;

/// References that are followed inside each other.
const MAX_DEPTH: usize = 32;

impl NarrowRules {
    /// Checks the rules against the JSON Schema of the arguments. What the schema leaves open is admitted.
    ///
    /// # Errors
    /// Which pointer is at fault, and why.
    pub fn fit(&self, schema: &Json) -> Result<(), String> {
        let root: Value = schema.decode().map_err(|e| format!("its schema cannot be read: {e}"))?;
        for (pointer, rule) in self.iter() {
            let fault = |why: &str| format!("the narrowing rule for \"{pointer}\" {why}");
            let tokens = tokens(pointer).ok_or_else(|| {
                fault("is no JSON pointer: it begins with / and has ~ only as ~0 or ~1")
            })?;
            let place = Place { root: &root, rule };
            if !place.holds(&root, &tokens, 0) {
                let why = format!(
                    "can never apply: the tool's schema has no such argument, or not of the type that {} needs",
                    rule.as_str()
                );
                return Err(fault(&why));
            }
        }
        Ok(())
    }
}

/// The tokens of a JSON pointer (RFC 6901).
fn tokens(pointer: &str) -> Option<Vec<String>> {
    let mut parts = pointer.split('/');
    if parts.next() != Some("") {
        return None;
    }
    let decoded = parts.map(|part| {
        let bad = part.replace("~0", "").replace("~1", "").contains('~');
        (!bad).then(|| part.replace("~1", "/").replace("~0", "~"))
    });
    decoded.collect()
}

struct Place<'a> {
    root: &'a Value,
    rule: NarrowRule,
}

impl Place<'_> {
    /// Whether values of `schema` can have the place that `tokens` lead to.
    fn holds(&self, schema: &Value, tokens: &[String], depth: usize) -> bool {
        let Some(members) = schema.as_object() else { return *schema != Value::Bool(false) };
        if depth > MAX_DEPTH {
            return true;
        }
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            // One that leads elsewhere says nothing here.
            let target = reference.strip_prefix('#').map(|at| self.root.pointer(at));
            return match target {
                Some(Some(target)) => self.holds(target, tokens, depth + 1),
                Some(None) => false,
                None => true,
            };
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(branches) = members.get(choice).and_then(Value::as_array)
                && !branches.iter().any(|branch| self.holds(branch, tokens, depth + 1))
            {
                return false;
            }
        }
        let Some((token, rest)) = tokens.split_first() else { return self.fits(schema) };
        let of_object =
            || may_be(schema, &["object"]) && self.in_object(schema, token, rest, depth);
        let of_array = || may_be(schema, &["array"]) && self.in_array(schema, token, rest, depth);
        of_object() || of_array()
    }

    fn in_object(&self, schema: &Value, token: &str, rest: &[String], depth: usize) -> bool {
        let properties = schema.get("properties").and_then(Value::as_object);
        if let Some(property) = properties.and_then(|properties| properties.get(token)) {
            return self.holds(property, rest, depth + 1);
        }
        match schema.get("additionalProperties") {
            Some(more) => self.holds(more, rest, depth + 1),
            // Arguments that are named are all there are, unless the schema says otherwise; in parts of it they may stand
            // elsewhere.
            None => {
                properties.is_none_or(serde_json::Map::is_empty)
                    || ["patternProperties", "allOf", "anyOf", "oneOf"]
                        .iter()
                        .any(|open| schema.get(open).is_some())
            }
        }
    }

    fn in_array(&self, schema: &Value, token: &str, rest: &[String], depth: usize) -> bool {
        let Ok(index) = token.parse::<usize>() else { return false };
        let first = schema.get("prefixItems").and_then(Value::as_array);
        match first.and_then(|first| first.get(index)).or_else(|| schema.get("items")) {
            Some(item) => self.holds(item, rest, depth + 1),
            None => true,
        }
    }

    /// Whether a value of this schema can be of a type that the rule is about.
    fn fits(&self, schema: &Value) -> bool {
        may_be(
            schema,
            match self.rule {
                NarrowRule::RemoveElements => &["array"],
                NarrowRule::AtMost | NarrowRule::AtLeast => &["number", "integer"],
                NarrowRule::PathWithin | NarrowRule::OneOfPrefix => &["string"],
            },
        )
    }
}

/// Whether values of `schema` may be of one of these types, as far as it says.
fn may_be(schema: &Value, types: &[&str]) -> bool {
    let is = |word: &Value| word.as_str().is_some_and(|word| types.contains(&word));
    match schema.get("type") {
        None => true,
        Some(Value::Array(words)) => words.iter().any(is),
        Some(word) => is(word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(schema: &str, pointer: &str, rule: &str) -> bool {
        let rule = (pointer.to_owned(), NarrowRule::parse(rule).unwrap());
        NarrowRules::new([rule]).fit(&Json::parse(schema.to_owned()).unwrap()).is_ok()
    }

    const SCHEMA: &str = r##"{"type":"object","properties":{
        "paths":{"type":"array","items":{"type":"string"}},"limit":{"type":["integer","null"]},
        "where":{"$ref":"#/$defs/Place"},"either":{"anyOf":[{"type":"string"},{"type":"number"}]},
        "tags":{"type":"object","additionalProperties":{"type":"string"}},"a/b":{"type":"string"},"any":{}},
        "$defs":{"Place":{"type":"object","properties":{"path":{"type":"string"},"in":{"$ref":"#/$defs/Place"}}}}}"##;

    #[test]
    fn places_that_the_arguments_have_are_admitted() {
        for (pointer, rule) in [
            ("/paths", "remove_elements"),
            ("/paths/0", "path_within"),
            ("/limit", "at_most"),
            ("/where/path", "path_within"),
            ("/where/in/in/path", "one_of_prefix"),
            ("/either", "at_least"),
            ("/either", "one_of_prefix"),
            ("/tags/whatever", "one_of_prefix"),
            ("/a~1b", "one_of_prefix"),
            ("/any/thing/at/all", "at_most"),
        ] {
            assert!(fits(SCHEMA, pointer, rule), "{pointer} {rule}");
        }
        // A schema that says nothing admits everything.
        for open in ["{}", r#"{"type":"object"}"#, r#"{"type":"object","properties":{}}"#] {
            assert!(fits(open, "/x/0/y", "at_most"), "{open}");
        }
    }

    #[test]
    fn places_that_they_cannot_have_are_refused() {
        for (pointer, rule) in [
            ("/pahts", "remove_elements"),
            ("paths", "remove_elements"),
            ("/~2", "at_most"),
            ("/paths/first", "path_within"),
            ("/paths", "at_most"),
            ("/limit/deeper", "at_most"),
            ("/limit", "path_within"),
            ("/where/nowhere", "path_within"),
            ("/either", "remove_elements"),
            ("", "at_most"),
        ] {
            assert!(!fits(SCHEMA, pointer, rule), "{pointer} {rule}");
        }
        let closed = r#"{"type":"object","additionalProperties":false}"#;
        assert!(!fits(closed, "/x", "at_most"));
        let endless = r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}"##;
        assert!(fits(endless, "/x", "at_most"), "it ends, and what is unclear is admitted");
    }

    #[test]
    fn the_pointer_at_fault_is_named() {
        let rules = NarrowRules::new([("/pahts".to_owned(), NarrowRule::RemoveElements)]);
        let fault = rules.fit(&Json::parse(SCHEMA.to_owned()).unwrap()).unwrap_err();
        assert!(fault.contains("\"/pahts\"") && fault.contains("remove_elements"), "{fault}");
    }
}
