//! Containers on a Docker network (`--worker-network`), with real Docker and a real broker.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
    time::Duration,
};

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, MODEL, SERVICE, WorkerClient, docker, free_port,
    local_model, login_of,
    raw_mqtt::{connect_packet, publish_packet},
    run_service, runs, service, unique,
};
use neptune_harness::{docker::engine, eventually_async};
use neptune_wire::{StatusReport, Topic, TopicPrefix};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// The node's address on the network `bridge`, as a container's default route has it.
fn bridge_gateway(image: &BusyboxImage) -> IpAddr {
    let route = ["busybox", "ip", "route", "show", "default"];
    let run = ["run", "--rm", "--network", "bridge", &image.0];
    let route = docker(&[&run[..], &route].concat());
    route.split_whitespace().nth(2).unwrap_or_else(|| panic!("{route:?}")).parse().unwrap()
}

/// A Docker network that exists during a test.
struct Network {
    name: String,
    gateway: IpAddr,
}

impl Network {
    fn create() -> Self {
        let name = unique("neptune-test");
        docker(&["network", "create", &name]);
        let gateway = "{{(index .IPAM.Config 0).Gateway}}";
        let gateway = docker(&["network", "inspect", "--format", gateway, &name]);
        Self { name, gateway: gateway.parse().unwrap() }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["network", "rm", &self.name]).output();
    }
}

/// An agent whose broker is on the gateway of this network. It does not run yet.
fn agent_on(broker: &Broker, network: &str, gateway: IpAddr) -> Agent {
    let mut agent = Agent::new(&broker.url());
    agent.local_address = gateway;
    agent.extra = vec!["--worker-network".to_owned(), network.to_owned()];
    agent
}

/// Sends bytes from a container to a TCP server, until the server closes the connection.
fn send_from(container: &str, server: SocketAddr, bytes: &[u8]) -> Output {
    let (host, port) = (server.ip().to_string(), server.port().to_string());
    let mut sending = Command::new("docker")
        .args(["exec", "-i", container, "busybox", "nc", "-w", "5", &host, &port])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Refused connections end the program early.
    let _ = sending.stdin.take().unwrap().write_all(bytes);
    sending.wait_with_output().unwrap()
}

/// The body of the answer of an HTTP server on this node.
async fn get(port: u16) -> Option<String> {
    let answer = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.contains(" 200 ").then(|| body.trim().to_owned())
    };
    timeout(Duration::from_secs(2), answer).await.ok().flatten()
}

/// A script that serves a text as `/health`.
fn server(port: u16, text: &str) -> String {
    format!("echo {text} > /tmp/health; exec busybox httpd -f -p {port} -h /tmp")
}

fn level(output: &Output, check: &str) -> Option<String> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = report["checks"].as_array().unwrap().iter().find(|one| one["check"] == check)?;
    Some(finding["level"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn worker_on_the_bridge_is_counted_and_does_not_reach_loopback() {
    if engine() == "podman" {
        // The gateway's address exists there only while a container uses the network.
        return;
    }
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let gateway = bridge_gateway(&image);
    let mut agent = agent_on(&broker, "bridge", gateway);
    agent.start();
    let cloud = Cloud::connect(&agent);
    let worker = run_service(&cloud, &agent, &image).await;
    let container = agent.containers().remove(0);
    let mode = docker(&["inspect", "--format", "{{.HostConfig.NetworkMode}}", &container]);
    assert_eq!(mode, "bridge");

    let (url, local) = (agent.worker_url(&worker), SocketAddr::new(gateway, agent.local_port));
    assert!(url.ends_with(&format!("@{local}")), "the host of {url}");
    let (user, password) = login_of(&url);
    let topic = Topic::WorkerInfo(worker.parse().unwrap()).under(&TopicPrefix::default());
    let info = WorkerClient::info("2026-08-01T12:00:00Z", 7, 3);
    let publish = |password: &str| {
        let connect = connect_packet("w", Some((&user, password)), true);
        let packets = [connect, publish_packet(&topic, &info, false, Some(7))].concat();
        send_from(&container, local, &packets).stdout
    };
    assert_eq!(publish("wrong")[..2], [0x20, 2], "CONNACK only");
    assert_eq!(publish(&password), [0x20, 2, 0, 0, 0x40, 2, 0, 7], "CONNACK and PUBACK");
    let counted = |report: &StatusReport| {
        report
            .output
            .task_info
            .as_ref()
            .is_some_and(|task| (task.counters.inference, task.counters.hard) == (7, 3))
    };
    cloud.status(SERVICE, "the counters", counted).await;

    // The one on the gateway shows that the container can connect.
    let on = |ip: IpAddr| TcpListener::bind((ip, 0)).unwrap();
    let (loopback, reachable) = (on([127, 0, 0, 1].into()), on(gateway));
    let control = reachable.local_addr().unwrap();
    let answer = std::thread::spawn(move || drop(reachable.accept().unwrap()));
    let reachable = send_from(&container, control, b"");
    assert!(reachable.status.success(), "{reachable:?}");
    answer.join().unwrap();
    let port = loopback.local_addr().unwrap().port();
    for ip in [[127, 0, 0, 1].into(), gateway] {
        let refused = send_from(&container, SocketAddr::new(ip, port), b"");
        assert!(!refused.status.success(), "{ip}: {refused:?}");
    }
    assert_eq!(level(&agent.doctor(&["--json"]), "worker network").as_deref(), Some("ok"));
}

#[tokio::test]
async fn cloud_worker_and_model_server_are_reached_at_their_published_ports() {
    if engine() == "podman" {
        // The gateway's address exists there only while a container uses the network.
        return;
    }
    let (broker, image, network) =
        (Broker::start().await, BusyboxImage::import(), Network::create());
    let mut agent = agent_on(&broker, &network.name, network.gateway);
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    let port = free_port();
    let mut content = service(&unique("w"), &image.0, &server(port, "cloud"));
    content["workers"][0]["role"] = json!("cloud");
    content["workers"][0]["port"] = json!(port);
    cloud.insert(SERVICE, &content);
    cloud.status(SERVICE, "running", runs).await;
    eventually_async("the cloud worker to answer", async || {
        get(port).await.as_deref() == Some("cloud")
    })
    .await;

    let (name, port, grpc) = (unique("m"), free_port(), free_port());
    let serving = |text: &str| {
        let second = format!("busybox httpd -p {grpc} -h /tmp; {}", server(port, text));
        json!({"serving": {
            "name": name, "modelName": "m", "image": image.0, "port": port, "grpcPort": grpc,
            "reload": "replace", "command": ["/bin/sh", "-c"], "args": [second],
            "health": {
                "httpPath": "/health", "periodMs": 100, "timeoutMs": 1000,
                "startWithinMs": 5000, "probationMs": 300,
            },
        }})
    };
    let object = "default/inferencemodels/m";
    for text in ["first", "second"] {
        cloud.insert(object, &serving(text));
        for port in [port, grpc] {
            eventually_async("the model server to answer", async || {
                get(port).await.as_deref() == Some(text)
            })
            .await;
        }
    }
    cloud.status(object, "running", runs).await;
}

#[tokio::test]
async fn network_that_does_not_exist_is_named() {
    if engine() == "podman" {
        // The gateway's address exists there only while a container uses the network.
        return;
    }
    let (broker, image, other) = (Broker::start().await, BusyboxImage::import(), Network::create());
    let missing = unique("neptune-test");
    let mut agent = agent_on(&broker, &missing, other.gateway);
    let output = agent.doctor(&["--json"]);
    assert_eq!(level(&output, "worker network").as_deref(), Some("error"), "{output:?}");
    agent.start();
    let cloud = Cloud::connect(&agent);
    cloud.insert(MODEL, &local_model(&agent));
    cloud.insert(SERVICE, &service(&unique("w"), &image.0, IDLE));
    cloud
        .status(SERVICE, "the missing network", |report| {
            report.workers[0].message.contains(&missing)
        })
        .await;
}

#[test]
fn broker_on_loopback_with_a_docker_network_ends_the_agent_with_2() {
    let mut agent = Agent::new("mqtt://127.0.0.1:1");
    agent.extra = ["--worker-network", "bridge"].map(str::to_owned).to_vec();
    let output = agent.command().output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("--local-listen: 127.0.0.1:"), "{printed}");
}
