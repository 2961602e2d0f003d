//! Downloads from a server that cuts connections, and from one that sends something else.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use neptune_content::{
    Digest,
    download::{Download, DownloadError, Length, download},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

#[expect(clippy::disallowed_methods, reason = "the test connects to its own server")]
fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().build().unwrap()
}

/// Serves this content, at most `cut` bytes of it per connection. Returns its URL and the number of
/// bytes that it sent.
async fn serve(content: Vec<u8>, cut: usize, has_ranges: bool) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/x", listener.local_addr().unwrap());
    let sent = Arc::<AtomicU64>::default();
    let all_sent = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let request = String::from_utf8(request).unwrap().to_lowercase();
            let from = request.split("range: bytes=").nth(1).filter(|_| has_ranges);
            let from = from.map(|rest| rest.split('-').next().unwrap().parse::<usize>().unwrap());
            let (length, start) = (content.len(), from.unwrap_or(0));
            let head = match from {
                Some(_) => format!(
                    "HTTP/1.1 206 Partial\r\ncontent-range: bytes {start}-{}/{length}\r\n",
                    length - 1
                ),
                None => "HTTP/1.1 200 OK\r\n".to_owned(),
            };
            let head =
                format!("{head}content-length: {}\r\nconnection: close\r\n\r\n", length - start);
            stream.write_all(head.as_bytes()).await.unwrap();
            let end = length.min(start.saturating_add(cut));
            all_sent.fetch_add((end - start) as u64, Ordering::Relaxed);
            let _ = stream.write_all(&content[start..end]).await;
            let _ = stream.shutdown().await;
        }
    });
    (url, sent)
}

fn a_download(url: &str, content: &[u8], directory: &Path) -> Download {
    Download {
        url: url.to_owned(),
        content: Digest::of_bytes(content),
        length: Length::Exactly(content.len() as u64),
        path: directory.join("content"),
    }
}

/// Downloads until an attempt succeeds. Returns the number of attempts.
async fn attempts(wanted: &Download) -> usize {
    for attempt in 1..1000 {
        match download(&client(), wanted).await {
            Ok(()) => return attempt,
            Err(DownloadError::Http(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it does not end");
}

#[tokio::test]
async fn interrupted_download_continues_and_sends_nothing_twice() {
    let directory = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let (url, sent) = serve(content.clone(), 300_000, true).await;
    let wanted = a_download(&url, &content, directory.path());
    assert_eq!(attempts(&wanted).await, 14);
    assert_eq!(std::fs::read(&wanted.path).unwrap(), content);
    assert_eq!(sent.load(Ordering::Relaxed), content.len() as u64);
    // It is there: nothing is sent.
    download(&client(), &wanted).await.unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), content.len() as u64);
}

#[tokio::test]
async fn server_without_ranges_sends_all_again() {
    let directory = tempfile::tempdir().unwrap();
    let content = vec![7; 100_000];
    let (url, _) = serve(content.clone(), usize::MAX, false).await;
    let wanted = a_download(&url, &content, directory.path());
    std::fs::write(directory.path().join("content.partial"), vec![8; 50_000]).unwrap();
    assert_eq!(attempts(&wanted).await, 1);
    assert_eq!(std::fs::read(&wanted.path).unwrap(), content);
}

#[tokio::test]
async fn other_content_is_refused_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let content = vec![7; 100_000];
    for (served, is_digest) in [(vec![8; 100_000], true), (vec![7; 100_001], false)] {
        let (url, _) = serve(served, usize::MAX, true).await;
        let wanted = a_download(&url, &content, directory.path());
        let error = download(&client(), &wanted).await.unwrap_err();
        match error {
            DownloadError::Digest { .. } => assert!(is_digest),
            DownloadError::Length { .. } => assert!(!is_digest),
            other => panic!("{other}"),
        }
        assert!(!wanted.path.exists());
    }
    // A damaged file is replaced.
    let (url, _) = serve(content.clone(), usize::MAX, true).await;
    let wanted = a_download(&url, &content, directory.path());
    std::fs::write(&wanted.path, "damaged").unwrap();
    assert_eq!(attempts(&wanted).await, 1);
    assert_eq!(std::fs::read(&wanted.path).unwrap(), content);
}

#[tokio::test]
async fn content_of_unknown_length_is_received_up_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let content = vec![7; 100_000];
    let (url, sent) = serve(content.clone(), 60_000, true).await;
    let wanted = a_download(&url, &content, directory.path());
    let wanted = Download { length: Length::AtMost(100_000), ..wanted };
    assert_eq!(attempts(&wanted).await, 2);
    assert_eq!(std::fs::read(&wanted.path).unwrap(), content);
    assert_eq!(sent.load(Ordering::Relaxed), 100_000);
    // A kill came before the complete file got its name.
    std::fs::rename(&wanted.path, directory.path().join("content.partial")).unwrap();
    download(&client(), &wanted).await.unwrap();
    assert_eq!(sent.load(Ordering::Relaxed), 100_000, "nothing is sent again");
    std::fs::remove_file(&wanted.path).unwrap();
    let small = Download { length: Length::AtMost(99_999), ..wanted };
    let error = download(&client(), &small).await.unwrap_err();
    assert!(matches!(error, DownloadError::TooLarge { limit: 99_999 }), "{error}");
    assert_eq!(std::fs::metadata(directory.path().join("content.partial")).unwrap().len(), 0);
}
