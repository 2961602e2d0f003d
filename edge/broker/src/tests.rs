//! The embedded broker with real connections: links of this project, and raw bytes.
#![allow(clippy::disallowed_methods)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use neptune_agent_core::{
    domain::observed_container::ObservedContainer, fixtures::observed_container,
};
use neptune_harness::{Attack, under_attack::judge};
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_program::listen::{self, Refusal, Refusals};
use neptune_wire::{TopicPrefix, WorkerName};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    credentials::{BrokerCredentials, OBSERVER_USER},
    encode,
    hub::Hub,
    listener::SERVER,
    notes::WorkerNotes,
    packet::{Login, MAX_PAYLOAD},
    supervisor::{ProbeTimes, Supervisor},
};

const TIMEOUT: Duration = Duration::from_secs(20);

struct Broker {
    address: SocketAddr,
    credentials: Arc<BrokerCredentials>,
    supervisor: Supervisor,
}

/// A broker on a free port, without an instance yet, for which the containers were observed.
fn broker(allow_anonymous: bool) -> Broker {
    observable_broker(allow_anonymous).0
}

/// Returns the broker of [`broker`] with the password of the observer.
fn observable_broker(allow_anonymous: bool) -> (Broker, String) {
    let listener = listen::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap().into_std().unwrap();
    let address = listener.local_addr().unwrap();
    let notes = WorkerNotes::new(|| ());
    let (credentials, observer) = BrokerCredentials::new(address, allow_anonymous, notes).unwrap();
    credentials.set_observed(&[], |_| false);
    let credentials = Arc::new(credentials);
    let times =
        ProbeTimes { interval: Duration::from_millis(100), timeout: Duration::from_millis(300) };
    let supervisor = Supervisor {
        listener,
        address,
        prefix: TopicPrefix::default(),
        credentials: Arc::clone(&credentials),
        consumer: None,
        messages: Arc::default(),
        times,
        refusals: Refusals::default(),
    };
    (Broker { address, credentials, supervisor }, observer)
}

/// Starts a broker. Returns its address and its logins.
fn started(allow_anonymous: bool) -> (SocketAddr, Arc<BrokerCredentials>) {
    let (address, credentials, _) = started_with_refusals(allow_anonymous);
    (address, credentials)
}

/// Starts a broker like [`started`], and returns its counters of refused connections as well.
fn started_with_refusals(allow_anonymous: bool) -> (SocketAddr, Arc<BrokerCredentials>, Refusals) {
    let Broker { address, credentials, supervisor } = broker(allow_anonymous);
    let refusals = supervisor.refusals.clone();
    let instance = supervisor.start_instance().unwrap();
    tokio::spawn(supervisor.run(instance));
    (address, credentials, refusals)
}

fn link(url: &str, id: &str, filters: &[&str]) -> (Link, LinkEvents) {
    let mut options = LinkOptions::new(url.parse().unwrap(), id);
    options.subscriptions = filters.iter().map(ToString::to_string).collect();
    Link::start(options).unwrap()
}

fn agent(credentials: &BrokerCredentials) -> (Link, LinkEvents) {
    link(&credentials.agent_url(), "agent", &["neptune/workers/+/info"])
}

async fn next_message(events: &mut LinkEvents) -> Message {
    let next = async {
        loop {
            if let LinkEvent::Message(message) = events.next().await.unwrap() {
                return message;
            }
        }
    };
    timeout(TIMEOUT, next).await.expect("a message")
}

async fn next_up(events: &mut LinkEvents) {
    let next = async { while events.next().await.unwrap() != LinkEvent::Up {} };
    timeout(TIMEOUT, next).await.expect("a connection");
}

fn message(topic: &str, payload: &str) -> Message {
    Message { topic: topic.into(), payload: payload.to_owned().into(), retain: false }
}

fn name(worker: &str) -> WorkerName {
    worker.parse().unwrap()
}

fn login(url: &str) -> Login {
    let (user, rest) = url.strip_prefix("mqtt://").unwrap().split_once(':').unwrap();
    Login { user: user.into(), password: rest.split_once('@').unwrap().0.into() }
}

/// Sends bytes and reads until the broker closes the connection or nothing more comes.
async fn send(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The broker may close the connection meanwhile.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("the broker closes");
    answer
}

#[tokio::test]
async fn worker_reports_only_for_itself() {
    let (_, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let (url_a, url_b) = (
        credentials.issue(&name("a")).unwrap().mqtt_url,
        credentials.issue(&name("b")).unwrap().mqtt_url,
    );
    let (a, _a) = link(&url_a, "a", &[]);
    let (b, _b) = link(&url_b, "b", &[]);
    a.publish(message("neptune/workers/b/info", "forged")).unwrap();
    a.publish(message("neptune/workers/b/reload", "forged")).unwrap();
    timeout(TIMEOUT, a.flushed()).await.unwrap();
    b.publish(message("neptune/workers/b/info", "own")).unwrap();
    let delivered = next_message(&mut received).await;
    assert_eq!(
        (delivered.topic.as_str(), &*delivered.payload),
        ("neptune/workers/b/info", &b"own"[..])
    );
    assert!(credentials.notes.text(&name("a")).contains("use WORKER_INFO_TOPIC"));
    assert_eq!(credentials.notes.text(&name("b")), "");
    // The subscription of another worker's messages is refused.
    let (_spy, mut events) = link(&url_a, "spy", &["neptune/workers/b/info"]);
    let event = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
    let LinkEvent::Down { reason } = event else { panic!("{event:?}") };
    assert!(reason.contains("refused the subscription"), "{reason}");
}

#[tokio::test]
async fn client_without_login_is_refused_unless_allowed() {
    for allowed in [false, true] {
        let (address, credentials) = started(allowed);
        credentials.issue(&name("a")).unwrap();
        let (_agent, mut received) = agent(&credentials);
        next_up(&mut received).await;
        let (client, mut events) = link(&format!("mqtt://{address}"), "x", &[]);
        client.publish(message("neptune/workers/a/info", "1")).unwrap();
        let event = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
        assert_eq!(event == LinkEvent::Up, allowed, "{event:?}");
        if allowed {
            assert_eq!(&*next_message(&mut received).await.payload, b"1");
        }
        assert!(credentials.notes.text(&name("a")).contains("user and password of MQTT_URL"));
    }
}

#[tokio::test]
async fn reload_reaches_only_its_worker_and_later_subscribers() {
    let (_, credentials) = started(false);
    let (agent, _events) = agent(&credentials);
    let url = credentials.issue(&name("a")).unwrap().mqtt_url;
    let topic = "neptune/workers/a/reload";
    let reload = Message { retain: true, ..message(topic, "path") };
    agent.publish(reload).unwrap();
    timeout(TIMEOUT, agent.flushed()).await.unwrap();
    let (_a, mut events) = link(&url, "a", &[topic]);
    let delivered = next_message(&mut events).await;
    assert_eq!((delivered.retain, &*delivered.payload), (true, &b"path"[..]));
    agent.publish(message(topic, "next")).unwrap();
    assert_eq!(&*next_message(&mut events).await.payload, b"next");
}

#[tokio::test]
async fn link_works_with_the_embedded_broker() {
    let (_, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let (a, _a) = link(&credentials.issue(&name("a")).unwrap().mqtt_url, "a", &[]);
    for number in 0..1000 {
        let sent = message("neptune/workers/a/info", &number.to_string());
        a.publish(sent.clone()).unwrap();
        assert_eq!(next_message(&mut received).await, sent);
    }
    timeout(TIMEOUT, a.flushed()).await.unwrap();
    a.close(TIMEOUT).await;
}

#[tokio::test]
async fn workers_message_is_never_retained() {
    let (_, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let url = credentials.issue(&name("a")).unwrap().mqtt_url;
    let (a, _events) = link(&url, "a", &[]);
    for number in 0..1000 {
        let topic = format!("neptune/workers/a/topic-{number}");
        a.publish(Message { retain: true, ..message(&topic, "x") }).unwrap();
    }
    a.publish(Message { retain: true, ..message("neptune/workers/a/info", "x") }).unwrap();
    let delivered = next_message(&mut received).await;
    assert!(!delivered.retain);
    timeout(TIMEOUT, a.flushed()).await.unwrap();
    let mut late = link(&credentials.agent_url(), "late", &["#", "neptune/workers/+/info"]);
    next_up(&mut late.1).await;
    a.publish(message("neptune/workers/a/info", "later")).unwrap();
    assert_eq!(&*next_message(&mut late.1).await.payload, b"later", "nothing was retained");
}

#[tokio::test]
async fn hostile_bytes_stop_no_other_client() {
    let (address, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let url = credentials.issue(&name("a")).unwrap().mqtt_url;
    let (b, _b) = link(&credentials.issue(&name("b")).unwrap().mqtt_url, "b", &[]);
    let login = login(&url);
    for id in ["a/b", "a+b", "a#b", "$b", "", "\u{1}", &"x".repeat(300)] {
        for _ in 0..2 {
            send(address, &encode::connect(id, &login)).await;
        }
    }
    let connect = encode::connect("a", &login);
    let shared = b"\x82\x0f\0\x01\0\x0a$share/g/a\x01";
    for bytes in [
        &b""[..],
        b"\x10\xff\xff\xff\xff\x7f",
        b"\x10\xff\xff\x7f",
        b"\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        &shared[..],
        &[0xff; 4096],
    ] {
        send(address, bytes).await;
        send(address, &[&connect, bytes].concat()).await;
    }
    let mut refused = send(address, &[&connect[..], shared].concat()).await;
    assert_eq!(refused.pop(), Some(0x80), "SUBACK refuses $share");
    b.publish(message("neptune/workers/b/info", "alive")).unwrap();
    assert_eq!(&*next_message(&mut received).await.payload, b"alive");
}

#[tokio::test]
async fn idle_connections_without_login_keep_no_worker_out() {
    let (address, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    next_up(&mut received).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let (a, _a) = link(&credentials.issue(&name("a")).unwrap().mqtt_url, "a", &[]);
    a.publish(message("neptune/workers/a/info", "x")).unwrap();
    assert_eq!(&*next_message(&mut received).await.payload, b"x");
}

/// Logs in over a new connection. Returns whether the broker accepts it.
async fn logs_in(address: SocketAddr, login: &Login) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&encode::connect("raw", login)).await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(TIMEOUT, exchange).await.expect("an answer or an end");
    answer.is_ok_and(|answer| answer == [0x20, 2, 0, 0])
}

/// Fails if the connection of the link was lost.
fn assert_stayed_up(events: &mut LinkEvents) {
    while let Ok(Some(event)) = futures::FutureExt::now_or_never(events.next()).ok_or(()) {
        assert!(!matches!(event, LinkEvent::Down { .. }), "the broker was restarted: {event:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_delay_no_login_and_restart_no_broker() {
    let (address, credentials, refusals) = started_with_refusals(false);
    let (_agent, mut received) = agent(&credentials);
    next_up(&mut received).await;
    let login = login(&credentials.issue(&name("a")).unwrap().mqtt_url);
    let [connect_and_close, others @ ..] = Attack::all("/");
    let request = || logs_in(address, &login);
    judge("workers' broker", (address, 100), &[connect_and_close], request).await;
    assert_eq!(refusals.total(SERVER, Refusal::PendingFull), 0);
    judge("workers' broker", (address, 100), &others, request).await;
    assert_stayed_up(&mut received);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_that_refuses_its_probe_is_not_restarted_while_it_works() {
    let (address, credentials, refusals) = started_with_refusals(false);
    let (_agent, mut received) = agent(&credentials);
    next_up(&mut received).await;
    let (a, _a) = link(&credentials.issue(&name("a")).unwrap().mqtt_url, "a", &[]);
    // Silent connections take all places of those without a login, for many probes.
    let (begun, mut silent) = (Instant::now(), Vec::new());
    let refused = || refusals.total(SERVER, Refusal::PendingFull);
    while begun.elapsed() < Duration::from_secs(2) || refused() < 100 {
        silent.push(TcpStream::connect(address).await.unwrap());
        if silent.len() > 400 {
            drop(silent.drain(..200));
        }
    }
    a.publish(message("neptune/workers/a/info", "x")).unwrap();
    assert_eq!(&*next_message(&mut received).await.payload, b"x");
    assert_stayed_up(&mut received);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observer_reads_a_burst_of_eight_workers_without_a_loss() {
    // Below the limit of a connection, above which messages with QoS 0 are dropped.
    const EACH: usize = 1500;
    let (Broker { address, credentials, mut supervisor }, password) = observable_broker(false);
    supervisor.consumer = Some(Arc::new(|_| ()));
    let instance = supervisor.start_instance().unwrap();
    tokio::spawn(supervisor.run(instance));
    let connected = async |login: &Login| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&encode::connect("raw", login)).await.unwrap();
        read(&mut stream, &[0x20, 2, 0, 0]).await;
        stream
    };
    let observer = Login { user: OBSERVER_USER.into(), password: password.into_bytes() };
    let mut observer = connected(&observer).await;
    observer.write_all(b"\x82\x06\0\x01\0\x01#\0").await.unwrap();
    read(&mut observer, &[0x90, 3, 0, 1, 0]).await;
    let mut expected = 0;
    for number in 0..8 {
        let worker = format!("w{number}");
        let login = login(&credentials.issue(&name(&worker)).unwrap().mqtt_url);
        let info = format!("neptune/workers/{worker}/info");
        let burst = encode::publish(&info, &[b'x'; 200], false, None).repeat(EACH);
        expected += burst.len();
        let mut stream = connected(&login).await;
        tokio::spawn(async move {
            stream.write_all(&burst).await.unwrap();
            // Keeps the connection until the broker ends.
            let _ = stream.read(&mut [0]).await;
        });
    }
    let (mut received, mut buffer) = (0, vec![0; 64 * 1024]);
    while received < expected {
        let more = timeout(TIMEOUT, observer.read(&mut buffer)).await.expect("more messages");
        let more = more.unwrap_or_default();
        assert!(more > 0, "disconnected after {received} of {expected} bytes");
        received += more;
    }
    assert_eq!(received, expected);
}

#[tokio::test]
async fn worker_with_mqtt_5_is_refused_in_its_version_and_noted() {
    let (address, credentials) = started(false);
    let sent = login(&credentials.issue(&name("a")).unwrap().mqtt_url);
    credentials.issue(&name("b")).unwrap();
    let mut connect = connect_with(&sent, 60, None);
    // Version 5 has the length of the properties after the keep-alive.
    connect[8] = 5;
    connect.insert(12, 0);
    connect[1] += 1;
    assert_eq!(send(address, &connect).await, [0x20, 3, 0, 0x84, 0]);
    assert!(credentials.notes.text(&name("a")).contains("set the worker's client to MQTT 3.1.1"));
    assert_eq!(credentials.notes.text(&name("b")), "");
}

#[tokio::test]
async fn client_that_sent_in_time_stays_while_the_agent_delays_it() {
    let (address, credentials) = started(false);
    let mut clients = Vec::new();
    for number in 0..8 {
        let worker = format!("w{number}");
        let login = login(&credentials.issue(&name(&worker)).unwrap().mqtt_url);
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(&connect_with(&login, 1, None)).await.unwrap();
        read(&mut client, &[0x20, 2, 0, 0]).await;
        let info = format!("neptune/workers/{worker}/info");
        client.write_all(&encode::publish(&info, b"x", false, Some(7))).await.unwrap();
        clients.push(client);
    }
    // The broker waits for the agent with the first message of each, and then for longer than their
    // keep-alive.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for client in &mut clients {
        client.write_all(&[0xc0, 0]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let (_agent, _received) = agent(&credentials);
    for client in &mut clients {
        read(client, &[0x40, 2, 0, 7, 0xd0, 0]).await;
    }
}

#[tokio::test]
async fn connection_of_a_removed_container_is_closed() {
    let (_, credentials) = started(false);
    let login = credentials.issue(&name("s-w-1")).unwrap();
    let (_a, mut events) = link(&login.mqtt_url, "a", &[]);
    next_up(&mut events).await;
    let container = ObservedContainer { password: Some(login.digest), ..observed_container("1") };
    credentials.set_observed(&[container], |_| false);
    assert!(timeout(Duration::from_millis(200), events.next()).await.is_err(), "it stays open");
    credentials.set_observed(&[], |_| false);
    let reasons = async {
        loop {
            if let Some(LinkEvent::Down { reason }) = events.next().await
                && reason.contains("user or the password")
            {
                return;
            }
        }
    };
    timeout(TIMEOUT, reasons).await.expect("the connection is closed and refused afterwards");
}

#[tokio::test]
async fn broker_that_does_not_answer_is_replaced() {
    let Broker { address, credentials, supervisor } = broker(false);
    let hub = Arc::new(Hub::new("neptune/workers/+/info".into(), None, Arc::default()));
    let instance = supervisor.start_instance_with(Arc::clone(&hub)).unwrap();
    // Its thread blocks for as long as another thread has the lock, as after a deadlock.
    let is_blocked = Arc::new(AtomicBool::new(true));
    let blocking = Arc::clone(&is_blocked);
    let (locked, until_locked) = std::sync::mpsc::channel();
    let blocker = thread::spawn(move || {
        hub.while_locked(|| {
            locked.send(()).unwrap();
            while blocking.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            }
        });
    });
    until_locked.recv().unwrap();
    let supervising = tokio::spawn(supervisor.run(instance));
    let (_agent, mut received) = agent(&credentials);
    next_up(&mut received).await;
    let (a, _a) = link(&credentials.issue(&name("a")).unwrap().mqtt_url, "a", &[]);
    a.publish(message("neptune/workers/a/info", "x")).unwrap();
    assert_eq!(&*next_message(&mut received).await.payload, b"x", "at {address}");
    is_blocked.store(false, Ordering::Relaxed);
    blocker.join().unwrap();
    supervising.abort();
}

#[tokio::test]
async fn ended_instance_is_replaced_at_once() {
    let Broker { credentials, mut supervisor, .. } = broker(false);
    supervisor.times.interval = Duration::from_secs(3600);
    let mut instance = supervisor.start_instance().unwrap();
    let (_agent, mut received) = agent(&credentials);
    next_up(&mut received).await;
    instance.stop();
    tokio::spawn(supervisor.run(instance));
    let begun = Instant::now();
    next_up(&mut received).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "not by a probe");
}

#[tokio::test]
async fn oversized_message_is_dropped_and_noted() {
    let (_, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let (a, _a) = link(&credentials.issue(&name("a")).unwrap().mqtt_url, "a", &[]);
    let topic = "neptune/workers/a/info";
    a.publish(message(topic, &"x".repeat(MAX_PAYLOAD + 1))).unwrap();
    timeout(TIMEOUT, a.flushed()).await.unwrap();
    a.publish(message(topic, &"y".repeat(MAX_PAYLOAD))).unwrap();
    let delivered = next_message(&mut received).await;
    assert_eq!((delivered.payload.len(), delivered.payload[0]), (MAX_PAYLOAD, b'y'));
    assert!(credentials.notes.text(&name("a")).contains("above 64 KiB"));
}

/// CONNECT with a login, a keep-alive in seconds, and a will on this topic.
fn connect_with(login: &Login, keep_alive: u8, will: Option<&str>) -> Vec<u8> {
    let flags = if will.is_some() { 0xc6 } else { 0xc2 };
    let mut body = [b"\0\x04MQTT\x04", &[flags, 0, keep_alive][..]].concat();
    let will = will.map(|topic| [topic, "will"]);
    let fields = ["raw"].into_iter().chain(will.into_iter().flatten());
    let password = std::str::from_utf8(&login.password).unwrap();
    for field in fields.chain([login.user.as_str(), password]) {
        body.extend(u16::try_from(field.len()).unwrap().to_be_bytes());
        body.extend(field.as_bytes());
    }
    encode::with_header(0x10, &body).to_vec()
}

async fn read(stream: &mut TcpStream, expected: &[u8]) {
    let mut answer = vec![0; expected.len()];
    timeout(TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn message_with_qos_2_is_delivered_once() {
    let (address, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let login = login(&credentials.issue(&name("a")).unwrap().mqtt_url);
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&connect_with(&login, 60, None)).await.unwrap();
    read(&mut client, &[0x20, 2, 0, 0]).await;
    let publish = |payload: &str| {
        let topic = b"\0\x16neptune/workers/a/info";
        encode::with_header(0x34, &[&topic[..], &[0, 9], payload.as_bytes()].concat())
    };
    for _ in 0..2 {
        client.write_all(&publish("first")).await.unwrap();
        read(&mut client, &[0x50, 2, 0, 9]).await;
    }
    client.write_all(&[0x62, 2, 0, 9]).await.unwrap();
    read(&mut client, &[0x70, 2, 0, 9]).await;
    client.write_all(&publish("second")).await.unwrap();
    for payload in ["first", "second"] {
        assert_eq!(&*next_message(&mut received).await.payload, payload.as_bytes());
    }
}

#[tokio::test]
async fn last_will_is_published_only_on_the_workers_own_topic() {
    let (address, credentials) = started(false);
    let (_agent, mut received) = agent(&credentials);
    let login = login(&credentials.issue(&name("a")).unwrap().mqtt_url);
    for topic in ["neptune/workers/b/info", "neptune/workers/a/info"] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(&connect_with(&login, 60, Some(topic))).await.unwrap();
        read(&mut client, &[0x20, 2, 0, 0]).await;
    }
    let delivered = next_message(&mut received).await;
    assert_eq!(
        (delivered.topic.as_str(), &*delivered.payload),
        ("neptune/workers/a/info", &b"will"[..])
    );
}

#[tokio::test]
async fn silent_client_is_disconnected_after_its_keep_alive() {
    let (address, credentials) = started(false);
    let login = login(&credentials.issue(&name("a")).unwrap().mqtt_url);
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&connect_with(&login, 1, None)).await.unwrap();
    read(&mut client, &[0x20, 2, 0, 0]).await;
    let begun = Instant::now();
    // An observation of the containers is no packet of the client.
    credentials.set_observed(&[], |_| true);
    assert_eq!(timeout(TIMEOUT, client.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test]
async fn consumer_has_a_message_before_it_is_acknowledged_and_after_a_restart() {
    let Broker { address, credentials, mut supervisor } = broker(false);
    let received = Arc::new(std::sync::Mutex::new(Vec::new()));
    let consumed = Arc::clone(&received);
    supervisor.consumer = Some(Arc::new(move |payload| consumed.lock().unwrap().push(payload)));
    credentials.permit(&name("a"), "secret");
    let acknowledged = async |payload: &str| {
        let login = Login { user: "a".into(), password: b"secret".to_vec() };
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&encode::connect("a", &login)).await.unwrap();
        let mut connack = [0; 4];
        stream.read_exact(&mut connack).await.unwrap();
        assert_eq!(connack[3], 0);
        let message = encode::publish("neptune/workers/a/info", payload.as_bytes(), false, Some(7));
        stream.write_all(&message).await.unwrap();
        let mut puback = [0; 4];
        timeout(TIMEOUT, stream.read_exact(&mut puback)).await.unwrap().unwrap();
        received.lock().unwrap().clone()
    };
    let mut instance = supervisor.start_instance().unwrap();
    assert_eq!(acknowledged("first").await, ["first"]);
    instance.stop();
    instance.ended().await;
    let _instance = supervisor.start_instance().unwrap();
    assert_eq!(acknowledged("second").await, ["first", "second"]);
}
