use super::*;
use crate::models::{Delta, TokenUsage};
use broca_proto::provider::ToolSpec;
use broca_proto::session::content::Message;
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Recorder(Mutex<Vec<Delta>>);

impl DeltaSink for Recorder {
    fn delta(&self, delta: Delta) {
        self.0.lock().unwrap().push(delta);
    }
}

/// What the fake server does after it has read the request.
enum Act {
    Write(Vec<u8>),
    /// Says nothing more, and reports when the client has gone.
    Hold(oneshot::Sender<()>),
    /// Breaks the connection with a reset.
    Reset,
}

struct Fake {
    url: String,
    request: oneshot::Receiver<String>,
}

/// A server for one connection: reads one request, then acts, then closes.
async fn fake(acts: Vec<Act>) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, request) = oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        let complete = |received: &[u8]| {
            let text = String::from_utf8_lossy(received).to_ascii_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
            let length =
                head.split("content-length: ").nth(1).and_then(|l| l.lines().next()).unwrap();
            body.len() >= length.parse::<usize>().unwrap()
        };
        while !complete(&received) {
            if stream.read_buf(&mut received).await.unwrap() == 0 {
                return;
            }
        }
        let _ = tell.send(String::from_utf8(received).unwrap());
        for act in acts {
            match act {
                Act::Write(bytes) => stream.write_all(&bytes).await.unwrap(),
                Act::Hold(gone) => {
                    let mut byte = [0];
                    let _ = stream.read(&mut byte).await;
                    let _ = gone.send(());
                }
                Act::Reset => stream.set_zero_linger().unwrap(),
            }
        }
    });
    Fake { url, request }
}

fn response(status: &str, kind: &str, body: &str) -> Act {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Act::Write([head.as_bytes(), body.as_bytes()].concat())
}

fn stream_head() -> Act {
    Act::Write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

fn chunk(text: &str) -> Act {
    Act::Write(format!("{:x}\r\n{text}\r\n", text.len()).into_bytes())
}

fn last_chunk() -> Act {
    Act::Write(b"0\r\n\r\n".to_vec())
}

fn event(delta: &str, reason: &str) -> String {
    format!(
        "data: {{\"id\":\"x\",\"model\":\"m-1\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{reason}}}]}}\n\n"
    )
}

fn settings(url: &str) -> OpenAiSettings {
    OpenAiSettings::new(url, "m")
}

fn question() -> ModelRequest {
    let tools = vec![ToolSpec {
        name: "read".into(),
        description: None,
        input_schema: Json::empty_object(),
    }];
    ModelRequest {
        messages: vec![Message::user("hi")],
        tools,
        max_tokens: Some(99),
        ..ModelRequest::default()
    }
}

async fn ask(settings: OpenAiSettings) -> (Result<ModelReply, ModelFailure>, Vec<Delta>) {
    let model = OpenAi::new(settings).unwrap();
    let sink = Recorder::default();
    let result = tokio::time::timeout(PATIENCE, model.call(&question(), &sink)).await.unwrap();
    (result, sink.0.into_inner().unwrap())
}

async fn failure(acts: Vec<Act>) -> ModelFailure {
    let fake = fake(acts).await;
    ask(settings(&fake.url)).await.0.expect_err("the attempt fails")
}

#[tokio::test]
async fn reasoning_becomes_a_block_before_the_text() {
    let fake = fake(vec![
        stream_head(),
        chunk(&event(r#"{"reasoning_content":"hm, "}"#, "null")),
        chunk(&event(r#"{"reasoning_content":"so"}"#, "null")),
        chunk(&event(r#"{"content":"yes"}"#, "\"stop\"")),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ])
    .await;
    let reply = ask(settings(&fake.url)).await.0.unwrap();
    let blocks: Vec<&str> = reply.content.iter().map(|block| block.json().as_str()).collect();
    assert_eq!(
        blocks,
        [r#"{"type":"thinking","thinking":"hm, so"}"#, r#"{"type":"text","text":"yes"}"#]
    );
    assert!(!reply.body.as_str().contains("hm, so"), "{}", reply.body.as_str());
}

#[tokio::test]
async fn a_refusal_carries_the_wait_that_the_provider_asks_for() {
    let head = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n";
    let busy = failure(vec![Act::Write(head.as_bytes().to_vec())]).await;
    assert_eq!((busy.status, busy.retryable), (Some(429), true));
    assert_eq!(busy.retry_after, Some(Duration::from_secs(3)));
    let down = failure(vec![response("503 Down", "text/plain", "no")]).await;
    assert_eq!((down.retryable, down.retry_after), (true, None));
}

#[tokio::test]
async fn a_stream_becomes_a_reply_and_its_pieces_are_shown() {
    let piece = r#"{"tool_calls":[{"index":0,"id":"c1","function":{"name":"read","arguments":"{\"n\": 9007199254740993}"}}]}"#;
    let fake = fake(vec![
        stream_head(),
        chunk(": hello\n\n"),
        chunk(&event(r#"{"content":"Let "}"#, "null")),
        chunk(&event(r#"{"content":"me"}"#, "null")[..30]),
        chunk(&event(r#"{"content":"me"}"#, "null")[30..]),
        chunk(&event(piece, "\"tool_calls\"")),
        chunk("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n"),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ])
    .await;
    let mut with_key = settings(&fake.url);
    with_key.key_env = Some("PATH".to_owned());
    let (reply, deltas) = ask(with_key).await;
    let reply = reply.unwrap();
    let content: Vec<_> = reply.content.iter().map(|block| block.json().as_str()).collect();
    assert_eq!(
        content,
        [
            r#"{"type":"text","text":"Let me"}"#,
            r#"{"type":"tool_use","id":"c1","name":"read","input":{"n": 9007199254740993}}"#,
        ]
    );
    assert_eq!(reply.usage, Some(TokenUsage { input_tokens: 11, output_tokens: 2 }));
    assert_eq!(
        (reply.finish_reason.as_str(), reply.truncated, reply.warnings),
        ("tool_calls", false, 0)
    );
    assert_eq!(
        reply.body.as_str(),
        concat!(
            r#"{"id":"x","object":"chat.completion","model":"m-1","choices":[{"index":0,"message":{"role":"assistant","content":"Let me","#,
            r#""tool_calls":[{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"n\": 9007199254740993}"}}]},"finish_reason":"tool_calls"}],"#,
            r#""usage":{"prompt_tokens":11,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#
        )
    );
    let tool = Delta::ToolInput {
        index: 0,
        id: Some("c1".into()),
        name: Some("read".into()),
        delta: "{\"n\": 9007199254740993}".into(),
    };
    assert_eq!(deltas, [Delta::Text("Let ".into()), Delta::Text("me".into()), tool]);
    let request = fake.request.await.unwrap();
    let path = std::env::var("PATH").unwrap();
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert!(request.contains(&format!("authorization: Bearer {path}\r\n")));
    assert!(request.contains(r#""max_tokens":99"#) && request.contains(r#""stream":true"#));
}

#[tokio::test]
async fn an_error_in_the_stream_and_an_early_end_are_failures_with_status_200() {
    let begin = || vec![stream_head(), chunk(&event(r#"{"content":"Half"}"#, "null"))];
    let mut acts = begin();
    acts.push(chunk(
        "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\"}}\n\n",
    ));
    acts.push(last_chunk());
    let broken = failure(acts).await;
    assert_eq!((broken.status, broken.error.as_str()), (Some(200), "overloaded"));
    assert!(broken.retryable);

    let mut acts = begin();
    acts.push(last_chunk());
    let early = failure(acts).await;
    assert!(early.error.contains("ended early") && early.status == Some(200), "{early}");

    // The body breaks off inside its chunked coding.
    let cut = failure(begin()).await;
    assert!(cut.error.contains("ended early"), "{cut}");
    let mut acts = begin();
    acts.push(Act::Reset);
    assert_eq!(failure(acts).await.class, ErrorClass::Transient);
}

#[tokio::test]
async fn an_error_before_the_stream_keeps_status_and_body() {
    for (status, body, class) in [
        (
            "401 Unauthorized",
            r#"{"error":{"message":"bad key","code":"invalid_api_key"}}"#,
            ErrorClass::Auth,
        ),
        (
            "429 Too Many",
            r#"{"error":{"message":"slow","code":"rate_limit_exceeded"}}"#,
            ErrorClass::Transient,
        ),
        (
            "429 Too Many",
            r#"{"error":{"message":"pay","code":"insufficient_quota"}}"#,
            ErrorClass::Permanent,
        ),
        ("500 Oops", "not json", ErrorClass::Transient),
        (
            "400 Bad",
            r#"{"error":{"message":"m","code":"context_length_exceeded"}}"#,
            ErrorClass::ContextOverflow,
        ),
    ] {
        let failed = failure(vec![response(status, "application/json", body)]).await;
        let number: u16 = status[..3].parse().unwrap();
        assert_eq!((failed.status, failed.class), (Some(number), class), "{body}");
        assert_eq!(failed.error, format!("provider returned HTTP {number}"));
        assert_eq!(failed.body.as_deref(), Some(body));
    }
}

#[tokio::test]
async fn a_page_in_place_of_a_stream_is_named_and_kept() {
    for kind in ["text/html", "application/octet-stream"] {
        let page = failure(vec![response("200 OK", kind, " <html>sign in</html>")]).await;
        assert!(page.error.contains("not JSON") && page.status == Some(200), "{page}");
        assert_eq!(page.body.as_deref(), Some(" <html>sign in</html>"));
    }
}

#[tokio::test]
async fn a_whole_answer_and_a_stream_of_the_wrong_type_are_accepted() {
    let whole = r#"{"id":"x","choices":[{"message":{"role":"assistant","content":"Hi"},"finish_reason":"length"}],"usage":null}"#;
    let server = fake(vec![response("200 OK", "application/json", whole)]).await;
    let (reply, deltas) = ask(settings(&server.url)).await;
    let reply = reply.unwrap();
    assert_eq!((reply.body.as_str(), reply.truncated, reply.usage), (whole, true, None));
    assert_eq!(deltas, [Delta::Text("Hi".into())]);

    let body = format!("{}data: [DONE]\n\n", event(r#"{"content":"Ho"}"#, "\"stop\""));
    let server = fake(vec![response("200 OK", "application/json", &body)]).await;
    assert_eq!(ask(settings(&server.url)).await.0.unwrap().content[0].text(), Some("Ho"));
}

#[tokio::test]
async fn a_call_with_broken_arguments_fails_the_attempt() {
    let piece =
        r#"{"tool_calls":[{"index":0,"id":"c","function":{"name":"pay","arguments":"{\"a\":"}}]}"#;
    let failed = failure(vec![
        stream_head(),
        chunk(&event(piece, "\"length\"")),
        chunk("data: [DONE]\n\n"),
        last_chunk(),
    ])
    .await;
    assert!(failed.error.contains("\"pay\"") && failed.error.contains("break off"), "{failed}");
}

#[tokio::test]
async fn silence_ends_the_attempt_before_and_in_the_stream() {
    let (gone, closed) = oneshot::channel();
    let server = fake(vec![Act::Hold(gone)]).await;
    let mut impatient = settings(&server.url);
    impatient.first_byte_timeout = Duration::from_millis(50);
    let failed = ask(impatient).await.0.unwrap_err();
    assert!(failed.error.contains("no answer") && failed.status.is_none(), "{failed}");
    tokio::time::timeout(PATIENCE, closed).await.unwrap().unwrap();

    let (gone, closed) = oneshot::channel();
    // Half a line is no sign of life.
    let acts = vec![
        stream_head(),
        chunk(&event(r#"{"content":"a"}"#, "null")),
        chunk("data: {"),
        Act::Hold(gone),
    ];
    let server = fake(acts).await;
    let mut impatient = settings(&server.url);
    impatient.silence_timeout = Duration::from_millis(100);
    let failed = ask(impatient).await.0.unwrap_err();
    assert!(failed.error.contains("fell silent") && failed.status == Some(200), "{failed}");
    tokio::time::timeout(PATIENCE, closed).await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_the_call_closes_the_connection() {
    let (gone, closed) = oneshot::channel();
    let server =
        fake(vec![stream_head(), chunk(&event(r#"{"content":"a"}"#, "null")), Act::Hold(gone)])
            .await;
    let model = Arc::new(OpenAi::new(settings(&server.url)).unwrap());
    let sink = Arc::new(Recorder::default());
    let (asked, shown) = (Arc::clone(&model), Arc::clone(&sink));
    let call = tokio::spawn(async move { asked.call(&question(), shown.as_ref()).await.map(drop) });
    let wait = async {
        while sink.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    call.abort();
    tokio::time::timeout(PATIENCE, closed).await.unwrap().unwrap();
}

#[tokio::test]
async fn what_cannot_be_reached_or_asked_is_a_failure_without_status() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let refused = ask(settings(&url)).await.0.unwrap_err();
    assert!(refused.error.starts_with("error sending request"), "{refused}");
    assert_eq!((refused.status, refused.class), (None, ErrorClass::ProviderUnavailable));

    let mut keyless = settings(&url);
    keyless.key_env = Some("BROCA_TEST_NO_SUCH_VARIABLE".to_owned());
    let keyless = ask(keyless).await.0.unwrap_err();
    assert!(keyless.error.contains("BROCA_TEST_NO_SUCH_VARIABLE is not set"), "{keyless}");
    assert_eq!((keyless.status, keyless.class), (None, ErrorClass::Auth));
}

#[tokio::test]
async fn https_to_a_server_without_tls_fails_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    });
    let failed = ask(settings(&url)).await.0.unwrap_err();
    assert!(
        failed.error.contains("TLS") || failed.error.contains("trusted certificates"),
        "{failed}"
    );
}

#[tokio::test]
async fn an_answer_past_its_limit_fails_and_is_not_kept_whole() {
    let server = fake(vec![response("500 Oops", "text/plain", &"x".repeat(5_000))]).await;
    let mut small = settings(&server.url);
    small.max_error_body = 100;
    assert_eq!(ask(small).await.0.unwrap_err().body.map(|body| body.len()), Some(100));

    let server =
        fake(vec![response("200 OK", "application/json", &format!("{{{}}}", " ".repeat(5_000)))])
            .await;
    let mut small = settings(&server.url);
    small.chat.max_message = 100;
    let failed = ask(small).await.0.unwrap_err();
    assert!(failed.error.contains("larger than 100 bytes"), "{failed}");
}
