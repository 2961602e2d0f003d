//! Contents: ranges of published weights, and first weights from a server.

use std::sync::{Arc, Mutex};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use neptune_content::Digest;
use neptune_pinned_tls::TlsKey;
use neptune_wire::aggregator::{InitialWeights, RunPhase};

use crate::{
    clients::{Server, keys},
    fixtures::{npz, place, request},
};

#[tokio::test]
async fn published_content_is_read_in_parts() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let mut request = request(1, 1);
    let sha256 = Digest::of_bytes(&bytes).to_string();
    request.keep = vec![sha256.to_uppercase()];
    // A content is kept only if the run names it first.
    server.controller().put_run(&request).await;
    place(&server.aggregator, &bytes);
    let path = format!("/v1/content/{sha256}");
    let (url, tag) = (server.plain(&path), format!("\"{sha256}\""));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let whole = client.get(&url).send().await.unwrap();
    assert_eq!(whole.headers()["etag"], tag);
    assert_eq!(whole.headers()["accept-ranges"], "bytes");
    assert_eq!(whole.bytes().await.unwrap(), bytes);
    let part = client.get(&url).header("range", "bytes=990-").header("if-range", &tag);
    let part = part.send().await.unwrap();
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.headers()["content-range"], "bytes 990-999/1000");
    assert_eq!(part.headers()["content-length"], "10");
    assert_eq!(part.bytes().await.unwrap(), bytes[990..]);
    let changed = client.get(&url).header("range", "bytes=990-").header("if-range", "\"x\"");
    assert_eq!(changed.send().await.unwrap().bytes().await.unwrap().len(), 1000);
    let behind = client.get(&url).header("range", "bytes=1000-").send().await.unwrap();
    assert_eq!(behind.status(), StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(behind.headers()["content-range"], "bytes */1000");
    let head = client.head(&url).send().await.unwrap();
    assert_eq!(
        (head.status(), &head.headers()["content-length"]),
        (StatusCode::OK, &"1000".parse().unwrap())
    );
    let over_tls = server.controller().get_with(&path, &[("range", "bytes=0-0")]).await;
    assert_eq!(over_tls.bytes().await.unwrap(), bytes[..1]);
    request.keep.clear();
    server.controller().put_run(&request).await;
    assert_eq!(client.get(&url).send().await.unwrap().status(), StatusCode::NOT_FOUND);
    assert!(server.aggregator.content(&sha256).is_none(), "nothing needs it any more");
}

#[tokio::test]
async fn first_weights_are_downloaded_once_they_have_their_digest() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let good = npz(&[vec![0.1; 2048], vec![0.2; 32], vec![0.3; 320], vec![0.4; 10]]);
    // From the end: another file, one that is too large, and the right one. A wrong one is served until
    // its state was seen, the right one once.
    let files = Arc::new(Mutex::new(vec![good.clone(), vec![1; 2 << 20], b"other".to_vec()]));
    let serve = async |State(files): State<Arc<Mutex<Vec<Vec<u8>>>>>| {
        let mut files = files.lock().unwrap();
        if files.len() > 1 { files.last().cloned() } else { files.pop() }
    };
    let serve = async move |state| match serve(state).await {
        Some(bytes) => (StatusCode::OK, bytes),
        None => (StatusCode::NOT_FOUND, Vec::new()),
    };
    let router = Router::new().route("/init.npz", get(serve)).with_state(Arc::clone(&files));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let mut request = request(1, 1);
    keys(&mut request, 1);
    let sha256 = Digest::of_bytes(&good).to_string();
    let url = Some(format!("http://user:secret@{address}/init.npz"));
    request.settings.initial = Some(InitialWeights { url, sha256: sha256.clone() });
    let controller = server.controller();
    controller.put_run(&request).await;
    for text in ["SHA-256 is", "larger than the 1048576 bytes of maxUpdateBytes"] {
        let status = controller.wait_for(|it| it.message.contains(text)).await;
        assert_eq!(status.phase, RunPhase::Preparing);
        assert_eq!(status.reason.as_deref(), Some("DownloadFailed"));
        assert!(!status.message.contains("secret"), "{}", status.message);
        files.lock().unwrap().pop();
    }
    let status = controller.wait_for_round(1).await;
    assert_eq!(status.base.unwrap().sha256, sha256);
    assert_eq!(status.reason, None);
}

#[tokio::test]
async fn first_weights_that_are_no_weights_end_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let nan = npz(&[vec![f32::NAN; 2048], vec![0.2; 32], vec![0.3; 320], vec![0.4; 10]]);
    let files =
        [(&b"text"[..], "neither a safetensors file nor"), (&nan, "they contain NaN in \"w1\"")];
    for (run, (bytes, text)) in (1..).zip(files) {
        let mut request = request(1, 1);
        let sha256 = Digest::of_bytes(bytes).to_string();
        request.run = run;
        request.suspended = true;
        request.settings.initial = Some(InitialWeights { url: None, sha256 });
        let controller = server.controller();
        controller.put_run(&request).await;
        place(&server.aggregator, bytes);
        request.suspended = false;
        controller.put_run(&request).await;
        let status = controller.wait_for(|it| it.phase == RunPhase::Failed && it.run == run).await;
        assert!(status.message.contains(text), "{}", status.message);
    }
}
