//! How an exchange gets its connection: a kept one, or the first of several addresses that answers,
//! through a proxy if there is one.

use super::{Conn, Dial, Exchange, ExchangeId, Net, Phase, State, internal};
use crate::engine::effect::{CloseReason, ConnId, Effect, ResolveId, Resolved, Tls};
use crate::http1::{self, Connection, Http1Error, Request, Target};
use broca_proto::{Error, ErrorKind, Time};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

impl Net {
    pub(crate) fn resolved(&mut self, req: ResolveId, answer: Resolved, now: Time) {
        let found = self.exchanges.iter_mut().find_map(|(id, x)| match &mut x.state {
            State::Dialling(dial) if dial.resolving == Some(req) => Some((*id, dial)),
            _ => None,
        });
        let Some((id, dial)) = found else { return };
        dial.resolving = None;
        let host = self.proxy.as_ref().map_or(&self.address, |p| &p.address);
        match answer {
            Ok(addresses) if !addresses.is_empty() => {
                dial.left = alternate(&addresses, host.port);
                self.fly(id, now);
            }
            Ok(_) => {
                let message = format!("the name {} has no address", host.host);
                self.fail(id, Error::new(ErrorKind::Connect, message), now);
            }
            Err(why) => {
                let message =
                    format!("the name {} cannot be resolved: {why}; check the address", host.host);
                self.fail(id, Error::new(ErrorKind::Connect, message), now);
            }
        }
    }

    pub(crate) fn connected(&mut self, conn: ConnId, now: Time) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if c.phase != Phase::Connecting {
            return;
        }
        let Some(id) = c.exchange else { return };
        // The others that were tried at the same time are not needed any more.
        if let Some(Exchange { state: State::Dialling(dial), .. }) = self.exchanges.get_mut(&id) {
            let others: Vec<ConnId> =
                dial.flying.drain(..).filter(|other| *other != conn).collect();
            dial.flying.push(conn);
            dial.left.clear();
            dial.next_at = None;
            others.into_iter().for_each(|other| self.close(other, true));
        }
        match &self.proxy {
            Some(proxy) if self.address.tls => {
                let authority = self.address.authority_with_port();
                let authorization =
                    proxy.authorization.as_ref().map(|a| ("Proxy-Authorization", a.expose()));
                let request = Request {
                    method: "CONNECT",
                    target: Target::Authority(&authority),
                    host: &authority,
                    headers: authorization.as_slice(),
                    body: b"",
                };
                let Some(c) = self.conns.get_mut(&conn) else { return };
                c.phase = Phase::Tunnelling;
                match c.http.send(request) {
                    Ok(bytes) => {
                        c.out.push_back(bytes);
                        self.flush(conn);
                    }
                    Err(error) => self.fail(id, internal(&error), now),
                }
            }
            _ => self.open(conn, now),
        }
    }

    pub(crate) fn tls_started(&mut self, conn: ConnId, now: Time) {
        if self.conns.get(&conn).is_some_and(|c| c.phase == Phase::StartingTls) {
            self.open(conn, now);
        }
    }

    /// Gives exchanges that wait a kept connection or a new one, in order.
    pub(super) fn serve_waiting(&mut self, now: Time) {
        let mut i = 0;
        while let Some(id) = self.waiting.get(i).copied() {
            let Some(x) = self.exchanges.get(&id) else {
                self.waiting.remove(i);
                continue;
            };
            let room = self.settings.max_connections + usize::from(x.call.urgent);
            let kept = self.kept(x, now);
            if self.connections_in_use() >= room {
                i += 1;
                continue;
            }
            if let Some(conn) = kept {
                self.waiting.remove(i);
                self.send(id, conn, true, now);
                continue;
            }
            if self.connections() >= room {
                // A connection kept for its own sake makes room.
                let idle = self.conns.iter().find(|(_, c)| c.exchange.is_none()).map(|(id, _)| *id);
                if let Some(conn) = idle {
                    self.close(conn, false);
                }
            }
            self.waiting.remove(i);
            self.dial(id, now);
        }
    }

    /// A kept connection that may carry this exchange.
    pub(super) fn kept(&self, x: &Exchange, now: Time) -> Option<ConnId> {
        let patience = if x.call.idempotent {
            self.settings.idle_close_ms
        } else {
            self.settings.idle_reuse_ms
        };
        let fits = |c: &Conn| {
            c.exchange.is_none()
                && c.phase == Phase::Open
                && c.http.is_ready()
                && now.since(c.since) < patience
        };
        let found = self.conns.iter().find(|(_, c)| !x.needs_new && fits(c));
        found.map(|(conn, _)| *conn)
    }

    pub(super) fn dial(&mut self, id: ExchangeId, now: Time) {
        let host = self.proxy.as_ref().map_or(&self.address, |p| &p.address);
        let mut dial = Dial {
            resolving: None,
            left: VecDeque::new(),
            flying: Vec::new(),
            next_at: None,
            failure: None,
        };
        if let Some(ip) = host.ip() {
            dial.left.push_back(SocketAddr::new(ip, host.port));
        } else {
            let (req, host) = (ResolveId(self.next), host.host.clone());
            self.next += 1;
            dial.resolving = Some(req);
            self.effects.push_back(Effect::Resolve { req, host });
        }
        let resolving = dial.resolving.is_some();
        let connect_timeout_ms = self.settings.connect_timeout_ms;
        if let Some(x) = self.exchanges.get_mut(&id) {
            x.state = State::Dialling(dial);
            x.deadline = Some(now.plus(connect_timeout_ms));
        }
        if !resolving {
            self.fly(id, now);
        }
    }

    /// Tries the next address of a search.
    pub(super) fn fly(&mut self, id: ExchangeId, now: Time) {
        let conn = ConnId(self.next);
        let Some(Exchange { state: State::Dialling(dial), .. }) = self.exchanges.get_mut(&id)
        else {
            return;
        };
        let Some(addr) = dial.left.pop_front() else {
            dial.next_at = None;
            return;
        };
        self.next += 1;
        dial.flying.push(conn);
        dial.next_at = (!dial.left.is_empty()).then(|| now.plus(self.settings.eyeballs_delay_ms));
        let tls = (self.address.tls && self.proxy.is_none())
            .then(|| Tls { server_name: self.address.host.clone() });
        let c = Conn {
            http: Connection::new(http1::Limits::default()),
            phase: Phase::Connecting,
            exchange: Some(id),
            since: now,
            out: VecDeque::new(),
            unwritten: 0,
            paused: false,
            gone: None,
        };
        self.conns.insert(conn, c);
        self.effects.push_back(Effect::Connect { conn, addr, tls });
    }

    pub(super) fn dial_failed(
        &mut self,
        id: ExchangeId,
        conn: ConnId,
        why: CloseReason,
        now: Time,
    ) {
        let Some(Exchange { state: State::Dialling(dial), .. }) = self.exchanges.get_mut(&id)
        else {
            return;
        };
        dial.flying.retain(|flying| *flying != conn);
        // A reason of TLS says more than that some other address could not be reached.
        if dial.failure.is_none_or(|before| !before.is_tls()) {
            dial.failure = Some(why);
        }
        if !dial.left.is_empty() {
            self.fly(id, now);
        } else if dial.flying.is_empty() && dial.resolving.is_none() {
            let why = dial.failure.unwrap_or(why);
            self.fail(id, self.cannot_connect(why), now);
        }
    }

    pub(super) fn cannot_connect(&self, why: CloseReason) -> Error {
        let (what, host) = match &self.proxy {
            Some(proxy) => ("the proxy", &proxy.address),
            None => ("the service", &self.address),
        };
        let at = host.display();
        if why.is_tls() {
            let cure = match why {
                CloseReason::TlsCert => "trust its issuer, or check this machine's clock",
                CloseReason::TlsHost => "check the host name in the address",
                _ => "check that the address is an https one",
            };
            let message = format!("cannot connect to {what} at {at}: {}; {cure}", why.as_str());
            return Error::new(ErrorKind::Tls, message);
        }
        let message = format!(
            "cannot connect to {what} at {at}: {}; check that it runs and that the address is right",
            why.as_str()
        );
        Error::new(ErrorKind::Connect, message)
    }

    /// What a connection says that carries no exchange, or none yet.
    pub(super) fn poll_without_exchange(
        &mut self,
        conn: ConnId,
        polled: Result<Option<http1::Event>, Http1Error>,
        now: Time,
    ) -> Option<()> {
        let c = self.conns.get_mut(&conn)?;
        let exchange = c.exchange;
        match (polled, c.phase) {
            (Ok(None), _) => None,
            (Ok(Some(http1::Event::Tunnel(rest))), Phase::Tunnelling) if rest.is_empty() => {
                c.phase = Phase::StartingTls;
                c.http = Connection::new(http1::Limits::default());
                let tls = Tls { server_name: self.address.host.clone() };
                self.effects.push_back(Effect::StartTls { conn, tls });
                None
            }
            (Ok(Some(http1::Event::Head(head))), Phase::Tunnelling) => {
                if (200..300).contains(&head.status()) {
                    return Some(());
                }
                let status = head.status();
                self.close(conn, true);
                let message = match status {
                    407 => {
                        "the proxy wants a password; put user:password@ into https_proxy".to_owned()
                    }
                    _ => format!(
                        "the proxy refused a tunnel to {} with status {status}",
                        self.address.host
                    ),
                };
                if let Some(id) = exchange {
                    self.fail(id, Error::new(ErrorKind::Connect, message), now);
                }
                None
            }
            // Bytes nobody asked for, or a broken tunnel.
            _ => {
                self.close(conn, true);
                if let Some(id) = exchange {
                    let message = format!(
                        "no tunnel to {} through the proxy: it does not answer as one",
                        self.address.host
                    );
                    self.fail(id, Error::new(ErrorKind::Connect, message), now);
                }
                None
            }
        }
    }

    /// A connection is ready for HTTP: the exchange that dialled gets it.
    pub(super) fn open(&mut self, conn: ConnId, now: Time) {
        let Some(c) = self.conns.get_mut(&conn) else { return };
        c.phase = Phase::Open;
        c.since = now;
        if let Some(id) = c.exchange.take() {
            self.send(id, conn, false, now);
        }
    }
}

/// Addresses in turn of their families, beginning with the family that came first (RFC 8305 §4).
fn alternate(addresses: &[IpAddr], port: u16) -> VecDeque<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (mut a, mut b): (VecDeque<IpAddr>, VecDeque<IpAddr>) =
        addresses.iter().partition(|ip| ip.is_ipv6() == first_is_v6);
    let mut out = VecDeque::new();
    while !a.is_empty() || !b.is_empty() {
        out.extend(a.pop_front().into_iter().chain(b.pop_front()));
    }
    out.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let ip = |t: &str| t.parse::<IpAddr>().unwrap();
        let order =
            alternate(&[ip("::1"), ip("::2"), ip("1.1.1.1"), ip("1.1.1.2"), ip("1.1.1.3")], 9);
        let shown: Vec<String> = order.iter().map(|a| a.ip().to_string()).collect();
        assert_eq!(shown, ["::1", "1.1.1.1", "::2", "1.1.1.2", "1.1.1.3"]);
    }
}
