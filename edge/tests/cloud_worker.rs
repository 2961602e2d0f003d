//! How a worker in a container reaches the cloud worker's Service: the built agent, real Docker, and
//! a name server that answers like `CoreDNS` and `EdgeMesh`.

#![allow(clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
};

use harness::{Agent, Broker, BusyboxImage, Cloud, IDLE, service, unique};
use neptune_wire::Phase;
use serde_json::{Value, json};

const SERVICE: &str = "default/jointinferenceservices/s";
const MODEL: &str = "default/models/small";
const NAME: &str = "digits-cloud-b2a19e40.default.svc";
const RCODE_NAME_ERROR: u8 = 3;

/// Answers A queries for `NAME.cluster.local` with 127.0.0.1, AAAA queries for it with no address,
/// and all other names with NXDOMAIN.
fn serve_cluster_local(address: Ipv4Addr) {
    let socket = UdpSocket::bind((address, 53))
        .unwrap_or_else(|error| panic!("port 53 of {address}, which needs root: {error}"));
    let known: Vec<u8> = format!("{NAME}.cluster.local")
        .split('.')
        .flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat())
        .chain([0])
        .collect();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..length];
            let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
            let question = &query[12..name_end + 4];
            let is_known = question[..question.len() - 4].eq_ignore_ascii_case(&known);
            let has_answer = is_known && question[question.len() - 3] == 1;
            let rcode = if is_known { 0 } else { RCODE_NAME_ERROR };
            let head = [query[0], query[1], 0x85, 0x80 | rcode, 0, 1, 0, u8::from(has_answer)];
            let mut reply = [&head[..], &[0; 4], question].concat();
            if has_answer {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&reply, client).unwrap();
        }
    });
}

/// Starts an agent whose containers use this name server, and a worker with these host entries.
async fn run(broker: &Broker, image: &BusyboxImage, dns: Ipv4Addr, hosts: Value) -> Agent {
    let mut agent = Agent::new(&broker.url());
    agent.extra = ["--dns".to_owned(), dns.to_string()].to_vec();
    let cloud = Cloud::connect(&agent);
    agent.start();
    cloud.node("online", |report| report.online).await;
    let path = agent.dir.path().join("small.bin");
    fs::write(&path, "a model").unwrap();
    let mut content = service(&unique("w"), &image.0, IDLE);
    content["workers"][0]["hosts"] = hosts;
    let model = cloud.insert(MODEL, &json!({"spec": {"modelUrl": path}}));
    let service = cloud.insert(SERVICE, &content);
    cloud.index(&[(MODEL, &model), (SERVICE, &service)]);
    cloud.status(SERVICE, "running", |report| report.phase == Phase::Running).await;
    agent
}

/// The result of the C library's resolver in the worker's container.
fn resolve(agent: &Agent, host: &str) -> Option<String> {
    let command = format!("getent hosts {host} || true");
    let output = harness::docker(&["exec", &agent.containers()[0], "/bin/sh", "-c", &command]);
    output.split_whitespace().next().map(str::to_owned)
}

fn image() -> BusyboxImage {
    BusyboxImage::with_programs(&["/usr/bin/getent".into()])
}

#[tokio::test(flavor = "multi_thread")]
async fn full_service_name_resolves_where_only_cluster_local_does() {
    let (broker, image, dns) = (Broker::start().await, image(), Ipv4Addr::new(127, 0, 77, 1));
    serve_cluster_local(dns);
    let agent = run(&broker, &image, dns, json!({})).await;
    let full = format!("{NAME}.cluster.local");
    assert_eq!(resolve(&agent, &full).as_deref(), Some("127.0.0.1"));
    assert_eq!(resolve(&agent, NAME), None, "no search domain completes it");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_entry_names_the_cloud_worker_without_a_name_server() {
    let (broker, image) = (Broker::start().await, image());
    let host = format!("{NAME}.cluster.local");
    let hosts = json!({&host: IpAddr::from([10, 96, 0, 7])});
    // No name server listens there.
    let agent = run(&broker, &image, Ipv4Addr::new(127, 0, 77, 2), hosts).await;
    assert_eq!(resolve(&agent, &host).as_deref(), Some("10.96.0.7"));
    assert_eq!(resolve(&agent, NAME), None);
}
