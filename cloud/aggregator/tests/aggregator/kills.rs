//! The real program, killed while updates arrive and while new weights are computed.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::Duration,
};

use fastrand::Rng;
use neptune_content::client::Outcome;
use neptune_pinned_tls::TlsKey;
use neptune_wire::aggregator::{RoundRecord, RunPhase, RunRequest, RunStatus, RunTask};
use reqwest::StatusCode;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

use crate::{
    clients::{PATIENCE, Peer, install_provider, keys, node_of},
    fixtures::{SHAPES, npy, report, request, values, zip},
};

const WORKERS: usize = 3;
const ROUNDS: u32 = 8;
const KILLS: usize = 25;
/// Elements of one more tensor, so that uploads and aggregations take a while.
const PADDING: usize = 150_000;

/// What the program does when it is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// The aggregator does anything.
    Any,
    /// The aggregator receives an update.
    Upload,
    /// The aggregator computes new weights.
    Aggregation,
}

/// When the program is killed: after a moment, and a delay.
type Kill = (Moment, Duration);

/// How many kills there were, and what they interrupted.
#[derive(Debug, Default)]
struct Interrupted {
    kills: usize,
    aggregations: usize,
    uploads: usize,
}

fn trained(task: &RunTask) -> Vec<u8> {
    let values = values(task);
    let mut members = Vec::new();
    for ((name, shape), values) in SHAPES.iter().zip(&values) {
        let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        members.push(((*name).to_owned(), npy("<f4", shape, &data)));
    }
    let padding: Vec<u8> =
        values[0].iter().cycle().take(PADDING).flat_map(|it| it.to_le_bytes()).collect();
    members.push(("padding".to_owned(), npy("<f4", &[PADDING], &padding)));
    zip(&members)
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn program(directory: &Path, address: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-aggregator"));
    command.arg("--data-dir").arg(directory).arg("--listen").arg(address.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Starts the program, and waits until it serves. Its log is read to the end.
async fn start(directory: &Path, address: SocketAddr) -> Child {
    let mut child = program(directory, address).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let serving = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("serving") {
                return;
            }
            assert!(!line.starts_with("neptune-aggregator:"), "{line}");
        }
        panic!("the program ended");
    };
    tokio::time::timeout(PATIENCE, serving).await.expect("it serves in time");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    child
}

/// An agent: sends the result of each of its open tasks, over any number of connections.
async fn agent(node: Peer, controller: Peer, number: usize) {
    loop {
        let Some(status) = controller.try_state().await else { continue };
        if status.phase == RunPhase::Succeeded {
            return;
        }
        for task in status.tasks.iter().filter(|it| node_of(it) == number) {
            deliver(&node, task).await;
        }
    }
}

async fn deliver(node: &Peer, task: &RunTask) {
    let bytes = trained(task);
    let Some(sent) = node.try_report(&task.id, &bytes, &report()).await else { return };
    if sent == StatusCode::NO_CONTENT {
        match node.upload(&task.id, &bytes).await {
            Outcome::Accepted(_) | Outcome::Refused(StatusCode::GONE, _) => {}
            refused @ Outcome::Refused(..) => panic!("{refused:?}"),
        }
    }
}

/// Runs all rounds, and kills the program meanwhile.
async fn run(request: &RunRequest, nodes: &[TlsKey], kills: Vec<Kill>) -> (RunStatus, Interrupted) {
    let directory = tempfile::tempdir().unwrap();
    let (address, key) = (free_address(), TlsKey::generate());
    fs::write(directory.path().join("tls.key"), key.to_pem()).unwrap();
    let mut child = start(directory.path(), address).await;
    let peer = |own: &TlsKey| Peer::new(address, own, key.pin().clone());
    let controller = peer(&key);
    controller.put_run(request).await;
    let agents: Vec<_> = (0..WORKERS)
        .map(|at| tokio::spawn(agent(peer(&nodes[at]), controller.clone(), at)))
        .collect();
    let mut interrupted = Interrupted::default();
    let files = |name: &str| fs::read_dir(directory.path().join(name)).unwrap().count();
    for (moment, delay) in kills {
        match moment {
            Moment::Any => {}
            Moment::Upload => {
                while files("contents/partial") == 0 && !agents.iter().any(JoinHandle::is_finished)
                {
                    // No event of the program marks the first block.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Moment::Aggregation => {
                let is_near =
                    |it: &RunStatus| [RunPhase::Closing, RunPhase::Succeeded].contains(&it.phase);
                controller.wait_for(is_near).await;
            }
        }
        tokio::time::sleep(delay).await;
        if agents.iter().any(JoinHandle::is_finished) {
            break;
        }
        child.kill().await.unwrap();
        interrupted.kills += 1;
        interrupted.uploads += usize::from(files("contents/partial") > 0);
        interrupted.aggregations += usize::from(files("work") > 0);
        child = start(directory.path(), address).await;
    }
    for agent in agents {
        tokio::time::timeout(2 * PATIENCE, agent).await.expect("the run ends").unwrap();
    }
    let status = controller.state().await;
    drop(child);
    (status, interrupted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_are_the_same_after_twenty_five_kills() {
    install_provider();
    let mut request = request(WORKERS, ROUNDS);
    request.settings.rule.server_momentum = 0.9;
    let nodes = keys(&mut request, WORKERS);
    let (expected, _) = run(&request, &nodes, Vec::new()).await;
    let mut random = Rng::with_seed(7);
    // The delay is what is tested: no event marks these moments.
    let mut kill = |at: usize| {
        let (moment, longest) = match at % 5 {
            0 | 1 => (Moment::Upload, 30),
            2 => (Moment::Aggregation, 30),
            _ => (Moment::Any, 400),
        };
        (moment, Duration::from_millis(random.u64(0..longest)))
    };
    let kills = (0..KILLS).map(&mut kill).collect();
    let (status, interrupted) = run(&request, &nodes, kills).await;
    eprintln!("{interrupted:?}");
    assert_eq!(interrupted.kills, KILLS, "the run ended before all kills");
    assert!(interrupted.uploads >= 3 && interrupted.aggregations >= 3, "{interrupted:?}");
    assert_eq!(status.best, expected.best);
    let rounds = |status: &RunStatus| -> Vec<_> {
        let round =
            |it: &RoundRecord| (it.round, it.participants, it.weights.clone(), it.workers.clone());
        status.history.iter().map(round).collect()
    };
    assert_eq!(rounds(&status), rounds(&expected));
    assert_eq!(status.history.len(), ROUNDS as usize);
    assert!(status.history.iter().all(|it| it.workers.len() == WORKERS), "{:?}", status.history);
    let accepted: u32 = status.history.iter().map(|it| it.participants).sum();
    assert_eq!(accepted as usize, WORKERS * ROUNDS as usize);
}

#[tokio::test]
async fn program_stops_at_sigterm_and_names_wrong_settings() {
    let directory = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut child = start(directory.path(), address).await;
    let id = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let status = tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let output = program(directory.path(), occupied.local_addr().unwrap()).output().await.unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "the port may become free: {text}");
    assert!(text.contains("neptune-aggregator: --listen 127.0.0.1:"), "{text}");
    let missing = program(directory.path(), address).arg("--key-file").arg("/no/key").output();
    let missing = missing.await.unwrap();
    let text = String::from_utf8(missing.stderr).unwrap();
    assert_eq!(missing.status.code(), Some(2), "{text}");
    assert!(text.contains("--key-file /no/key does not exist"), "{text}");
}

/// What an init container does that is killed at any moment, and then once not.
#[tokio::test]
async fn killed_key_makers_leave_one_key_and_report_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let (key_file, report) = (directory.path().join("tls.key"), directory.path().join("report"));
    let make = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_neptune-aggregator"));
        command.arg("--data-dir").arg(directory.path()).arg("--report-pin").arg(&report);
        command.stderr(Stdio::null()).kill_on_drop(true);
        command
    };
    let mut random = Rng::with_seed(7);
    let (mut keys, mut pins) = (Vec::new(), Vec::new());
    for _ in 0..KILLS {
        let mut child = make().spawn().unwrap();
        tokio::time::sleep(Duration::from_micros(random.u64(0..40_000))).await;
        let _ = child.kill().await;
        keys.extend(fs::read_to_string(&key_file));
        pins.extend(fs::read_to_string(&report).into_iter().filter(|pin| pin.len() == 71));
    }
    assert!(make().status().await.unwrap().success());
    let key = fs::read_to_string(&key_file).unwrap();
    let pin = TlsKey::from_pem(&key, "the file").unwrap().pin().0.clone();
    assert!(keys.iter().all(|seen| *seen == key), "a key was replaced");
    assert!(pins.iter().all(|seen| *seen == pin), "another pin was reported");
    assert_eq!(fs::read_to_string(&report).unwrap(), pin);
}
