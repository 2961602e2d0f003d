//! What another client of a server notices while clients attack it that the server does not know.
//! One judge for all servers, so that one table compares them.
//!
//! The tests attack for half a second. `hack/test-attacks.sh` sets `NEPTUNE_ATTACKS=full`, attacks
//! for 30 seconds, and bounds the time of a request. Attackers and client share one address, so the
//! attackers keep fewer connections than the server has places for unknown clients: above that the
//! newest is refused, and only clients of other addresses have a reserve. Attackers of another
//! address keep far more ([`Elsewhere`]).

use std::{
    env,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{Attack, Attackers, attack::Elsewhere};

/// Between two requests of the client that behaves.
const PACE: Duration = Duration::from_millis(5);
/// The least number of requests in a measurement.
const LEAST: usize = 20;
/// Connections that attackers of another address keep open.
const HELD_ELSEWHERE: usize = 1500;
/// After it a request counts as lost, and the first connections of an attack as refused.
const LIMIT: Duration = Duration::from_secs(5);

/// How long the attacks last, and what a client may notice.
#[derive(Debug, Clone, Copy)]
struct Strength {
    lasts: Duration,
    /// The longest 99th percentile that is always right; above it, twice that without an attack.
    latency: Duration,
}

impl Strength {
    fn of_environment() -> Self {
        if env::var("NEPTUNE_ATTACKS").is_ok_and(|it| it == "full") {
            Self { lasts: Duration::from_secs(30), latency: Duration::from_millis(100) }
        } else {
            // Beside other tests, on few cores.
            Self { lasts: Duration::from_millis(500), latency: LIMIT }
        }
    }
}

/// Judges a server: with each attack on its address, by clients that keep `held` connections, no
/// request of another client is lost, and the 99th percentile of the requests' times is at most
/// twice that without an attack, or 100 ms. `request` is a request of that client, and whether it
/// was answered as it should.
///
/// # Panics
/// If an attack has a greater effect.
pub async fn judge<F: Future<Output = bool>>(
    server: &str,
    (address, held): (SocketAddr, usize),
    attacks: &[Attack],
    request: impl Fn() -> F,
) {
    let strength = Strength::of_environment();
    let quiet = measure(strength.lasts / 5, &request).await;
    assert_eq!(quiet.lost, 0, "{server}: requests without an attack");
    let bound = strength.latency.max(2 * quiet.p99);
    let here = attacks.iter().map(|attack| (attack, None, held));
    let elsewhere = Elsewhere::of_environment();
    let there = elsewhere.iter().map(|it| (&Attack::Silent, Some(it), HELD_ELSEWHERE));
    for (attack, elsewhere, held) in here.chain(there) {
        let begun = Instant::now();
        let attackers = match elsewhere {
            None => Attackers::start(attack, address, held),
            Some(elsewhere) => Attackers::start_elsewhere(elsewhere, attack, address, held),
        };
        while attackers.opened() < held.max(1) && begun.elapsed() < LIMIT {
            tokio::time::sleep(PACE).await;
        }
        assert!(attackers.opened() > 0, "{server}: no connection of {attack:?} {elsewhere:?}");
        let seen = measure(strength.lasts, &request).await;
        let rate = 1000 * attackers.opened() as u128 / begun.elapsed().as_millis().max(1);
        drop(attackers);
        println!(
            "{server:<20} {:<24} {rate:>6}/s   {:>5} requests, {} lost   \
             p99 {:>6.1} ms, quiet {:>5.1} ms",
            format!("{}{}", attack.name(), if elsewhere.is_some() { ", elsewhere" } else { "" }),
            seen.requests,
            seen.lost,
            milliseconds(seen.p99),
            milliseconds(quiet.p99),
        );
        assert_eq!(seen.lost, 0, "{server}: requests beside {attack:?} {elsewhere:?}");
        assert!(seen.p99 <= bound, "{server}: {:?} beside {attack:?}, of {bound:?}", seen.p99);
    }
}

/// A GET over a new connection, as of a probe. Whether the answer is a 200.
pub async fn get(address: SocketAddr, path: &str) -> bool {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let answer = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map(|_| answer)
    };
    answer.await.is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200 "))
}

struct Measured {
    requests: usize,
    lost: usize,
    p99: Duration,
}

async fn measure<F: Future<Output = bool>>(lasts: Duration, request: &impl Fn() -> F) -> Measured {
    let (begun, mut lost, mut times) = (Instant::now(), 0, Vec::new());
    while begun.elapsed() < lasts || times.len() < LEAST {
        let sent = Instant::now();
        lost += usize::from(!timeout(LIMIT, request()).await.unwrap_or(false));
        times.push(sent.elapsed());
        tokio::time::sleep(PACE).await;
    }
    times.sort_unstable();
    Measured { requests: times.len(), lost, p99: times[(times.len() - 1) * 99 / 100] }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
