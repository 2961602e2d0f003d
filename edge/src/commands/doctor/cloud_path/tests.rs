//! The states of `EdgeMesh`, each against stand-ins that behave as a real one was observed to.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::Ipv4Addr;

use futures::future::join_all;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    time::{sleep, timeout},
};

use super::*;
use crate::{
    commands::doctor::{
        cloud_workers::cloud_workers,
        diagnosis::{Cause, listed},
        dns,
        facts::Protocol,
        report::{Finding, Level},
    },
    config::EDGE_MESH_DNS,
};

const HOST: &str = "big.ns1.svc.cluster.local";
/// The `ClusterIP`, behind which the stand-ins for `EdgeMesh`'s proxy listen.
const CLUSTER_IP: Ipv4Addr = Ipv4Addr::LOCALHOST;
const OTHER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 8);
/// A broadcast address, to which a connection fails with `ENETUNREACH` although there is a route.
const UNREACHABLE: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);
/// What `EdgeMesh` takes to give up an endpoint that refuses, and an agent that was killed.
const REFUSED_THERE: Duration = Duration::from_millis(3800);
const KILLED_THERE: Duration = Duration::from_millis(8800);

/// What a name server does with a question.
#[derive(Debug, Clone)]
enum Names {
    /// It knows the name, with this address.
    Know(Ipv4Addr),
    Unknown,
    Silent,
    Refuse,
}

/// What a connection to the `ClusterIP` meets.
#[derive(Debug, Clone, Copy)]
enum Proxy {
    Refuses,
    /// The packets to the address are lost.
    Drops,
    /// A router answers that the address is unreachable.
    Unreachable,
    ClosesAfter(Duration),
    Hangs,
    Answers,
}

/// Keeps the sockets of a stand-in open.
#[derive(Debug, Default)]
struct Open(Vec<std::net::UdpSocket>, Vec<TcpListener>, Vec<TcpStream>, Vec<TcpSocket>);

async fn name_server(names: &Names, open: &mut Open) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let (code, addresses) = match names {
        Names::Refuse => {
            // A connected socket keeps the port, and the kernel refuses the packets of others.
            socket.connect((Ipv4Addr::LOCALHOST, 9)).await.unwrap();
            open.0.push(socket.into_std().unwrap());
            return address;
        }
        Names::Silent => {
            open.0.push(socket.into_std().unwrap());
            return address;
        }
        Names::Unknown => (3, vec![]),
        Names::Know(address) => (0, vec![*address]),
    };
    tokio::spawn(async move {
        let mut query = [0; 512];
        loop {
            let (length, client) = socket.recv_from(&mut query).await.unwrap();
            let answer = dns::tests::response(&query[..length], code, &addresses);
            socket.send_to(&answer, client).await.unwrap();
        }
    });
    address
}

async fn proxy(proxy: Proxy, open: &mut Open) -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((CLUSTER_IP, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    match proxy {
        // Bound, but not listening.
        Proxy::Refuses => open.3.push(socket),
        Proxy::Unreachable => return (UNREACHABLE, address.port()).into(),
        Proxy::Hangs => open.1.push(socket.listen(16).unwrap()),
        Proxy::Drops => {
            // The kernel drops the packets to a listener whose queue is full.
            open.1.push(socket.listen(1).unwrap());
            let wait = Duration::from_millis(500);
            while let Ok(filled) = timeout(wait, TcpStream::connect(address)).await {
                open.2.push(filled.unwrap());
            }
        }
        Proxy::ClosesAfter(_) | Proxy::Answers => {
            let listener = socket.listen(16).unwrap();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                if let Proxy::ClosesAfter(time) = proxy {
                    sleep(time).await;
                } else {
                    stream.write_all(b"HTTP/1.1 404 Not Found\r\n\r\n").await.unwrap();
                }
            });
        }
    }
    address
}

/// The findings of the doctor beside these stand-ins. `has_entry`: the worker has a host entry, and
/// otherwise its container uses the name server.
async fn findings(names: &Names, behind: Proxy, has_entry: bool) -> Vec<Finding> {
    let mut open = Open::default();
    let server = name_server(names, &mut open).await;
    let address = proxy(behind, &mut open).await;
    let host = CloudHost {
        host: HOST.to_owned(),
        used_by: "ns1/jointinferenceservices/s".to_owned(),
        port: Some(address.port()),
        protocol: Protocol::Http,
        entry: has_entry.then_some(address.ip()),
        ca_file: None,
    };
    let containers = if has_entry { vec![] } else { vec![server] };
    let servers = NameServers { containers, edge_mesh: Some(server) };
    let used = if has_entry { vec![] } else { vec![EDGE_MESH_DNS] };
    let pending = PendingChecks::default();
    let (facts, edge_mesh) = tokio::join!(
        follow(host, &servers, Path::new("/nowhere"), &pending),
        crate::commands::doctor::name_server::edge_mesh(server, vec![address.ip()]),
    );
    cloud_workers(&[facts], &edge_mesh, &used)
}

#[tokio::test]
async fn each_state_of_edgemesh_has_its_cause() {
    use Cause as C;
    let know = Names::Know(CLUSTER_IP);
    let here = [C::AgentAbsent, C::AgentStarting];
    let hanging = [C::WorkerHangs, C::AgentThere, C::Tunnel];
    let refusing = [C::WorkerRefuses, C::AgentThere, C::Tunnel];
    let killed_there = [C::AgentThere, C::Tunnel, C::WorkerRefuses];
    let closes = Proxy::ClosesAfter;
    let states: &[(&str, Names, Proxy, &[Cause])] = &[
        ("agent killed", Names::Refuse, Proxy::Refuses, &[C::AgentDied, C::AgentStarting]),
        ("agent stopped", Names::Refuse, Proxy::Drops, &here),
        ("agent stopped, router answers", Names::Refuse, Proxy::Unreachable, &here),
        ("agent hangs", Names::Silent, Proxy::Hangs, &[C::AgentHangs]),
        ("agent there killed", know.clone(), closes(KILLED_THERE), &killed_there),
        ("agent there stopped", know.clone(), closes(REFUSED_THERE), &refusing),
        ("agent there hangs", know.clone(), Proxy::Hangs, &hanging),
        ("tunnel cut", know.clone(), Proxy::Hangs, &hanging),
        ("cloud worker refuses", know.clone(), closes(REFUSED_THERE), &refusing),
        ("cloud worker hangs", know.clone(), Proxy::Hangs, &hanging),
        ("stale entry", Names::Know(OTHER_IP), Proxy::Drops, &[C::StaleEntry]),
        (
            "stale entry, router answers",
            Names::Know(OTHER_IP),
            Proxy::Unreachable,
            &[C::StaleEntry],
        ),
        ("Service deleted", Names::Unknown, Proxy::Drops, &[C::ServiceGone]),
        ("no Endpoints", know.clone(), closes(Duration::ZERO), &[C::NoEndpoints]),
        ("relay away at the start", Names::Refuse, Proxy::Drops, &here),
    ];
    join_all(states.iter().map(async |(state, names, proxy, expected)| {
        let reported = findings(names, *proxy, true).await;
        assert_eq!(reported[0].level, Level::Error, "{state}: {reported:?}");
        let help = format!("hard samples do not reach the cloud; {}", listed(expected));
        assert_eq!(reported[0].help.as_deref(), Some(&*help), "{state}: {reported:?}");
        // The line about EdgeMesh does not contradict the one above.
        let is_here = expected[0] == C::AgentHangs || expected.contains(&C::AgentStarting);
        assert_eq!(reported[1].level == Level::Ok, !is_here, "{state}: {reported:?}");
    }))
    .await;
}

#[tokio::test]
async fn label_of_the_service_is_named_where_edgemesh_knows_its_name() {
    let reported = findings(&Names::Know(CLUSTER_IP), Proxy::Drops, true).await;
    let help = reported[0].help.as_deref().unwrap();
    assert!(help.contains("(1) EdgeMesh has no rule for the Service: remove the label"), "{help}");
}

#[tokio::test]
async fn answer_of_an_address_that_the_service_had_before_is_a_warning() {
    let reported = findings(&Names::Know(OTHER_IP), Proxy::Answers, true).await;
    assert_eq!(reported[0].level, Level::Warning);
    assert!(reported[0].seen.ends_with("but EdgeMesh answers 10.96.0.8"), "{reported:?}");
    let reported = findings(&Names::Know(CLUSTER_IP), Proxy::Answers, true).await;
    assert_eq!((reported.len(), reported[0].level), (1, Level::Ok), "{reported:?}");
}

#[tokio::test]
async fn silent_name_server_of_containers_is_the_agent_of_this_node() {
    let reported = findings(&Names::Silent, Proxy::Hangs, false).await;
    assert!(reported[0].seen.ends_with("127.0.0.1 does not answer within 2 s"), "{reported:?}");
    assert!(reported.iter().all(|it| it.help.as_deref().unwrap().contains("edgemesh-agent hangs")));
    let reported = findings(&Names::Know(CLUSTER_IP), Proxy::Answers, false).await;
    assert!(
        reported[0].seen.contains("answers HTTP 404"),
        "the name server's address: {reported:?}"
    );
}
