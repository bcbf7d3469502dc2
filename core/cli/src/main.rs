//! The `broca` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    broca_cli::main()
}
