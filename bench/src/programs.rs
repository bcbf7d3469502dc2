//! What a contender is: a program in its own language that is given an address, measures itself
//! and prints one line of JSON.

use crate::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Somebody who takes part in a row.
#[derive(Debug)]
pub(crate) struct Contender {
    /// As it stands in the table.
    pub(crate) name: &'static str,
    /// What runs.
    pub(crate) program: Program,
}

/// How a contender is started.
#[derive(Debug)]
pub(crate) enum Program {
    /// A function of this program.
    Rust(&'static str),
    /// `bench/python/FILE WORDS… ADDRESS`, in an environment that has these modules.
    Python { file: &'static str, words: &'static [&'static str], modules: &'static [&'static str] },
    /// `bench/node/FILE WORDS… ADDRESS`, beside these packages.
    Node { file: &'static str, words: &'static [&'static str], packages: &'static [&'static str] },
    /// What `bench/c/SOURCE.c` was compiled to.
    C { source: &'static str },
}

impl Program {
    /// The language that `bench/setup.sh` has to set up first.
    pub(crate) fn language(&self) -> Option<&'static str> {
        match self {
            Self::Rust(_) => None,
            Self::Python { .. } => Some("python"),
            Self::Node { .. } => Some("node"),
            Self::C { .. } => Some("c"),
        }
    }

    /// Why it cannot run here, if so.
    pub(crate) fn missing(&self) -> Option<String> {
        match self {
            Self::Rust(_) => None,
            Self::Python { modules, .. } => {
                let python = python();
                if !python.exists() {
                    return Some(format!("there is no {}", python.display()));
                }
                modules.iter().find_map(|module| {
                    let mut import = Command::new(&python);
                    let imported = import.args(["-c", &format!("import {module}")]).output();
                    match imported {
                        Ok(done) if done.status.success() => None,
                        Ok(done) => {
                            let why = last_line(&String::from_utf8_lossy(&done.stderr));
                            Some(format!("python cannot import {module}: {why}"))
                        }
                        Err(error) => Some(format!("{}: {error}", python.display())),
                    }
                })
            }
            Self::Node { packages, .. } => packages.iter().find_map(|package| {
                let folder = prepared().join("node/node_modules").join(package);
                (!folder.exists()).then(|| format!("the package {package} is not installed"))
            }),
            Self::C { source } => {
                let program = compiled(source);
                (!program.exists()).then(|| format!("there is no {}", program.display()))
            }
        }
    }

    /// The command that runs it against `address`.
    pub(crate) fn command(&self, address: &str) -> Result<Command, Failure> {
        let mut command = match self {
            Self::Rust(name) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["contender", name]);
                command
            }
            Self::Python { file, words, .. } => {
                let mut command = Command::new(python());
                // Nothing is written beside the sources.
                command.arg("-B").arg(root().join("bench/python").join(file)).args(*words);
                command
            }
            Self::Node { file, words, .. } => {
                let mut command = Command::new("node");
                // Modules find packages beside themselves: bench/setup.sh has put a copy there.
                command.arg(prepared().join("node").join(file)).args(*words);
                command
            }
            Self::C { source } => Command::new(compiled(source)),
        };
        command.arg(address);
        Ok(command)
    }
}

/// The folder of this checkout.
fn root() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

/// What `bench/setup.sh` prepares, and where the summary goes.
pub(crate) fn prepared() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder).join("bench"),
        None => root().join("target/bench"),
    }
}

fn python() -> PathBuf {
    prepared().join("venv/bin/python")
}

fn compiled(source: &str) -> PathBuf {
    prepared().join("c").join(source)
}

/// The last line that says something, which is where interpreters put the reason.
pub(crate) fn last_line(text: &str) -> String {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}
