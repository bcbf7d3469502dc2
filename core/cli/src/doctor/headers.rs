//! Whether the header arrives that asks for features.

use super::report::{Finding, Report};
use super::{Limits, way};
use crate::fault::Fault;
use broca::tokio::Session;
use broca_proto::session::feature::Features;
use tokio::time::timeout;

/// A question that a service answers only if it was asked for with the feature `hold`; it changes nothing.
const QUESTION: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"session.hold","params":{}}"#;

/// Asks what only a request with the header may ask, where the service announces that.
pub(super) async fn check(
    url: &str,
    session: &Session,
    limits: Limits,
    report: &mut Report,
) -> Result<(), Fault> {
    let Ok(meta) = session.meta().await else { return Ok(()) };
    let announced = Features::parse(meta.features.iter().map(String::as_str));
    if !announced.hold {
        return Ok(());
    }
    let finding = match timeout(limits.step, answer(url, session, limits)).await {
        Ok(Ok(answer)) if answer.contains("\"held\"") => {
            Finding::ok("what a request asks for (Broca-Features) arrives")
        }
        Ok(Ok(answer)) if answer.contains("-32601") => Finding::warning(
            "the header Broca-Features does not arrive: the service announces features, and answers as if none were asked for",
            "have the proxy before the service pass the header Broca-Features on; until then sessions work, with weaker promises",
        ),
        Ok(Ok(_)) => Finding::warning(
            "whether the header Broca-Features arrives cannot be told from the answer",
            "look at the log of the service, and of proxies before it",
        ),
        Ok(Err(finding)) => finding,
        Err(_) => Finding::failed(
            format!("no answer within {} s", limits.step.as_secs()),
            "look at the log of the service, and of proxies before it",
        ),
    };
    report.add("headers", &finding).map(drop)
}

/// The body of the answer to the question.
async fn answer(url: &str, session: &Session, limits: Limits) -> Result<String, Finding> {
    let saved = session.save().map_err(|e| Finding::from(Fault::from(e)))?;
    let (mut line, route) = way::again(url, limits).await?;
    let path = format!("/api/v1/sessions/{}/rpc", session.id());
    let bearer = format!("Bearer {}", saved.session_key.expose());
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Broca-Features", "hold"),
    ];
    let answered = line.post(&route, &path, &headers, QUESTION).await;
    line.close();
    let answered = answered.map_err(|_| {
        Finding::failed(
            "a call of the session is not answered",
            "look at the log of the service, and of proxies before it",
        )
    })?;
    Ok(String::from_utf8_lossy(&answered.body).into_owned())
}
