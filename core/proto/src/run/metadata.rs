//! What the participants of a session keep with it (feature `metadata`): what may be kept, and how it is changed.

use super::depth;
use super::open::session_is_open;
use crate::Json;
use crate::session::feature::Features;
use crate::session::info::{MetadataPatch, SessionState};
use crate::session::problem::Problem;

/// How much a session's metadata may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of its JSON text.
    pub bytes: usize,
    /// Members of its outermost object.
    pub keys: usize,
}

/// What a change comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The metadata is this from now on.
    To(Json),
    /// It says already what it is to say; nothing is logged.
    Nothing,
}

/// The metadata of a session that is opened with this body: nothing when it says none, or the request did not ask for it.
///
/// # Errors
/// `400 bad_request`, naming the member and the limit.
pub fn opening(body: &Json, features: Features, bounds: Bounds) -> Result<Option<Json>, Problem> {
    let Some(said) = body.member("metadata").filter(|said| features.metadata && !said.is_null())
    else {
        return Ok(None);
    };
    check_patch(&said)?;
    let metadata = merge(&Json::empty_object(), &said);
    check_bounds(&metadata, bounds)?;
    Ok(Some(metadata))
}

/// Whether somebody may change the metadata: a driver, of a session that is open.
///
/// # Errors
/// `409 session_closed` or `403 driver_not_registered`.
pub fn may_change(state: &SessionState, registered: bool) -> Result<(), Problem> {
    session_is_open(state)?;
    if registered {
        return Ok(());
    }
    let detail = "call session.registerDriver before changing the session's metadata";
    Err(Problem::new(403, "driver_not_registered", detail))
}

/// Reads the body of a change.
///
/// # Errors
/// `400 bad_request`, naming the member.
pub fn read_patch(body: &Json) -> Result<MetadataPatch, Problem> {
    let metadata = body.member("metadata").ok_or_else(|| bad("metadata is missing"))?;
    check_patch(&metadata)?;
    let version = body.member("version").filter(|version| !version.is_null());
    let version = version.map(|version| version.decode::<u64>()).transpose();
    let version =
        version.map_err(|_| bad("version must be a whole number that is not negative"))?;
    Ok(MetadataPatch { metadata, version })
}

/// What a patch makes of the metadata, which has this version.
///
/// # Errors
/// `409 version_conflict`, or `400 bad_request` when it would hold too much.
pub fn change(
    now: &Json,
    version: u64,
    patch: &MetadataPatch,
    bounds: Bounds,
) -> Result<Change, Problem> {
    if let Some(meant) = patch.version.filter(|meant| *meant != version) {
        let detail = format!(
            "the metadata has version {version}, not {meant}: read it again, then change it"
        );
        return Err(Problem::new(409, "version_conflict", detail));
    }
    let changed = merge(now, &patch.metadata);
    if changed == *now {
        return Ok(Change::Nothing);
    }
    check_bounds(&changed, bounds)?;
    Ok(Change::To(changed))
}

/// A JSON merge patch (RFC 7396). Values that are no objects keep their text; a repeated member counts as its last one. Both
/// sides are known to nest no deeper than [`depth::MAX_LEVELS`].
fn merge(target: &Json, patch: &Json) -> Json {
    let Some(changes) = patch.members() else { return patch.clone() };
    let mut merged = target.members().unwrap_or_default();
    for (name, change) in changes {
        let place = merged.iter().position(|(known, _)| *known == name);
        let before = place.map(|place| merged[place].1.clone());
        if change.is_null() {
            if let Some(place) = place {
                merged.remove(place);
            }
            continue;
        }
        let value = merge(&before.unwrap_or_default(), &change);
        match place {
            Some(place) => merged[place].1 = value,
            None => merged.push((name, value)),
        }
    }
    Json::object(merged.iter().map(|(name, value)| (name.as_str(), value)))
}

fn check_patch(patch: &Json) -> Result<(), Problem> {
    if !patch.is_object() {
        return Err(bad("metadata must be a JSON object"));
    }
    if !depth::fits(patch, depth::MAX_LEVELS) {
        return Err(bad(&depth::too_deep("metadata")));
    }
    Ok(())
}

fn check_bounds(metadata: &Json, bounds: Bounds) -> Result<(), Problem> {
    let bytes = metadata.as_bytes().len();
    if bytes > bounds.bytes {
        let limit = bounds.bytes;
        return Err(bad(&format!("metadata has {bytes} bytes, the limit is {limit}; keep less")));
    }
    let keys = metadata.members().map_or(0, |members| members.len());
    if keys > bounds.keys {
        let limit = bounds.keys;
        return Err(bad(&format!("metadata has {keys} members, the limit is {limit}; keep fewer")));
    }
    Ok(())
}

fn bad(reason: &str) -> Problem {
    Problem::new(400, "bad_request", format!("invalid request body: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bytes: 64, keys: 3 };
    const ASKED: Features = Features { metadata: true, ..Features::NONE };

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn a_patch_is_merged_as_the_rfc_says() {
        // The table of RFC 7396, appendix A, as far as both sides are values at all.
        for (target, patch, merged) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(merge(&json(target), &json(patch)).as_str(), merged, "{target} {patch}");
        }
    }

    #[test]
    fn numbers_keep_their_spelling_and_nothing_is_left_for_a_null() {
        let body = json(r#"{"metadata":{"n":1.50,"gone":null,"big":18446744073709551616}}"#);
        let metadata = opening(&body, ASKED, BOUNDS).unwrap().unwrap();
        assert_eq!(metadata.as_str(), r#"{"n":1.50,"big":18446744073709551616}"#);
    }

    #[test]
    fn a_session_opens_without_metadata_when_none_is_said_or_asked_for() {
        let said = json(r#"{"metadata":{"a":1}}"#);
        assert_eq!(opening(&said, Features::NONE, BOUNDS), Ok(None));
        assert_eq!(opening(&json(r#"{"metadata":3}"#), Features::NONE, BOUNDS), Ok(None));
        assert_eq!(opening(&json("{}"), ASKED, BOUNDS), Ok(None));
        assert_eq!(opening(&json(r#"{"metadata":null}"#), ASKED, BOUNDS), Ok(None));
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_member_and_the_limit() {
        let long = format!(r#"{{"metadata":{{"a":"{}"}}}}"#, "x".repeat(57));
        let deep = format!(r#"{{"metadata":{{"a":{}1{}}}}}"#, "[".repeat(121), "]".repeat(121));
        for (body, why) in [
            (r#"{"metadata":[]}"#, "metadata must be a JSON object"),
            (&*long, "metadata has 65 bytes, the limit is 64; keep less"),
            (
                r#"{"metadata":{"a":1,"b":1,"c":1,"d":1}}"#,
                "metadata has 4 members, the limit is 3; keep fewer",
            ),
            (&*deep, "metadata nests deeper than 121 levels"),
        ] {
            let refused = opening(&json(body), ASKED, BOUNDS).unwrap_err();
            assert_eq!((refused.status, refused.kind.as_str()), (400, "bad_request"));
            assert_eq!(refused.detail, format!("invalid request body: {why}"));
        }
        for (body, why) in [
            ("{}", "metadata is missing"),
            (r#"{"metadata":"x"}"#, "metadata must be a JSON object"),
            (
                r#"{"metadata":{},"version":-1}"#,
                "version must be a whole number that is not negative",
            ),
        ] {
            let refused = read_patch(&json(body)).unwrap_err();
            assert_eq!(refused.detail, format!("invalid request body: {why}"));
        }
    }

    #[test]
    fn a_change_that_means_another_version_is_refused_and_one_that_changes_nothing_is_none() {
        let now = json(r#"{"title":"a","n":{"x":1}}"#);
        let patch = |text: &str| read_patch(&json(text)).unwrap();
        let refused = change(&now, 4, &patch(r#"{"metadata":{},"version":3}"#), BOUNDS);
        let refused = refused.unwrap_err();
        assert_eq!((refused.status, refused.kind.as_str()), (409, "version_conflict"));
        let told = "the metadata has version 4, not 3: read it again, then change it";
        assert_eq!(refused.detail, told);
        for same in [
            r#"{"metadata":{}}"#,
            r#"{"metadata":{"title":"a"},"version":4}"#,
            r#"{"metadata":{"n":{"x":1,"y":null},"z":null}}"#,
        ] {
            assert_eq!(change(&now, 4, &patch(same), BOUNDS), Ok(Change::Nothing), "{same}");
        }
        let changed = change(&now, 4, &patch(r#"{"metadata":{"n":null},"version":4}"#), BOUNDS);
        assert_eq!(changed, Ok(Change::To(json(r#"{"title":"a"}"#))));
        let more = patch(r#"{"metadata":{"b":1,"c":2}}"#);
        assert_eq!(change(&now, 4, &more, BOUNDS).unwrap_err().kind, "bad_request");
    }

    #[test]
    fn drivers_of_an_open_session_may_change_it() {
        assert_eq!(may_change(&SessionState::Open, true), Ok(()));
        let refused = may_change(&SessionState::Open, false).unwrap_err();
        assert_eq!((refused.status, refused.kind.as_str()), (403, "driver_not_registered"));
        for registered in [true, false] {
            let refused = may_change(&SessionState::Closed, registered).unwrap_err();
            assert_eq!((refused.status, refused.kind.as_str()), (409, "session_closed"));
        }
    }
}
