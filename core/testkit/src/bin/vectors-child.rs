//! Holds an engine behind the bridge for `vectors --through`: the child of the protocol in `core/vectors/README.md`.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let output = BufWriter::new(std::io::stdout().lock());
    match broca_testkit::spoken::answer_lines(std::io::stdin().lock(), output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "vectors-child: {why}");
            ExitCode::from(2)
        }
    }
}
