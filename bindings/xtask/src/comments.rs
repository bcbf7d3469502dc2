//! The rules of the comments in the header: every function says who owns what, and from which threads it may be called.

/// What is missing, a line for each.
pub(crate) fn faults(header: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut comment = String::new();
    let mut inside = false;
    for line in header.lines().map(str::trim) {
        if line.starts_with("/*") {
            comment.clear();
            inside = true;
        }
        if inside {
            comment.push_str(line);
            comment.push('\n');
            inside = !line.ends_with("*/");
            continue;
        }
        if let Some(name) = function(line) {
            for heading in ["Ownership:", "Threads:"] {
                if !comment.contains(heading) {
                    faults.push(format!("{name}: its comment has no `{heading}`"));
                }
            }
            comment.clear();
        }
    }
    faults
}

/// The functions that a header declares.
pub(crate) fn functions(header: &str) -> Vec<String> {
    let mut names: Vec<String> =
        header.lines().filter_map(|line| function(line.trim())).map(str::to_owned).collect();
    names.sort();
    names
}

/// The name of the function whose declaration begins with this line.
fn function(line: &str) -> Option<&str> {
    if line.starts_with('#')
        || line.starts_with('*')
        || line.starts_with("typedef")
        || line.starts_with('/')
    {
        return None;
    }
    let before = line.split_once('(')?.0;
    let name = before.rsplit([' ', '*']).next()?;
    (name.starts_with("broca_") && before.len() > name.len()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/*\n Says it.\n * Ownership: nothing.\n * Threads: any.\n */\nconst char *broca_a(void);\n\
        /* * Threads: any. */\nint32_t broca_b(int a,\n            int b);\n\
        typedef void (*broca_fn)(void);\n#define BROCA_X() broca_a()\n";

    #[test]
    fn functions_are_found_and_nothing_else() {
        assert_eq!(functions(HEADER), ["broca_a", "broca_b"]);
    }

    #[test]
    fn a_comment_without_a_heading_is_named() {
        assert_eq!(faults(HEADER), ["broca_b: its comment has no `Ownership:`"]);
    }
}
