//! `neptune-edge join` and `leave` with a strict join server, a real broker that requires
//! certificates, and the real agent behind a stand-in for `systemctl`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;
#[path = "join/server.rs"]
mod server;

use std::{
    collections::BTreeMap,
    fs,
    future::pending,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use harness::{Broker, SmallDisk, docker, free_port, within};
use neptune_edge::{
    cli::{JoinArgs, PlaceArgs, Transport},
    commands::join::{self, step::Step},
};
use neptune_join::RefusalReason;
use neptune_link::{ClientIdentity, Link, LinkEvent, LinkOptions, Message};
use neptune_pinned_tls::{TlsKey, certificate_pin};
use neptune_wire::{Index, Revision, Topic, TopicPrefix, encode};
use server::{Behavior, JoinServer};
use tempfile::TempDir;
use tokio::sync::Notify;

const PROGRAM: &str = env!("CARGO_BIN_EXE_neptune-edge");
const NODE: &str = "edge0";

/// A machine: a directory for the data, and one for the settings.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings_file(&self) -> PathBuf {
        self.path("etc/edge.env")
    }

    /// The settings; `None` without the file.
    fn settings(&self) -> Option<String> {
        fs::read_to_string(self.settings_file()).ok()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).arg("--settings").arg(self.settings_file());
        command.arg("--data-dir").arg(self.path("data"));
        for name in ["NEPTUNE_NODE_NAME", "NEPTUNE_JOIN_TOKEN", "NEPTUNE_DATA_DIR"] {
            command.env_remove(name);
        }
        command
    }

    async fn join(&self, url: &str, token: &str, extra: &[&str]) -> Output {
        let arguments = [&["join", url, token, "--no-unit"], extra].concat();
        output(self.command(&arguments)).await
    }

    async fn leave(&self, extra: &[&str]) -> Output {
        output(self.command(&[&["leave", "--no-unit"], extra].concat())).await
    }

    /// The files below the directory with their modes.
    fn files(&self) -> BTreeMap<String, u32> {
        let mut files = BTreeMap::new();
        for folder in ["etc", "data"] {
            for entry in fs::read_dir(self.path(folder)).into_iter().flatten() {
                let entry = entry.unwrap();
                let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
                files.insert(format!("{folder}/{}", entry.file_name().display()), mode);
            }
        }
        files
    }

    /// The files of a joined node, without what differs between two joins: the directory, the key,
    /// and the certificate, which has to be for the key.
    fn joined(&self, server: &JoinServer) -> (BTreeMap<String, u32>, String, String) {
        let read = |name: &str| fs::read_to_string(self.path(name)).unwrap();
        let key = TlsKey::from_pem(&read("data/tls.key"), "the node").unwrap();
        assert_eq!(certificate_pin(&read("data/certificate.pem")).as_ref(), Some(key.pin()));
        assert_eq!(read("data/ca.pem"), server.authority.certificate());
        let settings = read("etc/edge.env").replace(self.dir.path().to_str().unwrap(), "DIR");
        (self.files(), read("data/ca.pem"), settings)
    }
}

/// Runs a program to its end beside the servers of the test.
async fn output(mut command: Command) -> Output {
    let ended = tokio::task::spawn_blocking(move || command.output().unwrap());
    within("the program to end", ended).await.unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts the reason of a failed join, its exit code, and that its text is complete.
fn assert_failed(output: &Output, reason: &str, code: i32) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(&format!("neptune-edge join: {reason}: ")), "{reason}: {text}");
    assert!(text.contains("\n  now: ") && text.contains("\n  continue: "), "{text}");
}

/// Asserts that all steps ran. The machine of these tests has no broker, which the doctor reports.
fn assert_joined(output: &Output) {
    assert_failed(output, "DoctorErrors", 1);
    assert!(String::from_utf8_lossy(&output.stdout).contains("kubectl neptune nodes edge0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_command_line_writes_nothing() {
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let token = server.enroll(NODE);
    let cut = &token[..token.len() - 1];
    assert_failed(&machine.join(&server.url, cut, &[]).await, "TokenMalformed", 2);
    assert_failed(&machine.join("http://127.0.0.1:1", &token, &[]).await, "UrlInvalid", 2);
    let named = machine.join(&server.url, &token, &["--node-name", "edge1"]).await;
    assert_failed(&named, "NodeNameDiffers", 1);
    let twice = machine.join(&server.url, &token, &["--token-file", "x"]).await;
    assert_failed(&twice, "TokenMalformed", 2);
    let foreign = "NEPTUNE_NODE_NAME='edge0'\nNEPTUNE_MQTT_URL='mqtt://edge0:secret@127.0.0.1'\n";
    fs::write(machine.settings_file(), foreign).unwrap();
    let joined = machine.join(&server.url, &token, &[]).await;
    assert_failed(&joined, "AlreadyJoined", 1);
    assert!(stderr(&joined).contains("now: nothing was written"), "{}", stderr(&joined));
    assert_eq!(machine.settings().as_deref(), Some(foreign));
    assert!(!machine.path("data").exists());
    assert_eq!(server.state.lock().requests, 0);

    assert_joined(&machine.join(&server.url, &token, &["--force"]).await);
    let settings = machine.settings().unwrap();
    assert!(!settings.contains("secret") && settings.contains("mqtts://"), "{settings}");
}

#[tokio::test(flavor = "multi_thread")]
async fn join_over_eventbus_writes_nothing_and_names_what_the_agent_needs() {
    let machine = Machine::new();
    let arguments = ["join", "--transport", "eventbus", "--node-name", NODE, "--no-unit"];
    let refused = output(machine.command(&arguments)).await;
    assert_failed(&refused, "NothingToJoin", 2);
    assert!(stderr(&refused).contains("NEPTUNE_NODE_NAME='edge0'\n"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("now: nothing was written"), "{}", stderr(&refused));
    assert!(machine.files().is_empty());
    // Without a transport a URL is required, and with mqtt as well.
    let missing = output(machine.command(&["join", "--no-unit"])).await;
    assert!(stderr(&missing).contains("<URL>"), "{}", stderr(&missing));
    let server = JoinServer::start().await;
    fs::write(machine.path("token"), server.enroll(NODE)).unwrap();
    let file = machine.path("token").display().to_string();
    let arguments = ["join", "--transport", "mqtt", "--token-file", &file, "--no-unit"];
    assert_failed(&output(machine.command(&arguments)).await, "UrlInvalid", 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_is_sent_to_no_server_of_another_authority() {
    let (server, other, machine) =
        (JoinServer::start().await, JoinServer::start().await, Machine::new());
    let token = server.enroll(NODE);
    let output = machine.join(&other.url, &token, &[]).await;
    assert_failed(&output, "ServerNotTrusted", 1);
    assert!(stderr(&output).contains("the secret of the token was not sent"), "{output:?}");
    assert_eq!(other.state.lock().requests, 0);
    assert_eq!(machine.files().keys().collect::<Vec<_>>(), ["data/tls.key"]);

    let port = free_port();
    let output = machine.join(&format!("https://127.0.0.1:{port}"), &token, &[]).await;
    assert_failed(&output, "JoinUnreachable", 1);
    assert!(stderr(&output).contains(&format!("127.0.0.1:{port}")), "{output:?}");
    assert_eq!(machine.files().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_refusal_changes_no_setting_and_names_its_remedy() {
    use RefusalReason as R;
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let other = TlsKey::generate();
    let refused = async |token: &str, reason: R, remedy: &str| {
        let output = machine.join(&server.url, token, &[]).await;
        assert_failed(&output, &reason.to_string(), 1);
        assert!(stderr(&output).contains(remedy), "{}", stderr(&output));
        assert_eq!(machine.files().keys().collect::<Vec<_>>(), ["data/tls.key"], "{reason}");
    };
    let expired = server.enroll(NODE);
    server.change(&expired, |entry| entry.is_expired = true);
    refused(&expired, R::TokenExpired, "`neptune-cloud enroll edge0`").await;

    let used = server.enroll(NODE);
    let serial = neptune_pinned_tls::Serial::from_random([1; 8]);
    server.change(&used, |entry| entry.used_by = Some((other.pin().clone(), serial)));
    refused(&used, R::TokenUsed, "`neptune-cloud revoke edge0`").await;

    let unknown = server.enroll(NODE);
    server.state.lock().tokens.clear();
    refused(&unknown, R::TokenRefused, "`neptune-cloud enroll edge0`").await;

    let token = server.enroll(NODE);
    server.state.lock().revoked.insert(NODE.to_owned());
    refused(&token, R::NodeRevoked, "enroll edge0 --replace`").await;
    server.state.lock().revoked.clear();
    server.state.lock().known.insert(NODE.to_owned(), other.pin().clone());
    refused(&token, R::NodeKeyKnown, "enroll edge0 --replace`").await;
    server.state.lock().behavior = Behavior::Busy;
    refused(&token, R::TooManyRequests, "run the same line again").await;

    server.state.lock().behavior = Behavior::Garbage;
    let output = machine.join(&server.url, &token, &[]).await;
    assert_failed(&output, "AnswerInvalid", 1);
    server.state.lock().behavior = Behavior::Answer;
    server.change(&token, |entry| entry.replaces = true);
    assert_joined(&machine.join(&server.url, &token, &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answer_and_killed_join_are_repeated_with_the_same_line() {
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let token = server.enroll(NODE);
    server.state.lock().behavior = Behavior::Lose;
    assert_failed(&machine.join(&server.url, &token, &[]).await, "AnswerLost", 1);

    server.state.lock().behavior = Behavior::Hang;
    let arguments = ["join", &server.url, &token, "--no-unit"];
    let mut joining = machine.command(&arguments);
    let mut joining = neptune_harness::Process::start("join", machine.dir.path(), &mut joining);
    // The permit of the lost answer, then that of this request.
    server.requested.notified().await;
    within("the request", async {
        while server.state.lock().requests < 2 {
            server.requested.notified().await;
        }
    })
    .await;
    joining.kill();
    assert!(machine.settings().is_none());

    server.state.lock().behavior = Behavior::Answer;
    assert_joined(&machine.join(&server.url, &token, &[]).await);
    assert_joined(&machine.join(&server.url, &token, &[]).await);
    let another = Machine::new();
    assert_failed(&another.join(&server.url, &token, &[]).await, "TokenUsed", 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_joins_at_once_gets_the_certificate() {
    let server = JoinServer::start().await;
    let token = server.enroll(NODE);
    let machines = [Machine::new(), Machine::new()];
    let [first, second] = &machines;
    tokio::join!(first.join(&server.url, &token, &[]), second.join(&server.url, &token, &[]));
    let joined = machines.iter().filter(|machine| machine.settings().is_some());
    assert_eq!(joined.count(), 1);
    for machine in machines.iter().filter(|machine| machine.settings().is_none()) {
        assert_eq!(machine.files().keys().collect::<Vec<_>>(), ["data/tls.key"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn join_that_stops_before_any_step_ends_equal_when_repeated() {
    let server = JoinServer::start().await;
    let reference = Machine::new();
    let token = server.enroll(NODE);
    let joined = reference.join(&server.url, &token, &[]).await;
    assert_joined(&joined);
    assert!(stderr(&joined).contains("warning: NodeMissing"), "{}", stderr(&joined));
    let expected = reference.joined(&server);
    assert_eq!(expected.0["etc/edge.env"], 0o640);
    assert_eq!(expected.0["data/tls.key"], 0o600);
    let files: Vec<_> = expected.0.keys().map(String::as_str).collect();
    let names = ["data/ca.pem", "data/certificate.pem", "data/tls.key", "etc/edge.env"];
    assert_eq!(files, names);

    for stop in Step::ALL {
        let machine = Machine::new();
        let token = server.enroll(NODE);
        let args = JoinArgs {
            url: Some(server.url.clone()),
            token: Some(token.clone()),
            token_file: None,
            node_name: None,
            transport: Transport::Mqtt,
            force: false,
            place: PlaceArgs {
                no_unit: true,
                settings: machine.settings_file(),
                data_dir: Some(machine.path("data")),
            },
        };
        let reached = Notify::new();
        let joining = join::run(&args, Path::new(PROGRAM), async |step| {
            if step == stop {
                reached.notify_one();
                pending::<()>().await;
            }
        });
        tokio::select! {
            ended = joining => panic!("{stop:?} was not reached: {ended:?}"),
            () = within("the step", reached.notified()) => {}
        }
        assert_eq!(machine.settings().is_some(), stop > Step::Settings, "{stop:?}");
        assert_joined(&machine.join(&server.url, &token, &[]).await);
        assert_eq!(machine.joined(&server), expected, "{stop:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn place_that_cannot_be_written_is_named_and_the_join_repeated() {
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let token = server.enroll(NODE);
    fs::write(machine.path("data"), "a file").unwrap();
    let output = machine.join(&server.url, &token, &[]).await;
    assert_failed(&output, "DataDirectoryNotWritable", 1);
    assert_eq!(server.state.lock().requests, 0);
    fs::remove_file(machine.path("data")).unwrap();

    let disk = SmallDisk::mount(&machine.path("etc"));
    disk.fill(false);
    let output = machine.join(&server.url, &token, &[]).await;
    assert_failed(&output, "DiskFull", 1);
    assert!(machine.settings().is_none(), "the settings are the last file");
    assert!(machine.path("data/certificate.pem").exists());
    disk.free();
    assert_joined(&machine.join(&server.url, &token, &[]).await);
}

/// A broker that requires certificates of the authority, for nodes and for the cloud.
async fn certificate_broker(server: &JoinServer, dir: &Path) -> Broker {
    let credentials = server.authority.sign_server(["localhost".to_owned()]).unwrap();
    let file = |name: &str, content: &str| {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let broker = Broker::with_config(&format!(
        "allow_anonymous false\nrequire_certificate true\nuse_identity_as_username true\n\
         cafile {}\ncertfile {}\nkeyfile {}",
        file("broker-ca.pem", server.authority.certificate()),
        file("broker.pem", &credentials.certificate),
        file("broker.key", &credentials.key),
    ))
    .await;
    server.state.lock().broker_url = format!("mqtts://localhost:{}", broker.port());
    broker
}

/// Settings of the operator with which an agent of this machine runs beside others.
fn operators_settings(machine: &Machine) -> String {
    format!(
        "# Of the operator\nNEPTUNE_LOCAL_LISTEN='127.0.0.1:{}'\nNEPTUNE_RUNTIME_DIR='{}'\n\
         NEPTUNE_DOCKER_HOST='{}'\n",
        free_port(),
        machine.path("run").display(),
        docker::host(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_node_passes_the_doctor_and_leaves_without_a_trace_of_the_join() {
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let _broker = certificate_broker(&server, machine.dir.path()).await;
    let operators = operators_settings(&machine);
    fs::write(machine.settings_file(), &operators).unwrap();
    let token = server.enroll(NODE);
    fs::write(machine.path("token"), format!("{token}\n")).unwrap();
    let token_file = machine.path("token").display().to_string();
    let arguments = ["join", &server.url, "--token-file", &token_file, "--no-unit"];
    let joined = output(machine.command(&arguments)).await;
    assert_eq!(joined.status.code(), Some(0), "{joined:?}");
    let printed = String::from_utf8_lossy(&joined.stdout).into_owned();
    for part in ["Broker       mqtts://localhost:", "Key          sha256:", "Valid until  "] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let secret = token.split(':').nth(3).unwrap();
    assert!(!printed.contains(secret) && !stderr(&joined).contains(secret));
    let settings = machine.settings().unwrap();
    assert!(settings.starts_with(&operators), "{settings}");
    assert!(!settings.contains(secret) && settings.contains("NEPTUNE_NODE_NAME='edge0'"));

    let left = machine.leave(&[]).await;
    assert_eq!(left.status.code(), Some(0), "{left:?}");
    let printed = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(printed.contains("--filter label=io.neptune.node=edge0"), "{printed}");
    let kept = machine.settings().unwrap();
    assert!(kept.starts_with(&operators) && !kept.contains("NEPTUNE_MQTT"), "{kept}");
    assert_eq!(machine.files().keys().collect::<Vec<_>>(), ["data/tls.key", "etc/edge.env"]);

    // The key stays: the machine joins again as the same node.
    let token = server.enroll(NODE);
    assert_eq!(machine.join(&server.url, &token, &[]).await.status.code(), Some(0));
    assert_eq!(machine.leave(&["--purge"]).await.status.code(), Some(0));
    assert!(!machine.path("data").exists());
    assert_eq!(machine.leave(&["--purge"]).await.status.code(), Some(0), "repeated");
}

#[tokio::test(flavor = "multi_thread")]
async fn leave_touches_no_settings_that_no_join_wrote() {
    let machine = Machine::new();
    let text = "NEPTUNE_NODE_NAME='edge0'\nNEPTUNE_MQTT_URL='mqtt://edge0:p@127.0.0.1'\n";
    fs::write(machine.settings_file(), text).unwrap();
    let left = machine.leave(&[]).await;
    assert_eq!(left.status.code(), Some(1), "{left:?}");
    assert!(stderr(&left).contains("nothing was removed"), "{left:?}");
    assert_eq!(machine.settings().as_deref(), Some(text));

    fs::remove_file(machine.settings_file()).unwrap();
    fs::create_dir(machine.path("data")).unwrap();
    fs::write(machine.path("data/letter"), "of a person").unwrap();
    let left = machine.leave(&["--purge"]).await;
    assert!(stderr(&left).contains("is not the data directory of an agent"), "{left:?}");
    assert!(machine.path("data/letter").exists());
}

/// A stand-in for systemd: a `systemctl` that starts the agent with the settings, and the socket of
/// its notifications, whose last status `systemctl show` returns.
struct Systemd {
    bin: PathBuf,
    pid: PathBuf,
    calls: PathBuf,
}

impl Systemd {
    fn new(machine: &Machine) -> Self {
        let (bin, dir) = (machine.path("bin"), machine.dir.path().display());
        fs::create_dir(&bin).unwrap();
        let settings = machine.settings_file();
        let script = |name: &str, text: String| {
            fs::write(bin.join(name), text).unwrap();
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        script(
            "systemctl",
            format!(
                "#!/bin/sh\necho \"$*\" >>{dir}/calls\nset -e\n[ ! -e {dir}/broken ]\ncase $1 in\nrestart)\n\
                 set -a; . {}; NOTIFY_SOCKET={dir}/notify {PROGRAM} run >{dir}/agent.log 2>&1 </dev/null &\n\
                 echo $! >{dir}/pid ;;\nshow) cat {dir}/status 2>/dev/null || true ;;\n\
                 disable) kill $(cat {dir}/pid) ;;\nesac\n",
                settings.display()
            ),
        );
        script("journalctl", "#!/bin/sh\necho a line of the log\n".to_owned());
        let socket = UnixDatagram::bind(machine.path("notify")).unwrap();
        let status = machine.path("status");
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                if let Some(text) = text.lines().find_map(|line| line.strip_prefix("STATUS=")) {
                    let _ = fs::write(&status, text);
                }
            }
        });
        Self { bin, pid: machine.path("pid"), calls: machine.path("calls") }
    }

    /// Runs a command of the machine with these programs.
    async fn run(&self, mut command: Command) -> Output {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.bin.display()));
        output(command).await
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(&self.calls).unwrap_or_default();
        let calls = calls.lines().filter(|call| !call.starts_with("show"));
        calls.map(|call| call.replace(" neptune-edge.service", "")).collect()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        if let Ok(pid) = fs::read_to_string(&self.pid) {
            let _ = Command::new("kill").args(["-9", pid.trim()]).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unit_is_started_and_the_first_index_awaited() {
    let (server, machine) = (JoinServer::start().await, Machine::new());
    let broker = certificate_broker(&server, machine.dir.path()).await;
    fs::write(machine.settings_file(), operators_settings(&machine)).unwrap();
    let systemd = Systemd::new(&machine);
    let token = server.enroll(NODE);
    let arguments = ["join", &server.url, &token];

    fs::write(machine.path("broken"), "").unwrap();
    let failed = systemd.run(machine.command(&arguments)).await;
    assert_failed(&failed, "NotStarted", 1);
    assert!(stderr(&failed).contains("\n    a line of the log"), "{}", stderr(&failed));
    assert!(stderr(&failed).contains("the node has joined"), "{}", stderr(&failed));
    fs::remove_file(machine.path("broken")).unwrap();

    // The controller publishes the index of a node that was enrolled.
    let cloud = server.authority.sign_user("neptune_cloud").unwrap();
    let options = LinkOptions {
        ca: Some(server.authority.certificate().to_owned()),
        identity: Some(ClientIdentity {
            certificate: cloud.certificate.clone(),
            key: cloud.key.clone().into(),
        }),
        ..LinkOptions::new(
            format!("mqtts://localhost:{}", broker.port()).parse().unwrap(),
            "cloud".to_owned(),
        )
    };
    let (link, mut events) = Link::start(options).unwrap();
    assert_eq!(within("the link", events.next()).await, Some(LinkEvent::Up));
    let index = Index { revision: Revision(1), ..Index::default() };
    let topic = Topic::Index(NODE.parse().unwrap()).under(&TopicPrefix::default());
    link.publish(Message { topic, payload: encode(&index).into(), retain: true }).unwrap();

    let joined = systemd.run(machine.command(&arguments)).await;
    let log = fs::read_to_string(machine.path("agent.log")).unwrap_or_default();
    assert_eq!(joined.status.code(), Some(0), "{}\n{log}", stderr(&joined));
    assert_eq!(systemd.calls(), ["enable", "enable", "restart"]);
    let owner = fs::metadata(machine.path("data")).unwrap().uid();
    assert_eq!(fs::metadata(machine.path("data/tls.key")).unwrap().uid(), owner);

    let refused = machine.leave(&["--purge"]).await;
    assert_eq!(refused.status.code(), Some(1), "an agent runs: {refused:?}");
    let left = systemd.run(machine.command(&["leave"])).await;
    assert_eq!(left.status.code(), Some(0), "{left:?}");
    assert_eq!(systemd.calls().last().map(String::as_str), Some("disable --now"));
    assert!(!machine.path("data/certificate.pem").exists());
    assert!(machine.path("data/neptune.db").exists());
    link.close(Duration::from_secs(5)).await;
}
