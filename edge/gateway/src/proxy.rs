//! The `proxy` command: passes each HTTP request to the program whose address is in a file, so that
//! an agent replaces that program without a failed request.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hyper::{Request, StatusCode, Uri, body::Incoming};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use neptune_program::listen::Refusals;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::{
    error::Error,
    server::{Answer, CountedAs, Limits, Listener, Wire, boxed, json as json_answer, serve},
    upstream::forwarded,
};

/// A busy program accepts a connection with the second or third attempt of the kernel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Clients that keep idle connections close them before.
const LIMITS: Limits =
    Limits { head: Duration::from_secs(90), drain: Duration::from_secs(10), connections: 4096 };

/// A proxy that serves.
#[derive(Debug)]
pub struct RunningProxy {
    /// Address on which clients connect. The port is known here if the option has 0.
    pub address: SocketAddr,
    server: JoinHandle<()>,
}

impl RunningProxy {
    /// Waits until the requests in flight at the shutdown are answered.
    pub async fn ended(self) {
        if let Err(problem) = self.server.await {
            warn!(%problem, "the proxy failed");
        }
    }
}

/// The program behind the proxy. Connections are not reused: the program may close an idle one
/// while a request is sent.
#[derive(Debug)]
struct Target {
    client: Client<HttpConnector, Incoming>,
    file: PathBuf,
    /// The address as it was last read; empty before the first request.
    address: Mutex<String>,
}

/// Serves until `stop` ends. The file has the `host:port` of the program. It is read with each
/// request; while it cannot be read, the last address is used.
///
/// # Errors
/// The address is taken, or not one of this machine.
pub fn start(
    listen: SocketAddr,
    target_file: &Path,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<RunningProxy, Error> {
    let listener = Listener::bind(listen).map_err(|source| Error::Listen {
        field: "--listen",
        address: listen,
        source,
    })?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let target =
        Arc::new(Target { client, file: target_file.to_owned(), address: Mutex::default() });
    let address = listener.address;
    info!("the proxy answers on {address}");
    let handle = move |request| pass(Arc::clone(&target), request);
    let server = tokio::spawn(async move {
        // The proxy has no page for metrics; refused connections are in its log.
        let counted = CountedAs { server: "proxy", refusals: &Refusals::default() };
        serve(listener, (Wire::Rest, None), LIMITS, counted, stop, handle).await;
    });
    Ok(RunningProxy { address, server })
}

async fn pass(target: Arc<Target>, mut request: Request<Incoming>) -> Answer {
    let address = target.read_address();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = format!("http://{address}{path}").parse::<Uri>() else {
        return unavailable(&address, "no address");
    };
    *request.uri_mut() = uri;
    *request.headers_mut() = forwarded(request.headers());
    match target.client.request(request).await {
        Ok(answer) => {
            let mut answer = answer.map(boxed);
            *answer.headers_mut() = forwarded(answer.headers());
            answer
        }
        Err(error) => unavailable(&address, &error.to_string()),
    }
}

fn unavailable(address: &str, why: &str) -> Answer {
    let message = format!("the program at {address} does not answer ({why})");
    json_answer(StatusCode::SERVICE_UNAVAILABLE, json!({"error": message}).to_string())
}

impl Target {
    fn read_address(&self) -> String {
        let mut address = self.address.lock();
        if let Ok(text) = fs::read_to_string(&self.file) {
            text.trim().clone_into(&mut address);
        }
        address.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        sync::oneshot,
    };

    use super::*;

    /// A program that answers each request with its name and the body, and then ends the connection.
    async fn program(name: &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"body") {
                        if stream.read_buf(&mut request).await.unwrap_or_default() == 0 {
                            return;
                        }
                    }
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", name.len());
                    let _ = stream.write_all(format!("{head}{name}").as_bytes()).await;
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream) -> String {
        let request = "POST /v1/x?y=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let is_whole = |answer: &[u8]| {
            let text = String::from_utf8_lossy(answer).into_owned();
            text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                head.to_lowercase().contains(&format!("content-length: {}", body.len()))
            })
        };
        while !is_whole(&answer) {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "the proxy hung up");
        }
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn open_connection_follows_the_file_without_a_failed_request() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("target");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let proxy = start("127.0.0.1:0".parse().unwrap(), &file, stopped).unwrap();
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        assert!(ask(&mut client).await.starts_with("HTTP/1.1 503"));

        let programs = [program("one").await, program("two").await];
        let write = |address: SocketAddr| {
            fs::write(dir.path().join("new"), format!("{address}\n")).unwrap();
            fs::rename(dir.path().join("new"), &file).unwrap();
        };
        write(programs[0]);
        let is_done = Arc::new(AtomicBool::new(false));
        let load = tokio::spawn({
            let is_done = Arc::clone(&is_done);
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            async move {
                let (mut answers, mut all) = (Vec::new(), 0);
                while !is_done.load(Ordering::Relaxed) || all < 100 {
                    let answer = ask(&mut stream).await;
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    answers.push(answer[answer.len() - 3..].to_owned());
                    all += 1;
                }
                answers.dedup();
                answers
            }
        });
        while !ask(&mut client).await.ends_with("one") {}
        write(programs[1]);
        while !ask(&mut client).await.ends_with("two") {}
        fs::remove_file(&file).unwrap();
        assert!(ask(&mut client).await.ends_with("two"), "the last address stays");
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(load.await.unwrap(), ["one", "two"]);
        stop.send(()).unwrap();
        drop(client);
        proxy.ended().await;
    }
}
