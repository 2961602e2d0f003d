//! Downloads through an HTTP proxy.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use neptune_store::{
    ArtifactRequest, DownloadProxy, FetchPhase, FetchProgress, ModelError, StorePolicy,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::{
    fixture::{StoreFixture, policy},
    server::Server,
    tls,
};

/// A request that the proxy received.
#[derive(Debug, Clone)]
struct ProxiedRequest {
    /// The request line, such as `CONNECT models.invalid:443 HTTP/1.1`.
    line: String,
    /// The lines of the header, in lower case.
    headers: Vec<String>,
}

/// An HTTP proxy on loopback that takes the requests for all hosts to one server.
struct HttpProxy {
    port: u16,
    seen: Arc<Mutex<Vec<ProxiedRequest>>>,
}

impl HttpProxy {
    /// `target` is the URL of the server; `None`: the proxy demands other credentials.
    async fn start(target: Option<&str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<ProxiedRequest>>>::default();
        let target = target.map(|url| {
            let (_, authority) = url.split_once("://").unwrap();
            authority.replace("localhost", "127.0.0.1")
        });
        let requests = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, target.clone(), Arc::clone(&requests)));
            }
        });
        Self { port, seen }
    }

    fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|request| request.line.clone()).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    target: Option<String>,
    seen: Arc<Mutex<Vec<ProxiedRequest>>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).ok()?;
    let mut lines = text.lines();
    let line = lines.next()?.to_owned();
    let headers = lines.map(str::to_ascii_lowercase).collect();
    seen.lock().unwrap().push(ProxiedRequest { line: line.clone(), headers });
    let Some(target) = target else {
        let refusal = b"HTTP/1.1 407 X\r\ncontent-length: 0\r\n\r\n";
        return stream.write_all(refusal).await.ok();
    };
    let mut server = TcpStream::connect(target).await.ok()?;
    if line.starts_with("CONNECT ") {
        stream.write_all(b"HTTP/1.1 200 X\r\n\r\n").await.ok()?;
    } else {
        server.write_all(text.as_bytes()).await.ok()?;
    }
    copy_bidirectional(&mut stream, &mut server).await.ok().map(drop)
}

fn through(proxy: &str, bypassed: &str) -> StorePolicy {
    StorePolicy {
        proxy: Some(DownloadProxy::new(proxy, bypassed).unwrap()),
        allowed_addresses: vec!["localhost".parse().unwrap()],
        ..policy()
    }
}

/// The problem of the first attempt.
async fn first_problem(policy: StorePolicy, url: &str) -> String {
    let fixture = StoreFixture::with(policy);
    let request = ArtifactRequest::parse(url, None).unwrap();
    let (sender, mut progress) = watch::channel(FetchProgress::default());
    tokio::select! {
        result = fixture.store.ensure(&request, &sender) => panic!("{result:?}"),
        progress = progress.wait_for(|progress| progress.phase == FetchPhase::Retrying) => {
            progress.unwrap().last_error.clone().unwrap().to_string()
        }
    }
}

#[tokio::test]
async fn https_goes_through_a_tunnel_and_only_the_proxy_is_resolved() {
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let proxy = HttpProxy::start(Some(&tls::serve(&ca, "models.invalid"))).await;
    let url = format!("http://ann:secret@localhost:{}", proxy.port);
    let trusting = StorePolicy { ca_file: Some(ca), ..through(&url, "") };
    let fetched = StoreFixture::with(trusting).fetch("https://models.invalid/m", None).await;
    assert_eq!(fetched.unwrap().bytes, 5);
    assert_eq!(proxy.lines(), ["CONNECT models.invalid:443 HTTP/1.1"]);
    let headers = proxy.seen.lock().unwrap()[0].headers.clone();
    let login = "proxy-authorization: basic yw5uonnly3jlda==";
    assert!(headers.iter().any(|line| line == login), "{headers:?}");
}

#[tokio::test]
async fn http_is_sent_to_the_proxy_unless_the_host_is_excluded() {
    let server = Server::serve_file("model").await;
    let proxy = HttpProxy::start(Some(&server.url)).await;
    let url = format!("localhost:{}", proxy.port);
    let fixture = StoreFixture::with(through(&url, "127.0.0.0/8"));
    assert_eq!(fixture.fetch("http://models.invalid/m", None).await.unwrap().bytes, 5);
    assert_eq!(proxy.lines(), ["GET http://models.invalid/m HTTP/1.1"]);

    let direct = StorePolicy {
        allowed_addresses: policy().allowed_addresses,
        ..through(&url, "127.0.0.0/8")
    };
    let direct = StoreFixture::with(direct).fetch(&format!("{}/m", server.url), None).await;
    assert_eq!(direct.unwrap().bytes, 5);
    assert_eq!((proxy.lines().len(), server.requests()), (1, 2));
}

#[tokio::test]
async fn addresses_of_the_proxy_and_in_urls_are_checked() {
    let proxy = HttpProxy::start(None).await;
    for (host, allowed, url, refused) in [
        ("localhost", None, "http://models.invalid/m", "localhost"),
        ("127.0.0.1", None, "http://models.invalid/m", "127.0.0.1"),
        ("localhost", Some("localhost"), "https://169.254.169.254/m", "169.254.169.254"),
        ("localhost", Some("localhost"), "http://[::ffff:a9fe:a9fe]/m", "::ffff:a9fe:a9fe"),
    ] {
        let allowed_addresses = allowed.iter().map(|host| host.parse().unwrap()).collect();
        let url_of_proxy = format!("http://ann:secret@{host}:{}", proxy.port);
        let policy = StorePolicy { allowed_addresses, ..through(&url_of_proxy, "") };
        let error = StoreFixture::with(policy).fetch(url, None).await.unwrap_err();
        assert!(
            matches!(&*error, ModelError::AddressRefused { host, .. } if host == refused),
            "{url} through {host}: {error}"
        );
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    assert_eq!(proxy.lines(), Vec::<String>::new());
}

#[tokio::test]
async fn refused_login_is_reported_without_the_password() {
    let proxy = HttpProxy::start(None).await;
    let url = format!("http://ann:secret@localhost:{}", proxy.port);
    for target in ["http://models.invalid/m", "https://models.invalid/m"] {
        let problem = first_problem(through(&url, ""), target).await;
        let shown = format!("proxy http://localhost:{}/: ", proxy.port);
        assert!(problem.contains(&shown) && !problem.contains("secret"), "{problem}");
        assert!(problem.contains("authori") || problem.contains("407"), "{problem}");
    }
    assert_eq!(proxy.lines().len(), 2);
}

#[tokio::test]
async fn proxy_that_is_down_is_named_without_the_password() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let url = format!("http://ann:secret@localhost:{port}");
    let policy = StorePolicy { stall_timeout: Duration::from_secs(5), ..through(&url, "") };
    let problem = first_problem(policy, "https://models.invalid/m").await;
    assert!(problem.contains(&format!("proxy http://localhost:{port}/: ")), "{problem}");
    assert!(problem.contains("refused") && !problem.contains("secret"), "{problem}");
}
