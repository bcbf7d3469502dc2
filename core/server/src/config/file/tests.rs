use super::*;

const WHOLE: &str = r#"
[[mcp.servers]]
name = "web"
transport = "http"
url = "https://ann:hunter2@mcp.example/x?token=hunter2"
headers = { Authorization = "Bearer ${TOKEN}", X-Plain = "hunter2" }

[[mcp.servers]]
name = "fs"
transport = "stdio"
command = "npx"
args = ["-y", "files"]

[[providers.entries]]
name = "main"
provider = "anthropic"
model = "m-1"
auth_token = "hunter2"
surprise = { any = "thing" }

[[providers.entries]]
name = "local"
provider = "openai"
base_url = "http://127.0.0.1:11434"
model = "m-2"
max_tokens = 1_000

[telemetry]
enabled = true
otlp_endpoint = "http://collector:4317"
otlp_headers = { key = "${OTLP}" }
sample_ratio = 0.25
service_name = "agents"

[telemetry.traces]
enabled = false

[telemetry.metrics]
disabled = ["bae.events.total"]

[service]
turn_timeout = 7
addr = "127.0.0.1:9"

[somebody.elses]
anything = 1
"#;

fn fault(text: &str) -> (usize, String) {
    let Wrong { line, reason } = ConfigFile::parse(text).unwrap_err();
    (line, reason)
}

#[test]
fn every_table_is_read_and_unknown_ones_are_ignored() {
    let file = ConfigFile::parse(WHOLE).unwrap();
    let servers: Vec<_> = file.mcp_servers.iter().map(|s| (&s.name[..], s.transport)).collect();
    assert_eq!(servers, [("fs", Transport::Stdio), ("web", Transport::Http)]);
    let [main, local] = &file.providers[..] else { panic!("not two providers") };
    assert_eq!((main.provider, main.max_tokens), (ProviderKind::Anthropic, 4096));
    assert_eq!(main.effective_base_url(), "https://api.anthropic.com");
    assert_eq!((local.provider, local.max_tokens), (ProviderKind::OpenAi, 1000));
    assert!(local.auth_token.is_none());
    let telemetry = &file.telemetry;
    assert!(telemetry.enabled && !telemetry.traces && telemetry.metrics);
    assert_eq!((telemetry.sample_ratio, &telemetry.service_name[..]), (0.25, "agents"));
    assert_eq!(telemetry.disabled_metrics, ["bae.events.total"]);
    assert_eq!(file.service["turn_timeout"].0, "7");
    assert_eq!(file.service["addr"].0, "127.0.0.1:9");
    assert_eq!(ConfigFile::parse("").unwrap(), ConfigFile::default());
}

#[test]
fn what_the_operator_is_shown_holds_no_secret_of_any_shape() {
    let file = ConfigFile::parse(WHOLE).unwrap();
    let shown = serde_json::to_value(file.redacted()).unwrap();
    let text = shown.to_string();
    assert!(!text.contains("hunter2") && !text.contains("TOKEN") && !text.contains("OTLP"));
    assert_eq!(shown["mcp"]["servers"][0]["name"], "fs");
    assert_eq!(shown["mcp"]["servers"][1]["headers"]["X-Plain"], BULLETS);
    assert_eq!(shown["mcp"]["servers"][1]["url"], "https://••••••••@mcp.example/x?••••••••");
    assert_eq!(shown["providers"]["entries"][0]["name"], "local");
    assert_eq!(shown["providers"]["entries"][0]["auth_token"], serde_json::Value::Null);
    assert_eq!(shown["providers"]["entries"][1]["auth_token"], BULLETS);
    assert_eq!(shown["telemetry"]["otlp_headers"]["key"], BULLETS);
    assert!(!format!("{file:?}").contains("hunter2"));
    let empty = serde_json::to_value(ConfigFile::default().redacted()).unwrap();
    let expected = serde_json::json!({
        "mcp": {"servers": []},
        "providers": {"entries": []},
        "telemetry": {
            "enabled": false,
            "metrics": {"disabled": [], "enabled": true},
            "otlp_endpoint": null,
            "otlp_headers": {},
            "sample_ratio": 1.0,
            "service_name": "baesrv",
            "traces": {"enabled": true},
        },
    });
    assert_eq!(empty, expected);
}

#[test]
fn a_fault_is_told_with_its_line_and_without_what_is_written_there() {
    let server = "[[mcp.servers]]\nname = \"a\"\n";
    let entry = "[[providers.entries]]\nname = \"a\"\nmodel = \"m\"\n";
    for (text, line, part) in [
        ("x = \n".to_owned(), 1, "no TOML"),
        ("a = 1\nhunter2 hunter2\n".to_owned(), 2, "no TOML"),
        ("\nmcp = 1\n".to_owned(), 2, "mcp must be a table"),
        ("[mcp]\nservres = []\n".to_owned(), 2, "unknown key servres"),
        ("[mcp]\nservers = \"hunter2\"\n".to_owned(), 2, "array of tables"),
        ("[[mcp.servers]]\ntransport = \"stdio\"\n".to_owned(), 1, "name is missing"),
        ("[[mcp.servers]]\nname = \" \"\n".to_owned(), 2, "must not be blank"),
        (format!("{server}transport = \"hunter2\"\n"), 3, "\"stdio\", \"http\""),
        (format!("{server}transport = \"stdio\"\n"), 1, "needs a command"),
        (format!("{server}transport = \"sse\"\n"), 1, "needs a url"),
        (format!("{server}transport = \"stdio\"\ncomand = \"x\"\n"), 4, "unknown key comand"),
        (format!("{server}transport = \"http\"\nurl = \"${{X\"\n"), 4, "not closed"),
        (format!("{server}transport = \"http\"\nurl = \"u\"\nheaders = 5\n"), 5, "must be a table"),
        (format!("{entry}provider = \"hunter2\"\n"), 4, "\"openai\""),
        (entry.to_owned(), 1, "provider is missing"),
        (format!("{entry}provider = \"openai\"\nmax_tokens = -1\n"), 5, "whole number"),
        (format!("{entry}provider = \"openai\"\nmax_tokens = 0\n"), 5, "at least 1"),
        (format!("{entry}provider = \"openai\"\nauth_token = 5\n"), 5, "must be a text"),
        (format!("{entry}provider = \"openai\"\n{entry}"), 6, "names must be unique"),
        ("[telemetry]\nsample_ratio = 1.5\n".to_owned(), 2, "from 0 to 1"),
        ("[telemetry]\nenabled = \"yes\"\n".to_owned(), 2, "true or false"),
        ("[telemetry]\nx = 1\n".to_owned(), 2, "unknown key x"),
        ("[telemetry.traces]\nx = 1\n".to_owned(), 2, "unknown key x"),
        ("[telemetry.metrics]\ndisabled = [1]\n".to_owned(), 2, "array of texts"),
        ("[service]\nturn_timeout = [7]\n".to_owned(), 2, "turn_timeout must be"),
    ] {
        let (found, reason) = fault(&text);
        assert!(reason.contains(part), "{text}: {reason}");
        assert_eq!(found, line, "{text}: {reason}");
        assert!(!reason.contains("hunter2"), "{text}: {reason}");
    }
}

#[test]
fn a_file_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("broca.toml");
    assert_eq!(ConfigFile::load(&missing), Ok(ConfigFile::default()));
    let words = ConfigFile::load(folder.path()).unwrap_err().to_string();
    assert!(words.contains("it is a folder"), "{words}");
    std::fs::write(&missing, "[mcp]\nx = 1\n").unwrap();
    let words = ConfigFile::load(&missing).unwrap_err().to_string();
    assert!(words.contains("broca.toml, line 2: unknown key x"), "{words}");
}
