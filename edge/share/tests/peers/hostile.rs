//! Peers that answer wrongly on purpose. They have a key of the roster.

use std::{sync::Arc, time::Instant};

use neptune_pinned_tls::{TlsKey, server_config};
use neptune_share::peers::{FetchOutcome, OriginReason, Peer, Roster};
use neptune_transfer::Digest;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

use crate::{origin::noise, site::Member};

/// Answers `HEAD` as a holder, and `GET` with these bytes, repeated if `is_endless`.
async fn hostile(answer: String, body: Vec<u8>, is_endless: bool) -> Peer {
    let key = TlsKey::generate();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![listener.local_addr().unwrap()];
    let pin = key.pin().clone();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(server_config(&key)));
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer, body) = (acceptor.clone(), answer.clone(), body.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.ok()?);
                }
                if head.starts_with(b"HEAD") {
                    let answer =
                        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1000\r\n\r\n";
                    stream.write_all(answer).await.ok()?;
                } else {
                    stream.write_all(answer.as_bytes()).await.ok()?;
                    loop {
                        stream.write_all(&body).await.ok()?;
                        if !is_endless {
                            break;
                        }
                    }
                }
                stream.flush().await.ok()?;
                std::future::pending::<Option<()>>().await
            });
        }
    });
    Peer { node: "hostile".parse().unwrap(), addresses, pin }
}

/// Fetches a content that only the hostile peer claims to have. Returns the seconds, and whether the
/// peer is known to be wrong.
async fn fetch(answer: &str, body: Vec<u8>, is_endless: bool) -> (f64, bool) {
    let peer = hostile(answer.to_owned(), body, is_endless).await;
    let reader = Member::start("reader", 1);
    reader.roster.send_replace(Roster::new(&reader.node, [peer]));
    let digest = Digest::of_bytes(b"content");
    let start = Instant::now();
    let request = neptune_share::peers::FetchRequest {
        digest,
        partial: &reader.partial(&digest),
        target: &reader.path(&digest),
        limit: 1_000_000,
    };
    let result = reader.fetcher.fetch(request).await.unwrap();
    assert_eq!(result.outcome, FetchOutcome::UseOrigin(OriginReason::NoPeers), "{answer}");
    assert!(!reader.path(&digest).exists());
    assert!(result.received <= 1_000_000, "{answer}: {}", result.received);
    (start.elapsed().as_secs_f64(), !result.wrong.is_empty())
}

#[tokio::test]
async fn unusable_answers_end_at_the_origin() {
    for (answer, body, is_wrong) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", noise(1000, 1), true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", Vec::new(), true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9000000000\r\n\r\n", noise(1000, 1), false),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"5\r\nhello\r\n".into(), false),
        ("HTTP/1.1 206 OK\r\ncontent-length: 5\r\n\r\n", b"hello".into(), false),
        ("HTTP/1.1 500 NO\r\ncontent-length: 0\r\n\r\n", Vec::new(), false),
        (
            "HTTP/1.1 302 OK\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n",
            Vec::new(),
            false,
        ),
        ("nonsense\r\n\r\n", Vec::new(), false),
    ] {
        let (seconds, wrong) = fetch(answer, body, false).await;
        assert!(wrong == is_wrong && seconds < 8.0, "{answer}: {wrong} {seconds}");
    }
}

#[tokio::test]
async fn endless_body_ends_at_its_length() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\n";
    let (_, is_wrong) = fetch(answer, noise(64 * 1024, 1), true).await;
    assert!(is_wrong);
    let answer = "HTTP/1.1 200 OK\r\n\r\n";
    let (_, is_wrong) = fetch(answer, noise(64 * 1024, 1), true).await;
    assert!(!is_wrong, "nothing of a body without a length is used");
}

#[tokio::test]
async fn peer_that_stops_sending_is_left_after_ten_seconds() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\n";
    let (seconds, _) = fetch(answer, noise(1000, 1), false).await;
    assert!((9.0..13.0).contains(&seconds), "{seconds}");
}
