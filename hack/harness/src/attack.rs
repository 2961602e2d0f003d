//! Clients that a server does not know and that do not behave: they connect and close, are silent,
//! or never finish a request. Threads of their own, so that they do not wait for the test.

use std::{
    collections::VecDeque,
    env,
    fmt::{self, Write as _},
    fs::File,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Threads, as of two processes.
const THREADS: usize = 2;
/// Between two connections of a thread that keeps its connections: some 100 per second together.
const PAUSE: Duration = Duration::from_millis(20);

/// The behavior of an attacking client.
#[derive(Clone)]
pub enum Attack {
    /// Connects and closes, as fast as it can.
    ConnectAndClose,
    /// Connects and sends nothing.
    Silent,
    /// Sends a part of the head of an HTTP request.
    HalfHead,
    /// Sends the head and the first byte of an HTTP request with a body, to this path.
    SlowBody(&'static str),
    /// Calls a function with a name, some 100 times per second.
    Repeat(&'static str, Arc<dyn Fn(SocketAddr) + Send + Sync>),
}

impl fmt::Debug for Attack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Attack {
    /// All kinds; `path` is that of requests.
    pub fn all(path: &'static str) -> [Self; 4] {
        [Self::ConnectAndClose, Self::Silent, Self::HalfHead, Self::SlowBody(path)]
    }

    /// What it is called in a table.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ConnectAndClose => "connect and close",
            Self::Silent => "silent",
            Self::HalfHead => "half a head",
            Self::SlowBody(_) => "slow body",
            Self::Repeat(name, _) => name,
        }
    }

    fn request(&self) -> String {
        let mut request = String::new();
        match self {
            Self::ConnectAndClose | Self::Silent | Self::Repeat(..) => {}
            Self::HalfHead => request.push_str("POST / HTTP/1.1\r\nhost: localhost\r\nx-part"),
            Self::SlowBody(path) => {
                let _ = write!(request, "POST {path} HTTP/1.1\r\nhost: localhost\r\n");
                request.push_str("content-type: application/json\r\n");
                request.push_str("content-length: 100000\r\n\r\n{");
            }
        }
        request
    }
}

/// Another machine: a network namespace, and the address by which its clients reach the loopback of
/// this machine.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    namespace: PathBuf,
    host: IpAddr,
}

impl Elsewhere {
    /// The one that `NEPTUNE_ATTACKS_FROM` names, as `NAME,ADDRESS`; `hack/test-attacks.sh` makes it.
    ///
    /// # Panics
    /// If the variable has another form.
    pub fn of_environment() -> Option<Self> {
        let text = env::var("NEPTUNE_ATTACKS_FROM").ok()?;
        let (name, host) = text.split_once(',').expect("NAME,ADDRESS");
        let host = host.parse().expect("an address");
        Some(Self { namespace: PathBuf::from("/run/netns").join(name), host })
    }

    /// Moves the thread there. What it connects to after that is on this machine's loopback.
    fn enter(&self) {
        let namespace = File::open(&self.namespace).expect("the namespace exists");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("root may enter a namespace");
    }
}

/// Clients that go on until they are dropped.
pub struct Attackers {
    is_over: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Attackers {
    /// Starts clients that keep `held` connections open, of which they replace the oldest.
    pub fn start(attack: &Attack, address: SocketAddr, held: usize) -> Self {
        Self::start_in(None, attack, address, held)
    }

    /// Starts clients as [`Attackers::start`] does, on another machine.
    pub fn start_elsewhere(
        elsewhere: &Elsewhere,
        attack: &Attack,
        address: SocketAddr,
        held: usize,
    ) -> Self {
        let address = SocketAddr::new(elsewhere.host, address.port());
        Self::start_in(Some(elsewhere), attack, address, held)
    }

    fn start_in(
        elsewhere: Option<&Elsewhere>,
        attack: &Attack,
        address: SocketAddr,
        held: usize,
    ) -> Self {
        let (is_over, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let threads = (0..THREADS).map(|_| {
            let (attack, is_over) = (attack.clone(), Arc::clone(&is_over));
            let (elsewhere, opened) = (elsewhere.cloned(), Arc::clone(&opened));
            thread::spawn(move || {
                if let Some(elsewhere) = elsewhere {
                    elsewhere.enter();
                }
                run(&attack, address, held / THREADS, (&is_over, &opened));
            })
        });
        let threads = threads.collect();
        Self { is_over, opened, threads }
    }

    /// Number of connections that were opened so far.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its panic is not that of the test.
            let _ = thread.join();
        }
    }
}

fn run(
    attack: &Attack,
    address: SocketAddr,
    held: usize,
    (is_over, opened): (&AtomicBool, &AtomicUsize),
) {
    let request = attack.request();
    let is_flood = matches!(attack, Attack::ConnectAndClose);
    let mut open = VecDeque::new();
    while !is_over.load(Ordering::Relaxed) {
        if let Attack::Repeat(_, once) = attack {
            once(address);
            opened.fetch_add(1, Ordering::Relaxed);
            thread::sleep(PAUSE);
            continue;
        }
        // A server may refuse it, and may close it meanwhile.
        if let Ok(mut stream) = TcpStream::connect(address) {
            opened.fetch_add(1, Ordering::Relaxed);
            let _ = stream.write_all(request.as_bytes());
            if !is_flood {
                open.push_back(stream);
            }
        }
        if open.len() > held {
            open.pop_front();
        }
        // The first connections come at once.
        if !is_flood && open.len() >= held {
            thread::sleep(PAUSE);
        }
    }
}
