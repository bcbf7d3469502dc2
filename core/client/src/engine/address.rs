//! Where the service is, and whether a proxy stands before it.

use broca_proto::{Error, ErrorKind, base64};
use std::net::IpAddr;

/// A base address: `http[s]://host[:port][/prefix]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) tls: bool,
    /// A name in lower case, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Begins with `/` and does not end with one; empty at the root.
    pub(crate) prefix: String,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], saying what to write instead. The text is repeated only
    /// where it cannot hold a password.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| {
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the service's address {why}; write it like http://127.0.0.1:8080"),
            ))
        };
        let text = text.trim();
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
            None => return bad("has no scheme"),
        };
        let tls = match scheme.as_str() {
            "http" => false,
            "https" => true,
            _ => return bad("must begin with http:// or https://"),
        };
        if rest.contains(['?', '#']) {
            return bad("must not have a query or a fragment");
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |i| rest.split_at(i));
        if authority.contains('@') {
            return bad("must not hold a user or password");
        }
        let default = if tls { 443 } else { 80 };
        let Some((host, port)) = split_authority(authority, default) else {
            return bad("has no usable host and port");
        };
        let printable = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\');
        if !path.bytes().all(printable) {
            return bad("has a path with characters that must be percent-encoded");
        }
        Ok(Self { tls, host, port, prefix: path.trim_end_matches('/').to_owned() })
    }

    /// The host as an IP address, when it is one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// `host` or `host:port`, as `Host` wants it.
    pub(crate) fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        if self.port == default { self.bracketed() } else { self.authority_with_port() }
    }

    /// `host:port`, always with the port.
    pub(crate) fn authority_with_port(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    /// The whole address, for messages.
    pub(crate) fn display(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.prefix)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }
}

/// `host[:port]` or `[v6][:port]`.
fn split_authority(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return None,
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    let name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if host.is_empty() || !(host.bytes().all(name) || text.starts_with('[')) {
        return None;
    }
    let port = match port {
        None | Some("") => default,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok()?,
        Some(_) => return None,
    };
    (port != 0).then(|| (host.to_ascii_lowercase(), port))
}

/// The way that requests to a service take: to itself, or through a proxy. For programs that look at it, such as a check
/// of the connection; an engine finds its own.
#[derive(Debug, Clone)]
pub struct Route {
    address: Address,
    proxy: Option<Proxy>,
}

impl Route {
    /// The way to the service at `base_url` in this environment.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the address or the proxy cannot be used.
    pub fn find(base_url: &str, environment: &Environment) -> Result<Self, Error> {
        let address = Address::parse(base_url)?;
        let proxy = environment.proxy_for(&address)?;
        Ok(Self { address, proxy })
    }

    /// The host and the port to connect to: the proxy's, if there is one.
    #[must_use]
    pub fn first_hop(&self) -> (&str, u16) {
        let address = self.proxy.as_ref().map_or(&self.address, |proxy| &proxy.address);
        (&address.host, address.port)
    }

    /// The name that TLS is spoken with; nothing for plain HTTP.
    #[must_use]
    pub fn tls_name(&self) -> Option<&str> {
        self.address.tls.then_some(self.address.host.as_str())
    }

    /// The service, as `Host` wants it.
    #[must_use]
    pub fn authority(&self) -> String {
        self.address.authority()
    }

    /// The service as `CONNECT` wants it, where a tunnel through a proxy is needed.
    #[must_use]
    pub fn tunnel(&self) -> Option<String> {
        (self.address.tls && self.proxy.is_some()).then(|| self.address.authority_with_port())
    }

    /// The proxy for messages, without its password.
    #[must_use]
    pub fn proxy(&self) -> Option<String> {
        self.proxy.as_ref().map(|proxy| proxy.address.display())
    }

    /// The value of `Proxy-Authorization`, for `CONNECT` and for requests that a proxy reads.
    #[must_use]
    pub fn proxy_authorization(&self) -> Option<&broca_proto::Secret> {
        self.proxy.as_ref().and_then(|proxy| proxy.authorization.as_ref())
    }

    /// A path of the service, with the prefix of its address.
    #[must_use]
    pub fn path(&self, path: &str) -> String {
        format!("{}{path}", self.address.prefix)
    }

    /// The whole address of a path, where a proxy reads the request.
    #[must_use]
    pub fn absolute(&self, path: &str) -> Option<String> {
        let is_read = self.proxy.is_some() && !self.address.tls;
        is_read.then(|| format!("{}{path}", self.address.display()))
    }
}

/// What the environment says about proxies. The rules are ours, the same in every language; the
/// shell only hands the variables in.
#[derive(Clone, Default)]
pub struct Environment {
    http_proxy: Option<String>,
    https_proxy: Option<String>,
    no_proxy: Option<String>,
}

/// Which proxies are set; there may be passwords in them.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment")
            .field("http_proxy", &self.http_proxy.is_some())
            .field("https_proxy", &self.https_proxy.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

impl Environment {
    /// No proxies.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, lower case first, through `variable`. `HTTP_PROXY` in upper
    /// case is ignored where `REQUEST_METHOD` is set: there a caller of a CGI program could set it.
    pub fn from_vars(variable: impl Fn(&str) -> Option<String>) -> Self {
        let one = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let either = |name: &str| one(name).or_else(|| one(&name.to_ascii_uppercase()));
        let all = either("all_proxy");
        let cgi = one("REQUEST_METHOD").is_some();
        let http = if cgi { one("http_proxy") } else { either("http_proxy") };
        Self {
            http_proxy: http.or_else(|| all.clone()),
            https_proxy: either("https_proxy").or(all),
            no_proxy: either("no_proxy"),
        }
    }

    /// The proxy for `target`, if any.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a proxy of a kind this client does not speak to, by name.
    pub(crate) fn proxy_for(&self, target: &Address) -> Result<Option<Proxy>, Error> {
        let (name, value) = if target.tls {
            ("https_proxy", &self.https_proxy)
        } else {
            ("http_proxy", &self.http_proxy)
        };
        let Some(value) = value else { return Ok(None) };
        if is_loopback(target) || self.excludes(target) {
            return Ok(None);
        }
        Proxy::parse(name, value).map(Some)
    }

    fn excludes(&self, target: &Address) -> bool {
        let list = self.no_proxy.as_deref().unwrap_or_default();
        list.split([',', ' ']).map(str::trim).filter(|e| !e.is_empty()).any(|entry| {
            if entry == "*" {
                return true;
            }
            if let Some((network, bits)) = entry.split_once('/') {
                return target.ip().is_some_and(|ip| in_network(ip, network, bits));
            }
            let (host, port) = match entry.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                    (host, port.parse::<u16>().ok())
                }
                _ => (entry, None),
            };
            if port.is_some_and(|port| port != target.port) {
                return false;
            }
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let host = host.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
            target.host == host
                || (target.ip().is_none() && target.host.ends_with(&format!(".{host}")))
        })
    }
}

fn is_loopback(target: &Address) -> bool {
    target.host == "localhost" || target.ip().is_some_and(|ip| ip.is_loopback())
}

fn in_network(ip: IpAddr, network: &str, bits: &str) -> bool {
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(net)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            ip.to_bits() & mask == net.to_bits() & mask
        }
        (IpAddr::V6(ip), IpAddr::V6(net)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            ip.to_bits() & mask == net.to_bits() & mask
        }
        _ => false,
    }
}

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) address: Address,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<broca_proto::Secret>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({})", self.address.display())
    }
}

impl Proxy {
    fn parse(variable: &str, value: &str) -> Result<Self, Error> {
        let bad = |why: String| Error::new(ErrorKind::InvalidArgument, format!("{variable} {why}"));
        let value = value.trim();
        let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(bad(format!(
                "names a {} proxy; only http proxies are supported, or list the host in no_proxy",
                scheme.to_ascii_lowercase()
            )));
        }
        let (user, host) = match rest.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, rest),
        };
        let host = host.trim_end_matches('/');
        let address = Address::parse(&format!("http://{host}"))
            .map_err(|_| bad("is not like http://host:port".to_owned()))?;
        let authorization = user.map(|user| {
            let encoded = base64::encode(&percent_decode(user));
            broca_proto::Secret::new(format!("Basic {encoded}"))
        });
        Ok(Self { address, authorization })
    }
}

fn percent_decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let hex = (byte == b'%').then(|| text.get(i + 1..i + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                i += 3;
            }
            None => {
                out.push(byte);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn addresses_are_read() {
        let a = address("HTTP://Example.org:8080/bae/");
        assert_eq!((a.host.as_str(), a.port, a.prefix.as_str()), ("example.org", 8080, "/bae"));
        assert_eq!(a.authority(), "example.org:8080");
        assert_eq!(address("https://x").authority(), "x");
        assert_eq!(address("http://[::1]:99").authority(), "[::1]:99");
        assert_eq!(address("http://[::1]").authority_with_port(), "[::1]:80");
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_cure() {
        for text in [
            "",
            "127.0.0.1:8080",
            "ftp://x",
            "http://",
            "http://:80",
            "http://x:0",
            "http://x:99999",
            "http://u:p@x",
            "http://x?y",
            "http://x/ y",
            "http://exämple.org",
            "http://[::1",
            "http://::1",
            "http://x:8a",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(error.message().contains("write it like"), "{text}");
        }
    }

    fn environment(vars: &[(&str, &str)]) -> Environment {
        Environment::from_vars(|name| {
            vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    fn proxied(vars: &[(&str, &str)], target: &str) -> bool {
        environment(vars).proxy_for(&address(target)).unwrap().is_some()
    }

    #[test]
    fn the_proxy_of_the_scheme_is_used_unless_the_host_is_excluded() {
        let vars = [
            ("http_proxy", "http://p:1"),
            ("no_proxy", "a.org, .b.org,10.0.0.0/8,c.org:81,[fd00::1]"),
        ];
        assert!(proxied(&vars, "http://x.org"));
        assert!(!proxied(&vars, "https://x.org"));
        for excluded in [
            "http://a.org",
            "http://s.a.org",
            "http://b.org",
            "http://s.b.org",
            "http://10.1.2.3",
            "http://c.org:81",
            "http://localhost:8",
            "http://127.0.0.9",
            "http://[::1]",
            "http://[fd00::1]",
        ] {
            assert!(!proxied(&vars, excluded), "{excluded}");
        }
        for used in ["http://xa.org", "http://11.1.2.3", "http://c.org:80"] {
            assert!(proxied(&vars, used), "{used}");
        }
        assert!(!proxied(&[("HTTP_PROXY", "http://p:1"), ("REQUEST_METHOD", "GET")], "http://x"));
        assert!(proxied(&[("ALL_PROXY", "p:1")], "https://x"));
        assert!(!proxied(&[("ALL_PROXY", "p:1"), ("NO_PROXY", "*")], "https://x"));
    }

    #[test]
    fn proxies_we_do_not_speak_to_are_refused_by_name() {
        for (value, name) in [("socks5://p:1", "socks5"), ("https://p:1", "https")] {
            let error =
                environment(&[("http_proxy", value)]).proxy_for(&address("http://x")).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }

    #[test]
    fn a_proxys_password_is_sent_and_never_shown() {
        let vars = [("http_proxy", "http://us%40er:pa:ss@p:1")];
        let proxy = environment(&vars).proxy_for(&address("http://x")).unwrap().unwrap();
        assert_eq!(proxy.authorization.as_ref().unwrap().expose(), "Basic dXNAZXI6cGE6c3M=");
        assert!(!format!("{proxy:?}").contains("pa:ss"));
    }

    #[test]
    fn a_route_goes_by_its_proxy_and_tells_no_password() {
        let variable = |name: &str| {
            name.ends_with("_proxy").then(|| "http://me:hidden@proxy.test:3128".to_owned())
        };
        let environment =
            Environment::from_vars(|name| variable(name).filter(|_| name != "no_proxy"));
        let plain = Route::find("http://service.test/base", &environment).unwrap();
        assert_eq!(plain.first_hop(), ("proxy.test", 3128));
        assert_eq!(plain.absolute("/x").as_deref(), Some("http://service.test/base/x"));
        assert_eq!((plain.tls_name(), plain.tunnel()), (None, None));
        let secure = Route::find("https://service.test", &environment).unwrap();
        assert_eq!(secure.tunnel().as_deref(), Some("service.test:443"));
        assert_eq!((secure.tls_name(), secure.absolute("/x")), (Some("service.test"), None));
        assert_eq!(secure.proxy().as_deref(), Some("http://proxy.test:3128"));
        assert!(secure.proxy_authorization().is_some());
        assert!(!format!("{secure:?}").contains("hidden"));
        let direct = Route::find("http://127.0.0.1:8080/base", &environment).unwrap();
        assert_eq!(direct.first_hop(), ("127.0.0.1", 8080));
        assert_eq!((direct.proxy(), direct.path("/x")), (None, "/base/x".to_owned()));
    }
}
