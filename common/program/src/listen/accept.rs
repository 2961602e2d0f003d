//! The loop: accepts connections, asks the gate, and runs each connection in a task of its own.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    pin::pin,
    time::Duration,
};

use neptune_backoff::Backoff;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream},
    task::{JoinError, JoinSet, yield_now},
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    gate::{Entry, Gate, refused_since},
    source::Peer,
};

/// Connections that the kernel keeps until the loop takes them.
const BACKLOG: u32 = 4096;
/// Delay after an error of the listener, such as too many open files.
const RETRY: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// Turns that other tasks get before a connection is refused: those that ended leave their places.
const TURNS_BEFORE_REFUSAL: usize = 3;
/// Time between two lines of the log about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// A socket that accepts connections.
pub trait Accept: Send + Sync {
    /// The type of an accepted connection.
    type Stream: Send + 'static;

    /// Waits for a connection.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Peer)>> + Send;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        Self::accept(self).await.map(|(stream, address)| (stream, Peer::Address(address)))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        Self::accept(self).await.map(|(stream, _)| (stream, Peer::Local))
    }
}

/// Listens on an address, with room for a burst of connections.
///
/// # Errors
/// The address is in use, or does not belong to this machine.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts connections until `shutdown` ends, and returns those that are open then: dropping them
/// ends them.
///
/// `serve` handles a connection until its end. It calls [`Entry::admit`] as soon as the client has
/// shown what it is; a connection that is still pending when its time is up is dropped.
///
/// # Guarantees
/// - The listener is never left without a task that accepts, and no error of it ends the loop.
/// - While a limit is reached, the newest connection is closed at once and counted.
/// - A panic of `serve` ends its connection only.
pub async fn run<L, F>(
    listener: &L,
    gate: &Gate,
    shutdown: impl Future<Output = ()>,
    serve: impl Fn(L::Stream, Peer, Entry) -> F,
) -> JoinSet<()>
where
    L: Accept,
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut log = RefusalLog::new(gate);
    let mut failures = 0;
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => return connections,
            Some(ended) = connections.join_next() => {
                report_panic(gate, ended);
                continue;
            }
            () = log.tick() => continue,
            accepted = listener.accept() => accepted,
        };
        gate.on_turn();
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let delay = delay(gate, &error, failures);
                failures = failures.saturating_add(1);
                tokio::select! {
                    () = &mut shutdown => return connections,
                    () = sleep(delay) => continue,
                }
            }
        };
        failures = 0;
        if let Some((entry, time)) = enter(gate, peer).await {
            let served = serve(stream, peer, entry.clone());
            connections.spawn(connection(gate.clone(), entry, time, served));
        }
    }
}

/// The place of a new connection, or `None` if it is refused.
async fn enter(gate: &Gate, peer: Peer) -> Option<(Entry, Duration)> {
    let mut turns = 0;
    loop {
        match gate.enter(peer) {
            Ok(entered) => return Some(entered),
            Err(_) if turns < TURNS_BEFORE_REFUSAL => turns += 1,
            Err(cause) => {
                gate.refuse(cause);
                tracing::debug!(server = gate.server(), %peer, ?cause, "connection refused");
                return None;
            }
        }
        others_run().await;
    }
}

/// Waits until a task that begins now has run. Connections that are ready run before it or beside
/// it, also if the loop has a thread of its own, as below `block_on`, where `yield_now` returns at
/// once.
async fn others_run() {
    // Its task cannot panic, and ends with the runtime only.
    let _ = tokio::spawn(yield_now()).await;
}

async fn connection(gate: Gate, entry: Entry, time: Duration, served: impl Future<Output = ()>) {
    let mut served = pin!(served);
    tokio::select! {
        biased;
        () = &mut served => return,
        () = sleep(time) => {}
    }
    if entry.is_pending() {
        gate.refuse(super::Refusal::Unidentified);
        tracing::debug!(server = gate.server(), "connection closed: its client is silent");
        return;
    }
    served.await;
}

/// How long to wait after an error of the listener.
fn delay(gate: &Gate, error: &io::Error, failures: u32) -> Duration {
    // The client left before it was accepted.
    if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) {
        return Duration::ZERO;
    }
    let server = gate.server();
    if failures == 0 {
        tracing::warn!(server, %error, "cannot accept a connection; retrying");
    } else {
        tracing::debug!(server, %error, failures, "cannot accept a connection");
    }
    RETRY.step(failures)
}

fn report_panic(gate: &Gate, ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::warn!(server = gate.server(), %error, "a connection failed; others continue");
    }
}

/// Logs from time to time how many connections were refused.
struct RefusalLog {
    gate: Gate,
    ticks: tokio::time::Interval,
    logged: [u64; super::Refusal::ALL.len()],
}

impl RefusalLog {
    fn new(gate: &Gate) -> Self {
        let mut ticks = interval(LOG_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { gate: gate.clone(), ticks, logged: gate.counts() }
    }

    async fn tick(&mut self) {
        self.ticks.tick().await;
        let counts = self.gate.counts();
        if let Some(refused) = refused_since(&self.logged, &counts) {
            tracing::warn!(
                server = self.gate.server(),
                refused,
                "connections were refused; connections with a place are served"
            );
        }
        self.logged = counts;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        sync::oneshot,
        time::timeout,
    };

    use super::{
        super::{Identity, Limits, Refusal, Refusals},
        *,
    };

    const LIMITS: Limits = Limits {
        pending: 4,
        pending_per_address: 4,
        pending_reserve: 0,
        pending_time: Duration::from_millis(200),
        hurried_time: Duration::from_millis(100),
        anonymous: 2,
        anonymous_per_address: 2,
        known: 2,
        per_identity: 2,
    };

    /// A server that admits a client after its first byte, and sends everything back.
    async fn echo(mut stream: TcpStream, _: Peer, entry: Entry) {
        let mut byte = [0];
        while matches!(stream.read(&mut byte).await, Ok(1)) {
            assert_ne!(byte, [b'!'], "a panic of one connection");
            if entry.admit(Identity::Anonymous).is_err() || stream.write_all(&byte).await.is_err() {
                return;
            }
        }
    }

    fn start(limits: Limits) -> (SocketAddr, Gate, Refusals) {
        let refusals = Refusals::default();
        let gate = Gate::new("echo", limits, &refusals);
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let run = {
            let gate = gate.clone();
            async move { run(&listener, &gate, std::future::pending(), echo).await }
        };
        tokio::spawn(run);
        (address, gate, refusals)
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        stream.write_all(&[byte]).await.ok()?;
        let answer = timeout(Duration::from_secs(10), stream.read_u8()).await;
        answer.expect("an answer or an end").ok()
    }

    async fn connect(address: SocketAddr) -> TcpStream {
        TcpStream::connect(address).await.unwrap()
    }

    /// Waits until the connection is closed.
    async fn closed(mut stream: TcpStream) {
        let read = timeout(Duration::from_secs(10), stream.read(&mut [0])).await;
        assert_eq!(read.expect("the connection is closed").unwrap_or_default(), 0);
    }

    #[tokio::test]
    async fn silent_connections_end_in_time_and_keep_nobody_out() {
        let (address, gate, refusals) = start(LIMITS);
        let mut served = connect(address).await;
        assert_eq!(ask(&mut served, b'a').await, Some(b'a'));
        let mut silent = Vec::new();
        for _ in 0..LIMITS.pending {
            silent.push(connect(address).await);
        }
        while gate.pending() < LIMITS.pending {
            yield_now().await;
        }
        // The newest is refused, and none of those before.
        closed(connect(address).await).await;
        assert_eq!(refusals.total("echo", Refusal::PendingFull), 1);
        assert_eq!(ask(&mut served, b'b').await, Some(b'b'), "a place is no pending connection");
        for stream in silent {
            closed(stream).await;
        }
        assert_eq!(refusals.total("echo", Refusal::Unidentified), LIMITS.pending as u64);
        assert_eq!(ask(&mut connect(address).await, b'c').await, Some(b'c'));
    }

    #[tokio::test]
    async fn place_outlives_the_time_for_pending_connections() {
        let (address, _, _) = start(LIMITS);
        let mut served = connect(address).await;
        assert_eq!(ask(&mut served, b'a').await, Some(b'a'));
        closed(connect(address).await).await;
        assert_eq!(ask(&mut served, b'b').await, Some(b'b'));
    }

    #[tokio::test]
    async fn newest_is_refused_while_all_places_are_taken() {
        let (address, _, refusals) = start(LIMITS);
        let mut served = Vec::new();
        for _ in 0..LIMITS.anonymous {
            let mut stream = connect(address).await;
            assert_eq!(ask(&mut stream, b'a').await, Some(b'a'));
            served.push(stream);
        }
        assert_eq!(ask(&mut connect(address).await, b'a').await, None);
        assert_eq!(
            refusals.total("echo", Refusal::AddressFull),
            0,
            "this machine has no such limit"
        );
        assert_eq!(refusals.total("echo", Refusal::AnonymousFull), 1);
        for stream in &mut served {
            assert_eq!(ask(stream, b'b').await, Some(b'b'));
        }
        drop(served.pop());
        let mut next = connect(address).await;
        while ask(&mut next, b'c').await.is_none() {
            next = connect(address).await;
        }
    }

    #[tokio::test]
    async fn flood_of_connect_and_close_costs_no_client_its_place() {
        let (address, _, refusals) = start(LIMITS);
        let flood = tokio::spawn(async move {
            let opened = AtomicUsize::new(0);
            while opened.fetch_add(1, Ordering::Relaxed) < 2000 {
                drop(connect(address).await);
            }
        });
        let mut answered = 0;
        while !flood.is_finished() {
            let mut stream = connect(address).await;
            assert_eq!(ask(&mut stream, b'a').await, Some(b'a'), "after {answered}");
            answered += 1;
        }
        assert!(answered > 10, "{answered}");
        assert_eq!(refusals.total("echo", Refusal::PendingFull), 0);
    }

    /// The loop does not run on the threads of the connections, as in a program whose main function
    /// awaits it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn loop_with_a_thread_of_its_own_leaves_time_to_connections() {
        const FLOOD: usize = 3000;
        let refusals = Refusals::default();
        let gate = Gate::new("echo", Limits { pending: 128, ..LIMITS }, &refusals);
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        // The kernel keeps them, and the loop finds them all at once.
        let (flooded, is_flooded) = oneshot::channel();
        std::thread::spawn(move || {
            for _ in 0..FLOOD {
                drop(std::net::TcpStream::connect(address).unwrap());
            }
            flooded.send(()).unwrap();
        });
        is_flooded.await.unwrap();
        let taken = async {
            while gate.turns() < FLOOD as u64 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        drop(run(&listener, &gate, taken, echo).await);
        assert_eq!(refusals.total("echo", Refusal::PendingFull), 0);
    }

    #[tokio::test]
    async fn panic_of_one_connection_leaves_the_others() {
        let (address, gate, _) = start(LIMITS);
        let mut served = connect(address).await;
        assert_eq!(ask(&mut served, b'a').await, Some(b'a'));
        assert_eq!(ask(&mut connect(address).await, b'!').await, None);
        assert_eq!(ask(&mut served, b'b').await, Some(b'b'));
        while gate.pending() > 0 {
            yield_now().await;
        }
    }

    /// A listener without file descriptors, until it gets some.
    struct Exhausted(TcpListener, Arc<AtomicUsize>);

    impl Accept for Exhausted {
        type Stream = TcpStream;

        async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
            let left = self.1.load(Ordering::Relaxed);
            if left > 0 {
                self.1.store(left - 1, Ordering::Relaxed);
                return Err(io::Error::from_raw_os_error(24));
            }
            Accept::accept(&self.0).await
        }
    }

    #[tokio::test]
    async fn listener_recovers_from_too_many_open_files() {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(3));
        let listener = Exhausted(listener, Arc::clone(&left));
        let gate = Gate::new("echo", LIMITS, &Refusals::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move { drop(stopped.await) };
        let running = tokio::spawn({
            let gate = gate.clone();
            async move { run(&listener, &gate, stopped, echo).await.len() }
        });
        let mut served = connect(address).await;
        assert_eq!(ask(&mut served, b'a').await, Some(b'a'));
        assert_eq!((left.load(Ordering::Relaxed), gate.turns()), (0, 4));
        stop.send(()).unwrap();
        assert_eq!(running.await.unwrap(), 1, "the open connection is returned");
        closed(served).await;
    }
}
