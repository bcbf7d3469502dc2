//! What a person types after `broca`.

use crate::fault::Fault;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 it failed, 2 wrong usage, 3 the service cannot be reached,
4 refused (key or profile), 130 interrupted. Errors are one line on the error stream.";

/// Agent sessions from the command line.
#[derive(Debug, Parser)]
#[command(
    name = "broca",
    version,
    about = "Agent sessions: run the service, take part, watch.",
    after_help = EXIT_CODES,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the session service.
    Serve(ServeArguments),
    /// Talk to a model in a session, with tools of yours.
    Chat(ChatArguments),
    /// Watch a session: one line for each event.
    Watch(WatchArguments),
    /// Check the way to a service, the key and the stream, and say what to do about what is wrong.
    Doctor(DoctorArguments),
    /// Make, list, rotate and revoke keys for clients.
    #[command(subcommand)]
    Key(KeyCommand),
    /// For tests: stand before a service and break connections on demand.
    Proxy(ProxyArguments),
    /// Print the version.
    Version,
}

const KEY_EXAMPLES: &str = "\
Examples:
  broca key create ada --dev                             a key for the service of broca serve --dev
  broca key list --db team.db                            while no service has the database open
  broca key revoke key_… --admin-url http://127.0.0.1:8081 --admin-key-file admin-key.pem

A service that runs is asked on its admin port: --admin-url or BROCA_ADMIN_URL, with --admin-key-file
or BROCA_ADMIN_KEY. Without one, the database is opened, which no service may have open then.";

/// `broca key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Make a client key, print it and end.
    #[command(after_help = KEY_EXAMPLES)]
    Create(KeyCreateArguments),
    /// List the client keys: id, beginning, last use, name.
    #[command(after_help = KEY_EXAMPLES)]
    List(KeyListArguments),
    /// Give a client key new plaintext and print it; the old one is good for a while.
    #[command(after_help = KEY_EXAMPLES)]
    Rotate(KeyRotateArguments),
    /// End a client key, and close the sessions in which nobody else takes part.
    #[command(after_help = KEY_EXAMPLES)]
    Revoke(KeyRevokeArguments),
}

impl KeyCommand {
    const fn manage(&self) -> &ManageArguments {
        match self {
            Self::Create(create) => &create.manage,
            Self::List(list) => &list.manage,
            Self::Rotate(rotate) => &rotate.manage,
            Self::Revoke(revoke) => &revoke.manage,
        }
    }
}

/// Which service is managed.
#[derive(Debug, Args)]
pub struct ManageArguments {
    /// The service of broca serve --dev, whether it runs or not.
    #[arg(long)]
    pub dev: bool,
    /// The database file, while no service has it open [default: as with broca serve].
    #[arg(long, value_name = "PATH")]
    pub db: Option<PathBuf>,
    /// The admin port of a service that runs [default: BROCA_ADMIN_URL].
    #[arg(long, value_name = "URL", conflicts_with_all = ["db", "dev"])]
    pub admin_url: Option<String>,
    /// A file that holds its admin key [default: BROCA_ADMIN_KEY].
    #[arg(long, value_name = "FILE")]
    pub admin_key_file: Option<PathBuf>,
    /// One JSON object per line, for programs.
    #[arg(long)]
    pub json: bool,
}

/// `broca key create`.
#[derive(Debug, Args)]
pub struct KeyCreateArguments {
    /// What its owner calls it.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The profile that it is bound to; main allows every tool and is made if it is not there.
    #[arg(long, value_name = "NAME", default_value = "main")]
    pub profile: String,
    /// Which service.
    #[command(flatten)]
    pub manage: ManageArguments,
}

/// `broca key list`.
#[derive(Debug, Args)]
pub struct KeyListArguments {
    /// Which service.
    #[command(flatten)]
    pub manage: ManageArguments,
}

/// `broca key rotate`.
#[derive(Debug, Args)]
pub struct KeyRotateArguments {
    /// The id of the key, as broca key list shows it.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Seconds that the old plaintext is good [default: as the service is set, an hour].
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub overlap: Option<u64>,
    /// Which service.
    #[command(flatten)]
    pub manage: ManageArguments,
}

/// `broca key revoke`.
#[derive(Debug, Args)]
pub struct KeyRevokeArguments {
    /// The id of the key, as broca key list shows it.
    #[arg(value_name = "ID")]
    pub id: String,
    /// Which service.
    #[command(flatten)]
    pub manage: ManageArguments,
}

impl Command {
    /// Whether the output is for a program.
    #[must_use]
    pub const fn json(&self) -> bool {
        match self {
            Self::Serve(serve) => serve.json,
            Self::Chat(chat) => chat.json,
            Self::Watch(watch) => watch.json,
            Self::Doctor(doctor) => doctor.json,
            Self::Key(command) => command.manage().json,
            // Its output is one JSON object per line.
            Self::Proxy(_) => true,
            Self::Version => false,
        }
    }
}

const SERVE_EXAMPLES: &str = "\
Examples:
  broca serve --dev                                      a service for yourself, no key needed
  broca serve --dev --model scripted:answers.json        answers from a script
  broca serve --dev --model openai:gpt-4.1-mini          key in OPENAI_API_KEY
  broca serve --dev --model openai:qwen3 --base-url http://127.0.0.1:11434/v1

Without --dev the service needs keys, made while it does not run: broca key create NAME --db PATH.
A second port on this machine alone is for its operator: profiles, keys, sessions. Its key is made at
the first start, in admin-key.pem beside the database.
Options win over variables (BROCA_ADDR, BROCA_DB_PATH, BROCA_CONFIG, BROCA_LOG …, or the same with
BAE_), those over the configuration file, and that over the defaults: see docs/operate.md.";

/// `broca serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
pub struct ServeArguments {
    /// For development: makes a key and keeps it with the database in your state folder.
    #[arg(long)]
    pub dev: bool,
    /// Where to listen; port 0 takes a free one [default: 0.0.0.0:8080, with --dev 127.0.0.1:8080].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub addr: Option<SocketAddr>,
    /// The database file [default: /var/lib/bae/bae.db, with --dev in your state folder].
    #[arg(long, value_name = "PATH")]
    pub db: Option<PathBuf>,
    /// scripted, scripted:FILE or openai:NAME; several are tried in order [default: scripted].
    #[arg(long, value_name = "MODEL")]
    pub model: Vec<String>,
    /// Where the openai: models are, such as http://127.0.0.1:11434/v1.
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// The environment variable that holds their key [default: OPENAI_API_KEY, none with --base-url].
    #[arg(long, value_name = "VARIABLE")]
    pub model_key_env: Option<String>,
    /// The most tokens of one answer of an openai: model.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_tokens: Option<u64>,
    /// Seconds that a turn waits for the results of tools [default: 120].
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub turn_timeout: Option<u64>,
    /// Seconds that running turns may go on when the service is told to end [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub shutdown_timeout: Option<u64>,
    /// The configuration file, in TOML: providers, MCP servers, telemetry, settings [default: none].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read the configuration, say whether it is good, and end.
    #[arg(long)]
    pub check_config: bool,
    /// Where the admin port listens, on this machine alone, or off [default: 127.0.0.1:8081].
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = admin_address)]
    pub admin_addr: Option<AdminAddress>,
    /// The file for a new admin key [default: admin-key.pem beside the database].
    #[arg(long, value_name = "FILE")]
    pub admin_key_file: Option<PathBuf>,
    /// A file with the hash of the first admin key [default: admin-key-hash.pem beside the database].
    #[arg(long, value_name = "FILE")]
    pub admin_key_hash_file: Option<PathBuf>,
    /// Make a new admin key; the old one ends.
    #[arg(long)]
    pub rotate_admin_key: bool,
    /// Let everybody on this machine use the admin port without a key.
    #[arg(long)]
    pub dangerously_disable_admin_auth: bool,
    /// What to log on the error stream, such as info, debug or broca_server=trace [default: warn].
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// End when the standard input ends, so that it never outlives the program that started it.
    #[arg(long)]
    pub end_with_input: bool,
    /// One JSON object per line, for programs; keys are not printed.
    #[arg(long)]
    pub json: bool,
}

/// Where the service is, and by what right.
#[derive(Debug, Args)]
pub struct ReachArguments {
    /// The service [default: BROCA_URL, BAE_SERVER_URL, else the one of broca serve --dev].
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The client key; others can see it in the process list, so better use --key-file.
    #[arg(long, value_name = "KEY", conflicts_with = "key_file")]
    pub key: Option<String>,
    /// A file that holds it [default: BROCA_CLIENT_KEY, BAE_CLIENT_KEY, else the key of --dev].
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

const CHAT_EXAMPLES: &str = "\
Examples:
  broca chat                                             line by line; Ctrl-D leaves
  broca chat 'What time is it? clock'                    one message
  git diff | broca chat --session ses_…                  one message, in a session there is
  broca chat --tool count='wc -w' 'count \"to be or not\"'
  broca chat --tool run=sh --ask run 'run \"uptime\"'    asks before it runs

A tool is a command: it gets the arguments as JSON on its standard input, and what it prints is the
result. A status other than 0 is a failure, and the end of its error output says why. It finds its
name in BROCA_TOOL_NAME and, in BROCA_IDEMPOTENCY_KEY, a key for what must not happen twice.

Before a call of a tool of --ask, the service's own included, the next line of the input decides: y, n,
or a reason to say no, which the model reads. At the end of the input there is nobody to ask, and the answer is no.
Ctrl-C cancels the turn; pressed twice at the prompt it leaves.

A key is one driver: a chat that joins with the key of another brings its tools in place of the
other's. Make a key for each with broca key create.";

/// `broca chat`.
#[derive(Debug, Args)]
#[command(after_help = CHAT_EXAMPLES)]
pub struct ChatArguments {
    /// Where the service is.
    #[command(flatten)]
    pub reach: ReachArguments,
    /// Join this session instead of opening one.
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Offer a command as a tool; may be given more than once.
    #[arg(long, value_name = "NAME=COMMAND")]
    pub tool: Vec<String>,
    /// Ask before each call of this tool, '*' for all; may be given more than once. Tools that the service runs
    /// can be named too, where a session is opened.
    #[arg(long, value_name = "NAME")]
    pub ask: Vec<String>,
    /// Descriptions and schemas: [{"name", "description", "input_schema", "command", "ask"}, …].
    #[arg(long, value_name = "FILE")]
    pub tool_file: Option<PathBuf>,
    /// Seconds that one call of a tool may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = positive)]
    pub tool_timeout: u64,
    /// Bytes that one call of a tool may print.
    #[arg(long, value_name = "BYTES", default_value_t = 1024 * 1024, value_parser = whole)]
    pub tool_output: u64,
    /// Read one message per line, even if the input is no terminal.
    #[arg(long, short)]
    pub interactive: bool,
    /// Close the session at the end, for everybody.
    #[arg(long)]
    pub close: bool,
    /// One JSON object per line, for programs.
    #[arg(long)]
    pub json: bool,
    /// What to say; - or nothing reads it from the input.
    #[arg(value_name = "MESSAGE")]
    pub message: Vec<String>,
}

const WATCH_EXAMPLES: &str = "\
Examples:
  broca watch ses_…                                      what happens from now on
  broca watch ses_… --from-start --json                  everything, for a program
  broca watch ses_… --after evt_…                        what happened after this event

It outlives a restart of the service and ends, with status 0, when the session is closed.
Use a key of its own: joining with a driver's key takes that driver's tools away. With the
service of broca serve --dev this is taken care of.";

/// `broca watch`.
#[derive(Debug, Args)]
#[command(after_help = WATCH_EXAMPLES)]
pub struct WatchArguments {
    /// Where the service is.
    #[command(flatten)]
    pub reach: ReachArguments,
    /// Begin with the first event of the session.
    #[arg(long, conflicts_with = "after")]
    pub from_start: bool,
    /// Begin after this event.
    #[arg(long, value_name = "EVENT")]
    pub after: Option<String>,
    /// One JSON object per line, for programs.
    #[arg(long)]
    pub json: bool,
    /// The session.
    #[arg(value_name = "SESSION")]
    pub session: String,
}

const DOCTOR_EXAMPLES: &str = "\
Each check is one line: ok, warning or FAILED, what was found, and what to do about it. What comes
after a failure that leaves it no ground is not checked. The session that is opened for the checks
is closed again; no model is asked. A key is never printed.

Examples:
  broca doctor                                           the service of broca serve --dev
  broca doctor --url https://agents.example --key-file k another one
  broca doctor --json                                    one JSON object per line

Exit codes: 0 nothing failed, 1 something did, 2 wrong usage, 130 interrupted.";

/// `broca doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArguments {
    /// Where the service is.
    #[command(flatten)]
    pub reach: ReachArguments,
    /// Seconds that one step may take; a line of a stream that has not come by then is held back.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = step_seconds)]
    pub timeout: u64,
    /// Seconds that the clocks of the two sides may differ.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = whole)]
    pub clock_skew: u64,
    /// One JSON object per line, for programs.
    #[arg(long)]
    pub json: bool,
}

const PROXY_EXAMPLES: &str = "\
Its first line of output tells where it listens. Then it takes commands, one JSON object per line
of the standard input, and answers each with one line; docs/testing.md lists them:
  {\"id\":1,\"next\":{\"cut_after_lines\":3}}     cut the next stream after three lines
  {\"id\":2,\"all\":{\"delay_ms\":50}}            hold everything back for 50 ms, each way
  {\"id\":3,\"reset\":true}                       reset every connection that is open
  {\"id\":4,\"heal\":true}                        do no more harm
It ends with its input. It is for tests: it carries plain TCP and guards nothing.";

/// `broca proxy`.
#[derive(Debug, Args)]
#[command(after_help = PROXY_EXAMPLES)]
pub struct ProxyArguments {
    /// The service to stand before.
    #[arg(long, value_name = "HOST:PORT")]
    pub upstream: String,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0", value_parser = address)]
    pub listen: SocketAddr,
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "it must be an IP address and a port, such as 127.0.0.1:8080")
}

/// Where the admin port listens, if it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminAddress(pub Option<SocketAddr>);

fn admin_address(text: &str) -> Result<AdminAddress, &'static str> {
    match text {
        "off" => Ok(AdminAddress(None)),
        _ => text.parse().map(|addr| AdminAddress(Some(addr))).map_err(
            |_| "it must be an IP address and a port, such as 127.0.0.1:8081, or the word off",
        ),
    }
}

fn whole(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "it must be a whole number that is not negative, such as 120")
}

fn positive(text: &str) -> Result<u64, &'static str> {
    let number = whole(text).ok().filter(|number| *number > 0);
    number.ok_or("it must be a whole number above 0, such as 120")
}

/// A wrong use, from what the parser has to say about it: its first paragraph, and its tip and the help of the command
/// that was `typed` (all arguments, the program's name first) as the cure.
#[must_use]
pub fn wrong_use(rendered: &str, typed: impl Iterator<Item = OsString>) -> Fault {
    let mut paragraphs = rendered.split("\n\n").map(str::trim);
    let what = paragraphs.next().unwrap_or_default();
    let what = what.strip_prefix("error:").unwrap_or(what).trim();
    let tip = paragraphs.find_map(|paragraph| paragraph.strip_prefix("tip:"));
    let tip = tip.map_or_else(String::new, |tip| format!("{}; ", tip.trim()));
    Fault::usage(what, format!("{tip}see {} --help", command_of(typed)))
}

/// The command that these arguments name, as far as they name one: `broca`, `broca key create`.
fn command_of(typed: impl Iterator<Item = OsString>) -> String {
    let all = Arguments::command();
    let mut command = &all;
    let mut words = command.get_name().to_owned();
    for word in typed.skip(1) {
        let Some(below) = command.find_subcommand(&word) else { break };
        command = below;
        words.push(' ');
        words.push_str(command.get_name());
    }
    words
}

/// The longest time of one step of `broca doctor`.
const MAX_STEP_SECONDS: u64 = 3_600;

fn step_seconds(text: &str) -> Result<u64, &'static str> {
    let number = positive(text).ok().filter(|number| *number <= MAX_STEP_SECONDS);
    number.ok_or("it must be a whole number from 1 to 3600, such as 5")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(arguments: &[&str]) -> String {
        let all = std::iter::once("broca").chain(arguments.iter().copied());
        let error = Arguments::try_parse_from(all.clone()).unwrap_err();
        wrong_use(&error.to_string(), all.map(OsString::from)).line()
    }

    #[test]
    fn the_definition_of_the_arguments_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_wrong_use_is_one_line_with_the_cure() {
        let line = wrong(&["chat", "--sesion", "x"]);
        assert!(line.starts_with("broca: unexpected argument '--sesion'"), "{line}");
        assert!(line.contains("'--session'") && !line.contains('\n'), "{line}");
        let line = wrong(&["watch"]);
        assert!(line.contains("<SESSION>") && line.ends_with("; see broca watch --help"), "{line}");
    }

    #[test]
    fn a_wrong_use_names_the_help_of_its_own_command() {
        for (arguments, help) in [
            (&["dance"][..], "see broca --help"),
            (&["--dance", "serve"], "see broca --help"),
            (&["serve", "--dance"], "see broca serve --help"),
            (&["serve", "--addr", "chat"], "see broca serve --help"),
            (&["key"], "see broca key --help"),
            (&["key", "create"], "see broca key create --help"),
        ] {
            let line = wrong(arguments);
            assert!(line.ends_with(&format!("; {help}")), "{line}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_told_with_what_it_should_look_like() {
        for (arguments, part) in [
            (&["serve", "--addr", "here"][..], "'here' for '--addr <ADDRESS:PORT>': it must be"),
            (&["serve", "--addr", "localhost:80"], "an IP address and a port, such as"),
            (&["serve", "--turn-timeout", "2m"], "a whole number that is not negative"),
            (&["serve", "--shutdown-timeout", "1.5"], "a whole number that is not negative"),
            (&["serve", "--max-tokens", "0"], "a whole number above 0"),
            (&["serve", "--admin-addr", "here"], "such as 127.0.0.1:8081, or the word off"),
            (&["chat", "--tool-timeout", "0"], "a whole number above 0"),
            (&["chat", "--tool-output", "1k"], "a whole number that is not negative"),
        ] {
            let line = wrong(arguments);
            assert!(line.contains(part) && line.ends_with("--help"), "{line}");
        }
    }

    #[test]
    fn a_message_may_be_several_words_and_options_may_follow_it() {
        let parsed = Arguments::try_parse_from(["broca", "chat", "two", "words", "--close"]);
        let Command::Chat(chat) = parsed.unwrap().command else { panic!("not chat") };
        assert_eq!((chat.message.join(" ").as_str(), chat.close), ("two words", true));
    }
}
