//! The way to the service: proxy, name, connection, TLS, HTTP, and whether it is one.

use super::connection::{Answer, Broken, Line};
use super::report::{Finding, Level, Report};
use super::{Limits, clock};
use crate::fault::Fault;
use broca::engine::{CloseReason, Environment, Route};
use broca::tls::Connector;
use broca::tokio::Client;
use broca_proto::session::feature::Features;
use broca_proto::session::rest::Meta;
use std::net::{IpAddr, SocketAddr};
use std::time::{Instant, SystemTime};
use tokio::time::timeout;

/// Checks the way; whether there is a service at its end.
pub(super) async fn check(url: &str, limits: Limits, report: &mut Report) -> Result<bool, Fault> {
    let environment = Environment::from_vars(|name| std::env::var(name).ok());
    let route = match Route::find(url, &environment) {
        Ok(route) => route,
        Err(error) => return report.add("proxy", &Finding::failed(error.message(), "")),
    };
    report.add("proxy", &proxy(&route))?;
    let addresses = match resolve(&route, limits).await {
        Ok((addresses, found)) => {
            report.add("name", &found)?;
            addresses
        }
        Err(finding) => return report.add("name", &finding),
    };
    let mut line = match connect(&addresses, limits).await {
        Ok((line, found)) => {
            report.add("connection", &found)?;
            line
        }
        Err(finding) => return report.add("connection", &finding),
    };
    if let Some(name) = route.tls_name() {
        let finding = secure(&mut line, &route, name, limits).await;
        if !report.add("tls", &finding)? {
            return Ok(false);
        }
    }
    let before = SystemTime::now();
    let answer = match ask(&mut line, &route, limits).await {
        Ok((answer, found)) => {
            report.add("http", &found)?;
            answer
        }
        Err(finding) => return report.add("http", &finding),
    };
    let after = SystemTime::now();
    line.close();
    let date = answer.head.header_str("date");
    report.add("clock", &clock::compare(date, before, after, limits.clock_skew))?;
    service(url, &answer, limits, report).await
}

/// A connection over the way that was checked before, for one more question.
pub(super) async fn again(url: &str, limits: Limits) -> Result<(Line, Route), Finding> {
    let environment = Environment::from_vars(|name| std::env::var(name).ok());
    let route = Route::find(url, &environment).map_err(|e| Finding::failed(e.message(), ""))?;
    let (addresses, _) = resolve(&route, limits).await?;
    let (mut line, _) = connect(&addresses, limits).await?;
    if let Some(name) = route.tls_name() {
        let secured = secure(&mut line, &route, name, limits).await;
        if secured.level != Level::Ok {
            return Err(secured);
        }
    }
    Ok((line, route))
}

fn proxy(route: &Route) -> Finding {
    match route.proxy() {
        None => Finding::ok("none is used"),
        Some(proxy) => Finding::ok(format!(
            "requests go through {proxy}, as the environment says; no_proxy takes hosts out"
        )),
    }
}

async fn resolve(route: &Route, limits: Limits) -> Result<(Vec<SocketAddr>, Finding), Finding> {
    let (host, port) = route.first_hop();
    if let Ok(ip) = host.parse::<IpAddr>() {
        let finding = Finding::ok(format!("{ip} is an address and needs no look-up"));
        return Ok((vec![SocketAddr::new(ip, port)], finding));
    }
    let cure = "check the spelling of --url and the name server of this machine";
    match timeout(limits.step, tokio::net::lookup_host((host, port))).await {
        Err(_) => Err(Finding::failed(
            format!("no answer about {host} within {} s", limits.step.as_secs()),
            cure,
        )),
        Ok(Err(e)) => Err(Finding::failed(format!("{host} cannot be resolved: {e}"), cure)),
        Ok(Ok(found)) => {
            let addresses: Vec<SocketAddr> = found.collect();
            let Some(first) = addresses.first() else {
                return Err(Finding::failed(format!("{host} has no address"), cure));
            };
            let more = match addresses.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            let finding = Finding::ok(format!("{host} is {}{more}", first.ip()));
            Ok((addresses, finding))
        }
    }
}

/// The first address that accepts. One that refuses costs nothing; one that is silent costs every client time.
async fn connect(addresses: &[SocketAddr], limits: Limits) -> Result<(Line, Finding), Finding> {
    let (mut faults, mut is_slow) = (Vec::new(), false);
    for address in addresses {
        let begun = Instant::now();
        match timeout(limits.step, Line::open(*address)).await {
            Ok(Ok(line)) => {
                let mut found =
                    format!("{address} accepts, after {} ms", begun.elapsed().as_millis());
                if !faults.is_empty() {
                    found = format!("{found}; before it, {}", faults.join(", "));
                }
                let cure = "take addresses that do not answer out of the name's";
                let finding =
                    if is_slow { Finding::warning(found, cure) } else { Finding::ok(found) };
                return Ok((line, finding));
            }
            Ok(Err(why)) => faults.push(format!("{address}: {}", why.as_str())),
            Err(_) => {
                is_slow = true;
                faults.push(format!("{address}: no answer within {} s", limits.step.as_secs()));
            }
        }
    }
    Err(Finding::failed(
        faults.join(", "),
        "check that the service runs, its port, and firewalls between; one of your own starts with: broca serve --dev",
    ))
}

async fn secure(line: &mut Line, route: &Route, name: &str, limits: Limits) -> Finding {
    let begun = Instant::now();
    let connector = Connector::default();
    let securing = async {
        if let Some(authority) = route.tunnel() {
            line.tunnel(route, &authority).await?;
        }
        line.secure(&connector, name).await
    };
    match timeout(limits.step, securing).await {
        Err(_) => Finding::failed(
            format!("no TLS within {} s", limits.step.as_secs()),
            "check that the port speaks https",
        ),
        Ok(Ok(())) => Finding::ok(format!(
            "the certificate is good for {name}, after {} ms",
            begun.elapsed().as_millis()
        )),
        Ok(Err(Broken::NoTunnel(status))) => Finding::failed(
            format!("the proxy gives no tunnel, but the status {status}"),
            "have the proxy allow the host and its port, or list the host in no_proxy",
        ),
        Ok(Err(Broken::Tls(error))) => Finding::failed(error.message(), ""),
        Ok(Err(Broken::Http(error))) => Finding::failed(
            format!("the proxy does not answer as it should: {error}"),
            "check the proxy variables",
        ),
        Ok(Err(Broken::Closed(why))) => Finding::failed(why.as_str(), tls_cure(why)),
    }
}

const fn tls_cure(why: CloseReason) -> &'static str {
    match why {
        CloseReason::TlsCert => {
            "have the service renew its certificate, or add its authority to this machine's trusted ones (SSL_CERT_FILE names a PEM file); a wrong clock here looks the same"
        }
        CloseReason::TlsHost => "use the name in --url that the certificate was made for",
        _ => "check that the port speaks https; if it does not, begin --url with http://",
    }
}

async fn ask(line: &mut Line, route: &Route, limits: Limits) -> Result<(Answer, Finding), Finding> {
    let begun = Instant::now();
    match timeout(limits.step, line.ask(route, "/api/v1/meta")).await {
        Err(_) => Err(Finding::failed(
            format!("no answer within {} s", limits.step.as_secs()),
            "check what listens there; --timeout gives it longer",
        )),
        Ok(Ok(answer)) => {
            let via = answer.head.header_str("via");
            let via = via.map_or(String::new(), |via| format!(", through a proxy: {via}"));
            let status = answer.head.status();
            let ms = begun.elapsed().as_millis();
            Ok((answer, Finding::ok(format!("status {status} after {ms} ms{via}"))))
        }
        Ok(Err(Broken::Closed(why))) => Err(Finding::failed(
            format!("{}, without an answer", why.as_str()),
            "check whether the port wants https, and that it is the service's",
        )),
        Ok(Err(Broken::Http(error))) => Err(Finding::failed(error.to_string(), "")),
        Ok(Err(Broken::Tls(error))) => Err(Finding::failed(error.message(), "")),
        Ok(Err(Broken::NoTunnel(status))) => {
            Err(Finding::failed(format!("a proxy answered with the status {status}"), ""))
        }
    }
}

/// What answers, by the client's own rules.
async fn service(
    url: &str,
    answer: &Answer,
    limits: Limits,
    report: &mut Report,
) -> Result<bool, Fault> {
    let kind = answer.head.header_str("content-type").unwrap_or_default().to_ascii_lowercase();
    if kind.starts_with("text/html") || answer.body.trim_ascii_start().starts_with(b"<") {
        let found = "an HTML page answers, not a session service";
        let cure = "--url must be the address that broca serve prints; a page may also come from a proxy that wants a login";
        return report.add("service", &Finding::failed(found, cure));
    }
    // This question goes without a key.
    let client = Client::builder(url, "none").configure(|config| limits.apply(config)).build();
    let meta = match client {
        Ok(client) => client.meta().await,
        Err(error) => Err(error),
    };
    match meta {
        Err(error) => report.add("service", &Finding::from(Fault::from(error))),
        Ok(meta) => {
            let version = if meta.version.is_empty() { "unknown" } else { &meta.version };
            let found = format!(
                "version {version}, API {}; this client is {}",
                meta.api_versions.join(", "),
                env!("CARGO_PKG_VERSION")
            );
            report.add("service", &Finding::ok(found))?;
            report.add("features", &features(&meta))
        }
    }
}

/// What the service announces against what this client understands.
fn features(meta: &Meta) -> Finding {
    let announced = Features::parse(meta.features.iter().map(String::as_str));
    let understood = Features::UNDERSTOOD;
    let used = understood.and(announced).words();
    let missing: Vec<&str> =
        understood.words().into_iter().filter(|word| !used.contains(word)).collect();
    let unused: Vec<&str> = meta
        .features
        .iter()
        .map(String::as_str)
        .filter(|word| !understood.words().contains(word))
        .collect();
    let mut found = match used.is_empty() {
        true => "it speaks the plain contract alone".to_owned(),
        false => format!("used: {}", used.join(", ")),
    };
    if !unused.is_empty() {
        found.push_str(&format!("; announced, and not used by this client: {}", unused.join(", ")));
    }
    if missing.is_empty() {
        return Finding::ok(found);
    }
    Finding::warning(
        format!("{found}; not announced: {}", missing.join(", ")),
        "sessions work, with weaker promises; a service of this version that has not turned them off announces them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcing(features: &[&str]) -> Finding {
        let features = features.iter().map(|word| (*word).to_owned()).collect();
        super::features(&Meta { features, ..Meta::default() })
    }

    #[test]
    fn features_that_are_missing_are_named_and_new_ones_do_no_harm() {
        let mut words = Features::UNDERSTOOD.words();
        assert_eq!(announcing(&words).level, Level::Ok);
        words.push("telepathy");
        let newer = announcing(&words);
        assert_eq!(newer.level, Level::Ok);
        assert!(newer.found.contains("not used by this client: telepathy"), "{newer:?}");
        let older = announcing(&["display"]);
        assert_eq!(older.level, Level::Warning);
        assert!(older.found.starts_with("used: display; not announced: cancel"), "{older:?}");
        assert!(announcing(&[]).found.starts_with("it speaks the plain contract alone"));
    }
}
