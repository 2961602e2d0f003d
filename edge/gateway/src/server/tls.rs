//! Whether the listeners for clients are with TLS, and their certificate. Both change while they
//! serve.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use neptune_program::served_key::{ServedKey, server_config};
use tokio_rustls::TlsAcceptor;

/// The TLS of a gateway. Open connections keep what they began with.
#[derive(Debug, Default)]
pub struct Tls {
    is_on: AtomicBool,
    served: Arc<ServedKey>,
}

/// The TLS of one listener.
#[derive(Clone)]
pub struct ListenerTls {
    tls: Arc<Tls>,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Requires TLS of new connections, or not. Without a certificate their handshakes fail: a
    /// gateway with TLS never answers without.
    pub fn require(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Presents another certificate, a PEM chain, from now on.
    ///
    /// # Errors
    /// Why it cannot be used; the one before stays.
    pub fn set(&self, chain: &[u8], key: &[u8]) -> Result<(), String> {
        self.served.set(chain, key)
    }

    /// Whether there is a certificate.
    pub fn has_certificate(&self) -> bool {
        self.served.get().is_some()
    }

    /// The TLS of a listener with this protocol, as ALPN names it.
    pub fn listener(self: &Arc<Self>, protocol: &[u8]) -> ListenerTls {
        let config = server_config(Arc::clone(&self.served), &[protocol]);
        ListenerTls { tls: Arc::clone(self), acceptor: TlsAcceptor::from(Arc::new(config)) }
    }
}

impl ListenerTls {
    /// How to begin a connection now; `None` without TLS.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        self.tls.is_on.load(Ordering::Relaxed).then(|| self.acceptor.clone())
    }
}
