//! The drivers in other languages: processes that tell what happens, a line for each thing, as
//! `examples/demo/README.md` says.

use crate::Trouble;
use crate::screen::{Screen, Speaker};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

/// Where the packages are installed and the drivers lie beside them; `scripts/demo.sh` has put them there.
pub(crate) struct Drivers {
    folder: PathBuf,
}

impl Drivers {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The program of a language and what it is given before the arguments of every driver.
    fn program(&self, language: Speaker) -> (PathBuf, Vec<OsString>) {
        let exe = std::env::consts::EXE_SUFFIX;
        match language {
            Speaker::Python => {
                let own = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
                let home = self.folder.join("python");
                (home.join(own), vec![home.join("driver.py").into()])
            }
            Speaker::Node => {
                (PathBuf::from("node"), vec![self.folder.join("node/driver.mjs").into()])
            }
            _ => (self.folder.join(format!("c/driver{exe}")), Vec::new()),
        }
    }
}

/// What a driver in another language does: where it takes part, and what it asks about which file.
pub(crate) struct Task<'a> {
    pub(crate) language: Speaker,
    pub(crate) url: &'a str,
    pub(crate) key: &'a str,
    pub(crate) session: &'a str,
    pub(crate) file: &'a str,
    pub(crate) question: String,
}

impl Task<'_> {
    /// Waits for another driver, starts this one, shows what it tells, and gives the answer that it got. `asked` is told when
    /// its message leaves. Dropped, it ends the process.
    pub(crate) async fn run_after(
        self,
        other: oneshot::Receiver<()>,
        drivers: &Drivers,
        asked: oneshot::Sender<()>,
        screen: &Screen,
    ) -> Result<String, Trouble> {
        // The other one may have failed, which ends all of it.
        let _told = other.await;
        let (program, first) = drivers.program(self.language);
        let mut process = self.start(&program, first)?;
        let lines = process.stdout.take().map(|out| BufReader::new(out).lines());
        let mut lines = lines.ok_or_else(|| self.trouble("has no output"))?;
        let mut asked = Some(asked);
        let mut answer = None;
        let broken = |e: std::io::Error| self.trouble(&format!("cannot be read: {e}"));
        while let Some(line) = lines.next_line().await.map_err(broken)? {
            let (verb, text) = line.split_once(' ').unwrap_or((&line, ""));
            let text = unescaped(text);
            match verb {
                "joins" => {
                    screen.say(self.language, &format!("joins, bringing the tool {text}"));
                }
                "asks" => {
                    screen.say(self.language, &format!("asks: {text}"));
                    if let Some(asked) = asked.take() {
                        // Nobody waits for it when the demo is being ended.
                        let _ended = asked.send(());
                    }
                }
                "runs" => screen.say(self.language, &format!("runs {text}")),
                "words" => screen.words(self.language, &text),
                "reply" => {
                    screen.close();
                    answer = Some(text);
                }
                other => {
                    return Err(self.trouble(&format!("told \"{other}\", which means nothing")));
                }
            }
        }
        let status = process.wait().await;
        let status = status.map_err(|e| self.trouble(&format!("cannot be waited for: {e}")))?;
        if !status.success() {
            return Err(
                self.trouble(&format!("ended badly ({status}); its own line above says why"))
            );
        }
        answer.ok_or_else(|| self.trouble("ended without an answer"))
    }

    fn start(&self, program: &Path, first: Vec<OsString>) -> Result<Child, Trouble> {
        let mut command = Command::new(program);
        command
            .args(first)
            .args([self.url, self.session, self.file, &self.question])
            .env("BROCA_CLIENT_KEY", self.key)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        // Ctrl-C at the terminal is for the demo alone, which ends its drivers.
        #[cfg(unix)]
        command.process_group(0);
        command.spawn().map_err(|e| {
            let program = program.display();
            self.trouble(&format!("cannot be started: {program}: {e}; make demo builds it"))
        })
    }

    fn trouble(&self, what: &str) -> Trouble {
        Trouble(format!("the driver in {} {what}", self.language.name()))
    }
}

/// A text of a driver's line, with its line breaks and backslashes.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => plain.push('\\'),
            },
            c => plain.push(c),
        }
    }
    plain
}
