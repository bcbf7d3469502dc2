//! `include/broca.h`: cbindgen's view of the interface's source, with what Rust cannot say.

use cbindgen::{Braces, Config, DocumentationLength, DocumentationStyle, Language, Layout, Style};
use std::collections::HashMap;
use std::path::Path;

/// What types are called in C.
const NAMES: [(&str, &str); 16] = [
    ("Bytes", "broca_bytes"),
    ("Client", "broca_client"),
    ("DestroyFn", "broca_destroy_fn"),
    ("Failure", "broca_error"),
    ("Hub", "broca_io"),
    ("OnStep", "broca_step_fn"),
    ("Options", "broca_options"),
    ("Request", "broca_request"),
    ("ResolveFn", "broca_resolve_fn"),
    ("Saved", "broca_saved"),
    ("Session", "broca_session"),
    ("Socket", "broca_socket"),
    ("Status", "broca_status"),
    ("Step", "broca_step"),
    ("Subscription", "broca_subscription"),
    ("Tool", "broca_tool"),
];
const MORE_NAMES: [(&str, &str); 3] =
    [("Content", "broca_content"), ("Turn", "broca_turn"), ("WakeFn", "broca_wake_fn")];

/// Objects that change behind a lock of their own. Rust lends them shared, which cbindgen shows as const; to C they are
/// what its functions act on. Steps, errors, options and tools are const exactly where they are not changed.
const HANDLES: [&str; 6] = ["client", "io", "session", "turn", "subscription", "request"];

/// The header, of the crate in this folder.
///
/// # Errors
/// What keeps it from being made.
pub(crate) fn generate(capi: &Path, version: &str) -> Result<String, String> {
    let names = NAMES.iter().chain(&MORE_NAMES);
    let rename: HashMap<String, String> =
        names.map(|(rust, c)| ((*rust).to_owned(), (*c).to_owned())).collect();
    let mut config = Config {
        language: Language::C,
        cpp_compat: true,
        include_guard: Some("BROCA_H".to_owned()),
        header: Some(INTRODUCTION.trim_start().to_owned()),
        after_includes: Some(macros(version)?),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        style: Style::Both,
        braces: Braces::SameLine,
        line_length: 100,
        tab_width: 4,
        documentation: true,
        documentation_length: DocumentationLength::Full,
        documentation_style: DocumentationStyle::Doxy,
        ..Config::default()
    };
    config.export.rename = rename;
    config.export.exclude =
        vec!["broca_testing_panic".to_owned(), "broca_testing_throw".to_owned()];
    config.function.args = Layout::Auto;
    config.function.sort_by = Some(cbindgen::SortKey::None);
    config.sort_by = cbindgen::SortKey::None;
    config.usize_is_size_t = true;
    let bindings = cbindgen::Builder::new()
        .with_crate(capi)
        .with_config(config)
        .generate()
        .map_err(|error| format!("cbindgen cannot read the interface: {error}"))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    let mut text = String::from_utf8(text).map_err(|_| "cbindgen wrote no UTF-8".to_owned())?;
    for (_, name) in NAMES.iter().chain(&MORE_NAMES) {
        text = text.replace(&format!("struct {name} *"), &format!("{name} *"));
    }
    text = text.replace("\nstruct broca_bytes ", "\nbroca_bytes ");
    for handle in HANDLES {
        text = text.replace(&format!("const broca_{handle} *"), &format!("broca_{handle} *"));
    }
    Ok(text)
}

const INTRODUCTION: &str = "
/*
 * libbroca: take part in agent sessions from C and C++. docs/c.md is the guide.
 *
 * Made of bindings/capi by `cargo run -p broca-xtask -- header`; not edited by hand. All of it is since 0.1.
 *
 * Functions     read broca_<type>_<verb>(<type> *self, inputs, outputs, broca_error **err) and return a broca_status:
 *               0 or a negative number of the table of errors. `err` may be NULL; else it is NULL after success, and after
 *               a failure an error that the caller frees. Other outputs are NULL or 0 after a failure.
 * Texts in      are a pointer and a length in bytes, UTF-8 unless something else is said. (NULL, 0) is empty. They are copied.
 * Texts out     are broca_bytes: borrowed, with a NUL behind them that is not counted.
 * Ownership     `borrows`: only during the call. `copies`: what is needed is copied. `takes`: it is the library's from here on.
 *               `returns owned`: the caller frees it with the function of its type. `returns borrowed from X until Y`: X keeps
 *               it until Y. Every free takes NULL. Objects keep what they need: the order of freeing does not matter.
 * Threads       `any`: from any thread, also at the same time. The library starts none.
 * Forks         A client belongs to the process that made it: elsewhere its calls fail with BROCA_E_FORKED.
 * Callbacks     are called without any lock of the library held, and may call the library. They must not throw or jump out.
 */
";

fn macros(version: &str) -> Result<String, String> {
    let parts: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    let [major, minor, patch] = parts[..] else {
        return Err(format!("the version {version} has no three numbers"));
    };
    let number = major * 1_000_000 + minor * 1_000 + patch;
    Ok(format!(
        "
#define BROCA_VERSION \"{version}\"
#define BROCA_VERSION_MAJOR {major}
#define BROCA_VERSION_MINOR {minor}
#define BROCA_VERSION_PATCH {patch}
/* MAJOR * 1000000 + MINOR * 1000 + PATCH */
#define BROCA_VERSION_NUMBER {number}

/* Whether the library that was loaded fits the header that was compiled: 1 or 0. */
#define BROCA_CHECK_ABI() (broca_abi_version() == BROCA_ABI_VERSION)

/* A broca_bytes in printf: printf(\"%\" BROCA_FORMAT \"\\n\", BROCA_ARGUMENTS(text)). */
#define BROCA_FORMAT \".*s\"
#define BROCA_ARGUMENTS(bytes) (int)(bytes).len, ((bytes).data ? (bytes).data : \"\")
"
    ))
}
