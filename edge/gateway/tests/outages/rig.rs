//! The gateway's process, its two model servers, and one outage after the other.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    time::{Duration, Instant},
};

use neptune_harness::{
    Process,
    environment::{number, seed},
    eventually_some, free_port, memory_kib,
    workspace::{program, root},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::sleep,
};

use crate::{
    load::{Load, Traffic},
    proxy::{Fault, Proxy},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_neptune-gateway");
/// The cap of uploads: equal to the goal, so that nothing is left for a burst.
pub const MAX_RATIO: f64 = 0.2;
/// Beyond the announced end of a pause: the next hard sample, and its answer.
const SLACK: Duration = Duration::from_secs(1);

/// How long the phases of an outage are.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Number of outages; each kind has the same number of them, or one more.
    pub outages: usize,
    /// Time between two outages, in which the cloud works.
    pub before: Duration,
    /// The shortest and the longest outage.
    pub outage: (Duration, Duration),
    /// `timeouts` of the gateway.
    pub first_byte: &'static str,
    pub total: &'static str,
    pub seed: u64,
}

impl Sizes {
    /// Reads `NEPTUNE_OUTAGES` and `NEPTUNE_SEED`. By default there is one short outage of each
    /// kind. `share` of the long outages are for this test.
    pub fn of_environment(kinds: usize, share: usize) -> Self {
        let seed = seed(1);
        match number::<usize>("NEPTUNE_OUTAGES") {
            Some(outages) => Self {
                outages: outages.div_ceil(share),
                before: Duration::from_secs(4),
                outage: (Duration::from_secs(2), Duration::from_secs(10)),
                // The defaults for tensors.
                first_byte: "2s",
                total: "5s",
                seed,
            },
            None => Self {
                outages: kinds,
                before: Duration::from_millis(700),
                outage: (Duration::from_secs(1), Duration::from_millis(1_500)),
                first_byte: "300ms",
                total: "600ms",
                seed,
            },
        }
    }

    /// Whether this is the long run, whose latencies are judged.
    pub fn is_long(&self) -> bool {
        self.first_byte == "2s"
    }
}

/// One outage and the times around it.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    pub fault: Fault,
    /// Time at which the phase before it began.
    pub before: Instant,
    pub begin: Instant,
    pub end: Instant,
    /// The first answer of the cloud after the end.
    pub first_upload: Instant,
    /// When the gateway announced to try again, at the latest.
    pub allowed: Instant,
    /// Announcements of another pause long after the end.
    pub late_pauses: usize,
}

/// The gateway between its servers.
pub struct Rig {
    pub address: SocketAddr,
    pages: SocketAddr,
    pub proxy: Proxy,
    process: Process,
    _servers: Vec<Process>,
    _folder: TempDir,
}

/// A server of a digits model. Returns it with its address.
pub fn model_server(folder: &TempDir, name: &str) -> (Process, SocketAddr) {
    let versions = folder.path().join(name);
    fs::create_dir_all(versions.join("1")).unwrap();
    let file = format!("{name}.json");
    let model = root().join("examples/digits/models").join(&file);
    fs::copy(model, versions.join("1").join(file)).unwrap();
    let port = free_port();
    let mut command = Command::new(program("model-server"));
    command.args(["--ip", "127.0.0.1", "--model-name", name, "--port", &port.to_string()]);
    command.arg("--directory").arg(versions);
    let process = Process::start(name, folder.path(), &mut command);
    (process, (Ipv4Addr::LOCALHOST, port).into())
}

impl Rig {
    /// Starts the gateway's program in front of these servers. `config` is merged over the rest.
    pub async fn start(
        folder: TempDir,
        servers: Vec<Process>,
        (edge, cloud): (SocketAddr, SocketAddr),
        sizes: &Sizes,
        mut config: Value,
    ) -> Self {
        let proxy = Proxy::start(cloud).await;
        let authority = folder.path().join("ca.pem");
        fs::write(&authority, &proxy.authority).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let pages = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        config["service"] = json!("outages");
        config["listen"] = json!(address);
        config["metricsListen"] = json!(pages);
        config["edge"]["address"] = json!(edge);
        config["cloud"]["caFile"] = json!(authority);
        let url = format!("https://localhost:{}", proxy.port);
        let base = config["cloud"]["url"].as_str().unwrap_or_default();
        config["cloud"]["url"] = json!(format!("{url}{base}"));
        config["hardExample"]["goal"] = json!({"uploadRatio": MAX_RATIO});
        config["hardExample"]["maxUploadRatio"] = json!(MAX_RATIO);
        config["timeouts"] = json!({
            "cloudConnect": sizes.first_byte, "cloudFirstByte": sizes.first_byte,
            "cloudTotal": sizes.total,
        });
        config["state"] = json!(folder.path().join("state.json"));
        let path = folder.path().join("gateway.json");
        fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new(PROGRAM);
        let process =
            Process::start("gateway", folder.path(), command.args(["run", "--config"]).arg(path));
        let rig = Self { address, pages, proxy, process, _servers: servers, _folder: folder };
        // A gateway that does not know yet which log-probabilities the edge gives judges no stream.
        let is_ready = |status: &Value| status["signal"] != "Unknown";
        eventually_some("the gateway", async || rig.status().await.filter(is_ready)).await;
        for server in [edge, cloud] {
            eventually_some("the model servers", async || TcpStream::connect(server).await.ok())
                .await;
        }
        rig
    }

    async fn status(&self) -> Option<Value> {
        let mut stream = TcpStream::connect(self.pages).await.ok()?;
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// How long the cloud is left alone from now on, rounded up to a second.
    async fn pause(&self) -> Duration {
        let status = self.status().await.unwrap();
        let text = status["cloudText"].as_str().unwrap();
        let after = text.strip_prefix("the cloud is left alone for another ");
        let seconds = after.and_then(|rest| rest.split(' ').next()?.parse().ok());
        Duration::from_secs(seconds.unwrap_or_default())
    }

    /// The most memory that the gateway used, in MiB.
    pub fn memory_mib(&self) -> u64 {
        memory_kib(self.process.id(), "VmHWM") / 1024
    }

    /// Starts the clients, and waits until the cloud answers the first hard samples.
    pub async fn load(&self, traffic: Traffic) -> Load {
        let begin = Instant::now();
        let load = Load::start(self.address, traffic);
        eventually_some("the cloud's first answer", async || load.first_of_cloud(begin)).await;
        load
    }

    /// Lets the cloud fail for a while, and waits until it is used again.
    pub async fn outage(
        &mut self,
        load: &Load,
        fault: Fault,
        sizes: &Sizes,
        lasts: Duration,
    ) -> Outage {
        let before = Instant::now();
        sleep(sizes.before).await;
        let begin = Instant::now();
        self.proxy.set(Some(fault)).await;
        sleep(lasts).await;
        let end = Instant::now();
        self.proxy.set(None).await;
        // Calls of the outage that are pending end within these, and may cause another pause.
        let pending = if sizes.is_long() { 5 } else { 1 };
        let settled = end + Duration::from_secs(pending) + SLACK;
        let (mut allowed, mut late_pauses) = (end + SLACK, 0);
        let first_upload = eventually_some("an upload after the outage", async || {
            let first = load.first_of_cloud(end);
            if first.is_none() {
                let now = Instant::now();
                let next = now + self.pause().await + SLACK;
                // The announced time is rounded up: the same pause moves by less than a second.
                if next > allowed + Duration::from_secs(1) {
                    late_pauses += usize::from(now > settled);
                    allowed = next;
                }
            }
            first
        })
        .await;
        Outage { fault, before, begin, end, first_upload, allowed, late_pauses }
    }

    /// Ends the gateway as its agent does.
    pub async fn stop(mut self) {
        assert!(self.process.terminate().await.success());
    }
}

/// The kinds of all outages in a random order, and how long each lasts.
pub fn schedule(kinds: &[Fault], sizes: &Sizes) -> Vec<(Fault, Duration)> {
    let mut random = fastrand::Rng::with_seed(sizes.seed);
    let mut faults: Vec<Fault> = kinds.iter().copied().cycle().take(sizes.outages).collect();
    random.shuffle(&mut faults);
    let (shortest, longest) = sizes.outage;
    let spread = longest.saturating_sub(shortest).as_secs_f64();
    let lasts =
        |random: &mut fastrand::Rng| shortest + Duration::from_secs_f64(spread * random.f64());
    faults.into_iter().map(|fault| (fault, lasts(&mut random))).collect()
}
