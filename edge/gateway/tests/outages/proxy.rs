//! A reverse proxy in front of the cloud that fails as clouds and networks do. It ends TLS, and it
//! notes which requests reached it.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
    time::sleep,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivatePkcs8KeyDer},
};

type Error = Box<dyn std::error::Error + Send + Sync>;
type Body = UnsyncBoxBody<Bytes, Error>;
type Upstream = Client<HttpConnector, Full<Bytes>>;

/// The request's number, which the gateway passes on.
pub const REQUEST_ID: &str = "x-request-id";
/// What 429 asks for, in seconds.
pub const RETRY_AFTER_SECONDS: u64 = 2;
/// More than the gateway reads.
const HUGE: usize = 40 << 20;

/// How the cloud fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Connections are reset, and new ones refused.
    Dead,
    /// Connections stay and new ones are accepted; nothing is read or written.
    BlackHole,
    /// The request is read, and the connection is reset.
    ResetBeforeAnswer,
    /// Half of the body is sent, and the connection is reset.
    ResetMidBody,
    /// Some events are sent, and the connection is reset.
    ResetMidStream,
    /// The body comes with one byte per second.
    OneBytePerSecond,
    Status503,
    /// Each answer is 429 with `Retry-After`.
    TooManyRequests,
    /// A body that ends within the JSON.
    WrongJson,
    /// Numbers are `NaN`, as some JSON writers emit them.
    NotANumber,
    /// An answer has 40 MB.
    Huge,
    /// The certificate of the proxy expired.
    ExpiredTls,
}

impl Fault {
    /// The faults of a server that answers as a whole.
    pub const WHOLE: [Self; 11] = [
        Self::Dead,
        Self::BlackHole,
        Self::ResetBeforeAnswer,
        Self::ResetMidBody,
        Self::OneBytePerSecond,
        Self::Status503,
        Self::TooManyRequests,
        Self::WrongJson,
        Self::NotANumber,
        Self::Huge,
        Self::ExpiredTls,
    ];
    /// The faults of a server that streams.
    pub const STREAM: [Self; 5] = [
        Self::Dead,
        Self::BlackHole,
        Self::ResetMidStream,
        Self::OneBytePerSecond,
        Self::TooManyRequests,
    ];

    /// Returns the name of the fault in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::BlackHole => "black hole",
            Self::ResetBeforeAnswer => "reset before answer",
            Self::ResetMidBody => "reset mid-body",
            Self::ResetMidStream => "reset mid-stream",
            Self::OneBytePerSecond => "1 byte/s",
            Self::Status503 => "503",
            Self::TooManyRequests => "429 + Retry-After",
            Self::WrongJson => "wrong JSON",
            Self::NotANumber => "NaN",
            Self::Huge => "40 MB answer",
            Self::ExpiredTls => "expired TLS",
        }
    }

    /// Whether connections from before do not survive its begin.
    const fn resets(self) -> bool {
        matches!(self, Self::Dead | Self::ExpiredTls)
    }
}

/// The proxy between the gateway and the cloud.
pub struct Proxy {
    pub port: u16,
    /// PEM of the authority of its certificates.
    pub authority: String,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    fault: watch::Sender<Option<Fault>>,
    upstream: SocketAddr,
    client: Upstream,
    valid: TlsAcceptor,
    expired: TlsAcceptor,
    received: Mutex<BTreeSet<usize>>,
}

impl Proxy {
    /// Starts in front of this server.
    pub async fn start(upstream: SocketAddr) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let shared = Arc::new(Shared {
            fault: watch::Sender::new(None),
            upstream,
            client: Client::builder(TokioExecutor::new()).build_http(),
            valid: acceptor(&issuer, 2100),
            expired: acceptor(&issuer, 2020),
            received: Mutex::default(),
        });
        let port = neptune_harness::free_port();
        let mut proxy = Self { port, authority: issuer.pem(), shared, accepting: None };
        proxy.listen().await;
        proxy
    }

    async fn listen(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        let shared = Arc::clone(&self.shared);
        self.accepting = Some(tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                // Each end of a connection is a reset.
                stream.set_zero_linger().unwrap();
                stream.set_nodelay(true).unwrap();
                tokio::spawn(Arc::clone(&shared).serve(stream));
            }
        }));
    }

    /// Begins to fail, or works again.
    pub async fn set(&mut self, fault: Option<Fault>) {
        if fault == Some(Fault::Dead)
            && let Some(accepting) = self.accepting.take()
        {
            accepting.abort();
            // The listening socket is closed when the task is gone.
            let _ = accepting.await;
        }
        self.shared.fault.send_replace(fault);
        if fault != Some(Fault::Dead) && self.accepting.is_none() {
            self.listen().await;
        }
    }

    /// The numbers of the requests that it received.
    pub fn received(&self) -> BTreeSet<usize> {
        self.shared.received.lock().unwrap().clone()
    }
}

fn acceptor(issuer: &CertifiedIssuer<'static, KeyPair>, last_year: i32) -> TlsAcceptor {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2019, 1, 1);
    params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    // A resumed session would not show the certificate again.
    config.session_storage = Arc::new(tokio_rustls::rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    TlsAcceptor::from(Arc::new(config))
}

impl Shared {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut fault = self.fault.subscribe();
        if fault.wait_for(|fault| *fault != Some(Fault::BlackHole)).await.is_err() {
            return;
        }
        let is_expired = *fault.borrow_and_update() == Some(Fault::ExpiredTls);
        let acceptor = if is_expired { &self.expired } else { &self.valid };
        // An error is a client that refuses the certificate.
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let shared = Arc::clone(&self);
        let service = service_fn(move |request| Arc::clone(&shared).answer(request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        loop {
            tokio::select! {
                biased;
                changed = fault.changed() => {
                    let now = *fault.borrow_and_update();
                    if changed.is_err() || now.is_some_and(Fault::resets) {
                        return;
                    }
                    // Nothing is read or written meanwhile.
                    let _ = fault.wait_for(|fault| *fault != Some(Fault::BlackHole)).await;
                }
                // An error is a client that went away, or a reset.
                _ = &mut connection => return,
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Error> {
        let fault = *self.fault.borrow();
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some(id) = head.headers.get(REQUEST_ID) {
            self.received.lock().unwrap().insert(id.to_str()?.parse()?);
        }
        match fault {
            Some(Fault::ResetBeforeAnswer) => return Err("reset".into()),
            Some(Fault::Status503) => {
                return Ok(plain(StatusCode::SERVICE_UNAVAILABLE, "busy"));
            }
            Some(Fault::TooManyRequests) => {
                let mut answer = plain(StatusCode::TOO_MANY_REQUESTS, "later");
                answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS.into());
                return Ok(answer);
            }
            _ => {}
        }
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = format!("http://{}{path}", self.upstream).parse()?;
        head.headers.remove("host");
        let answer = self.client.request(Request::from_parts(head, Full::new(body))).await?;
        let (mut head, body) = answer.into_parts();
        let Some(fault) = fault else {
            return Ok(Response::from_parts(head, body.map_err(Into::into).boxed_unsync()));
        };
        let body = body.collect().await?.to_bytes();
        if matches!(fault, Fault::WrongJson | Fault::NotANumber | Fault::Huge) {
            head.headers.remove(CONTENT_LENGTH);
        }
        Ok(Response::from_parts(head, changed(fault, body)))
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut answer = Response::new(full(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, "text/plain".parse().unwrap());
    answer
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// The body of an answer with this fault. The head is that of the whole answer.
fn changed(fault: Fault, body: Bytes) -> Body {
    match fault {
        Fault::ResetMidBody | Fault::ResetMidStream => {
            let half = body.slice(..body.len() / 2);
            pieces([Ok(half), Err("reset".into())].into(), Duration::from_millis(30))
        }
        Fault::OneBytePerSecond => {
            let bytes = (0..body.len()).map(|at| Ok(body.slice(at..=at)));
            pieces(bytes.collect(), Duration::from_secs(1))
        }
        Fault::WrongJson => full(body.slice(..body.len() / 2)),
        Fault::NotANumber => {
            let text = String::from_utf8_lossy(&body).into_owned();
            // The first number of the scores.
            let (before, after) = text.rsplit_once("\"data\":[").unwrap_or((&text, ""));
            let rest = after.split_once(',').map_or(after, |(_, rest)| rest);
            full(format!("{before}\"data\":[NaN,{rest}").into())
        }
        Fault::Huge => full(vec![b' '; HUGE].into()),
        _ => full(body),
    }
}

/// Pieces of a body, the first one at once and a pause after each.
fn pieces(pieces: Vec<Result<Bytes, Error>>, pause: Duration) -> Body {
    let stream =
        futures::stream::unfold(pieces.into_iter().enumerate(), move |mut rest| async move {
            let (at, piece) = rest.next()?;
            if at > 0 {
                sleep(pause).await;
            }
            Some((piece.map(Frame::data), rest))
        });
    StreamBody::new(stream).boxed_unsync()
}
