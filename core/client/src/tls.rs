//! TLS for every shell in Rust: rustls with ring, the platform's trusted roots, and roots of the application's own.

use broca_proto::{Error, ErrorKind};
use rustls::crypto::{CryptoProvider, KeyProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::SigningKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::sync::{Arc, OnceLock};

/// Whom to trust.
#[derive(Debug, Clone)]
pub struct Trust {
    platform: bool,
    extra: Vec<CertificateDer<'static>>,
}

impl Default for Trust {
    fn default() -> Self {
        Self { platform: true, extra: Vec::new() }
    }
}

impl Trust {
    /// Whether the platform's trusted roots count. Default: they do.
    #[must_use]
    pub fn with_platform_roots(mut self, trusted: bool) -> Self {
        self.platform = trusted;
        self
    }

    /// Trusts the certificates of a PEM text too, such as a company's own authority.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the text holds no certificate or a broken one.
    pub fn with_pem(mut self, pem: &[u8]) -> Result<Self, Error> {
        let fault = |what: String| Error::new(ErrorKind::InvalidArgument, what);
        let before = self.extra.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let broken = |e| fault(format!("the PEM text of trusted roots is broken: {e}"));
            self.extra.push(certificate.map_err(broken)?);
        }
        if self.extra.len() == before {
            return Err(fault("the PEM text of trusted roots holds no certificate".to_owned()));
        }
        Ok(self)
    }

    fn config(&self) -> Result<ClientConfig, Error> {
        let fault = |what: String| Error::new(ErrorKind::Tls, what);
        let mut roots = RootCertStore::empty();
        if self.platform {
            // One unreadable certificate among the platform's must not take the others away.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        for certificate in &self.extra {
            let refused = |e| fault(format!("a trusted root cannot be used: {e}"));
            roots.add(certificate.clone()).map_err(refused)?;
        }
        if roots.is_empty() {
            return Err(fault(
                "no trusted root certificates were found; install the platform's or give a PEM file"
                    .to_owned(),
            ));
        }
        let provider = rustls::crypto::ring::default_provider();
        let provider = Arc::new(CryptoProvider { key_provider: &NoKeys, ..provider });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::new(ErrorKind::Internal, format!("TLS cannot be set up: {e}")))?;
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Clients have no private keys, and so the library no code that signs.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(
        &self,
        _key: PrivateKeyDer<'static>,
    ) -> Result<Arc<dyn SigningKey>, rustls::Error> {
        Err(rustls::Error::General("certificates of clients are not supported".to_owned()))
    }
}

/// Makes TLS connections; the trusted roots are read once, when the first one is needed.
#[derive(Debug, Default)]
pub struct Connector {
    trust: Trust,
    config: OnceLock<Result<Arc<ClientConfig>, Error>>,
}

impl Connector {
    /// A connector that trusts these; nothing is read yet.
    #[must_use]
    pub fn new(trust: Trust) -> Self {
        Self { trust, config: OnceLock::new() }
    }

    /// Reads the trusted roots now, so that a fault shows where it can be reported.
    ///
    /// # Errors
    /// `tls` when nothing is trusted, or a root cannot be used.
    pub fn prepare(&self) -> Result<(), Error> {
        self.config().map(drop)
    }

    /// A new connection to the server of this name or address.
    ///
    /// # Errors
    /// `tls` when nothing is trusted, or no certificate can carry the name.
    pub fn connect(&self, server_name: &str) -> Result<ClientConnection, Error> {
        let fault = |what: String| Error::new(ErrorKind::Tls, what);
        let name = ServerName::try_from(server_name.to_owned())
            .map_err(|_| fault("the host is no name that a certificate can carry".to_owned()))?;
        ClientConnection::new(self.config()?, name)
            .map_err(|e| fault(format!("TLS cannot be started: {e}")))
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        self.config.get_or_init(|| self.trust.config().map(Arc::new)).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_certificates_is_refused() {
        for pem in ["", "hello", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
            let refused = Trust::default().with_pem(pem.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{pem}");
        }
    }

    #[test]
    fn without_any_root_nothing_is_trusted() {
        let connector = Connector::new(Trust::default().with_platform_roots(false));
        assert_eq!(connector.prepare().unwrap_err().kind(), ErrorKind::Tls);
    }
}
