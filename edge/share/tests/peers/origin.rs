//! An origin behind an uplink with a limited rate, which all connections share.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use neptune_share::peers::limits::BURST;
use neptune_transfer::{Digest, rate::RateBucket};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const PIECE: usize = 16 * 1024;

pub struct Origin {
    pub digest: Digest,
    pub bytes: u64,
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    /// When the last byte of a whole transfer was sent.
    ended: Arc<Mutex<Option<Instant>>>,
    task: JoinHandle<()>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Origin {
    /// Sends `content` from the offset that a client sends, at `rate` bytes per second.
    pub async fn start(content: impl Into<Bytes>, rate: u64) -> Arc<Self> {
        let content = content.into();
        let (digest, bytes) = (Digest::of_bytes(&content), content.len() as u64);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let sent = Arc::<AtomicU64>::default();
        let uplink = Arc::new(Mutex::new(RateBucket::new(rate, BURST, Instant::now())));
        let counter = Arc::clone(&sent);
        let ended = Arc::<Mutex<Option<Instant>>>::default();
        let end = Arc::clone(&ended);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (content, uplink, sent) =
                    (content.clone(), Arc::clone(&uplink), Arc::clone(&counter));
                let end = Arc::clone(&end);
                tokio::spawn(async move {
                    let offset = usize::try_from(stream.read_u64().await?).unwrap();
                    for piece in content[offset..].chunks(PIECE) {
                        let bytes = piece.len() as u64;
                        let wait = uplink.lock().unwrap().take(bytes, Instant::now());
                        tokio::time::sleep(wait).await;
                        stream.write_all(piece).await?;
                        sent.fetch_add(bytes, Ordering::Relaxed);
                    }
                    *end.lock().unwrap() = Some(Instant::now());
                    io::Result::Ok(())
                });
            }
        });
        Arc::new(Self { digest, bytes, address, sent, ended, task })
    }

    pub async fn connect(&self, offset: u64) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_u64(offset).await?;
        Ok(stream)
    }

    /// Seconds that the last transfer took, which began at `start`. On a busy machine it is longer
    /// than at that rate.
    pub fn seconds(&self, start: Instant) -> f64 {
        self.ended.lock().unwrap().unwrap().duration_since(start).as_secs_f64()
    }

    /// Bytes that were sent, as a multiple of the content.
    pub fn sent_ratio(&self) -> f64 {
        self.sent.load(Ordering::Relaxed) as f64 / self.bytes as f64
    }
}

/// Incompressible bytes, the same for the same seed.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut noise);
    noise
}
