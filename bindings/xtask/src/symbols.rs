//! What libbroca exports: exactly the list that is committed. A name that leaves it breaks programs.

use std::path::Path;
use std::process::Command;

/// The names that a shared library exports, as nm tells them.
///
/// # Errors
/// When there is no nm, or it cannot read the library.
pub(crate) fn exported(library: &Path) -> Result<Vec<String>, String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library)
        .output()
        .map_err(|error| format!("nm cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("nm: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    names.sort();
    Ok(names)
}

/// What differs between what is exported and what is listed, a line for each.
pub(crate) fn differences(exported: &[String], listed: &[String]) -> Vec<String> {
    let gone = listed.iter().filter(|name| !exported.contains(name));
    let new = exported.iter().filter(|name| !listed.contains(name));
    gone.map(|name| format!("- {name}")).chain(new.map(|name| format!("+ {name}"))).collect()
}
