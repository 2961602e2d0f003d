//! What a server allows: members only, four uploads, two of each member, and its rate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::HeaderMap;
use neptune_pinned_tls::TlsKey;
use neptune_share::peers::{
    FetchOutcome, Peer, Roster,
    client::{
        connection::{PeerConnection, PeerError},
        download::{DownloadError, download},
        partial::PeerPartial,
        pool::availability,
    },
    fetch_state::Availability,
    protocol::Route,
};
use neptune_transfer::Digest;
use tokio::{io::AsyncReadExt as _, net::TcpStream};

use crate::{
    origin::noise,
    site::{Member, introduce, site},
};

async fn head(connection: &mut PeerConnection, digest: Digest) -> Result<Availability, PeerError> {
    let response = connection.send(Route::Head(digest), HeaderMap::new()).await?;
    availability(response.status(), response.headers())
}

#[tokio::test]
async fn key_outside_the_roster_is_refused_by_both_sides() {
    let members = site(2);
    let digest = Digest::of_bytes(b"x");
    members[0].hold(digest, b"x");
    let unknown = TlsKey::generate();
    // The handshake of TLS 1.3 ends for the client before the server knows its key.
    let answer =
        async { head(&mut PeerConnection::open(&unknown, &members[0].peer).await?, digest).await };
    assert!(answer.await.is_err());

    let other = Peer { pin: unknown.pin().clone(), ..members[0].peer.clone() };
    let error = PeerConnection::open(&members[1].key, &other).await.err().unwrap();
    assert!(matches!(error, PeerError::Connect { .. }), "{error}");
}

#[tokio::test]
async fn member_that_leaves_the_roster_loses_its_connection() {
    let members = site(2);
    let digest = Digest::of_bytes(b"x");
    members[0].hold(digest, b"x");
    let mut connection = PeerConnection::open(&members[1].key, &members[0].peer).await.unwrap();
    assert_eq!(head(&mut connection, digest).await.unwrap(), Availability::Held);
    members[0].roster.send_replace(Roster::default());
    assert!(head(&mut connection, digest).await.is_err());
    assert!(
        members[1].fetch(digest).await.outcome
            == FetchOutcome::UseOrigin(neptune_share::peers::OriginReason::IsOwner)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifth_upload_is_refused_until_one_ends() {
    let content = noise(1_000_000, 1);
    let digest = Digest::of_bytes(&content);
    let holder = Arc::new(Member::start("holder", 1_000_000));
    let readers: Vec<_> = (0..5).map(|it| Arc::new(Member::start(&format!("r{it}"), 1))).collect();
    let all: Vec<_> = readers.iter().chain([&holder]).cloned().collect();
    introduce(&all);
    holder.hold(digest, &content);
    let start = Instant::now();
    let tasks = readers.iter().map(|reader| {
        let (key, peer) = (reader.key.clone(), holder.peer.clone());
        let (partial, node) = (reader.partial(&digest), holder.node.clone());
        tokio::spawn(async move {
            let mut connection = PeerConnection::open(&key, &peer).await.unwrap();
            let mut partial = PeerPartial::open(&partial).await.unwrap();
            download(&mut connection, &node, &digest, &mut partial, 1 << 30).await
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let (mut busy, mut done) = (0, 0);
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => done += 1,
            Err(DownloadError::Peer(PeerError::Busy)) => busy += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((done, busy), (4, 1));
    // 4 MB at 1 MB/s, less the burst.
    let seconds = start.elapsed().as_secs_f64();
    assert!((3.6..5.0).contains(&seconds), "{seconds}");
    let result = readers[0].fetch(digest).await;
    assert_eq!(result.outcome, FetchOutcome::Stored(holder.node.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_lose_their_connection_and_their_upload() {
    let members = site(2);
    let content = noise(20_000_000, 1);
    let digest = Digest::of_bytes(&content);
    members[0].hold(digest, &content);
    let address = members[0].peer.addresses[0];
    let start = Instant::now();
    // No handshake.
    let mut silent = TcpStream::connect(address).await.unwrap();
    let silent = tokio::spawn(async move { silent.read(&mut [0; 16]).await });
    // Two clients that request everything and read nothing.
    let mut stuck = Vec::new();
    for _ in 0..2 {
        stuck.push(stuck_reader(&members[1], &members[0].peer, digest).await);
    }
    let mut connection = PeerConnection::open(&members[1].key, &members[0].peer).await.unwrap();
    let mut partial = PeerPartial::open(&members[1].partial(&digest)).await.unwrap();
    let node = &members[0].node;
    let busy = download(&mut connection, node, &digest, &mut partial, 1 << 30).await;
    assert!(matches!(busy, Err(DownloadError::Peer(PeerError::Busy))), "{busy:?}");
    assert_eq!(silent.await.unwrap().unwrap_or(0), 0);
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());

    let result = members[1].fetch(digest).await;
    assert_eq!(result.outcome, FetchOutcome::Stored(members[0].node.clone()));
    // The limit is 10 s without a byte. A busy machine takes longer, and an upload without a limit
    // never ends.
    let seconds = start.elapsed().as_secs_f64();
    assert!((9.0..40.0).contains(&seconds), "{seconds}");
    drop(stuck);
}

/// A client that requests a content and does not read the body.
pub async fn stuck_reader(
    member: &Member,
    peer: &Peer,
    digest: Digest,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    use tokio::io::AsyncWriteExt as _;
    let config = neptune_pinned_tls::client_config(&member.key, peer.pin.clone());
    let stream = TcpStream::connect(peer.addresses[0]).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = rustls::pki_types::ServerName::try_from("neptune").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let request = format!("GET /v1/content/{digest} HTTP/1.1\r\nhost: neptune\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    // The head of the response, so that the upload has begun.
    stream.read_u8().await.unwrap();
    stream
}
