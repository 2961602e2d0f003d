//! `neptune-edge join` as a program against the real join server, and what follows: the agent at the
//! shipped broker, revocation, replacement, and the kills of what takes part.

mod site;

use std::time::Duration;

use neptune_api::{EdgeNode, JisConditionType, JointInferenceServiceStatus};
use neptune_e2e::{is_running, totals};
use neptune_harness::{eventually_async, unique, workspace::root};
use neptune_pinned_tls::{TlsKey, certificate_pin};

use self::site::{Machine, Site, assert_joined, assert_refused, output};
use crate::digits::{NAME, models};

fn is_online(node: &EdgeNode) -> bool {
    node.status.as_ref().is_some_and(|status| status.online == Some(true))
}

/// Whether the node is recorded with the key of this machine.
fn trusts(machine: &Machine) -> impl Fn(&EdgeNode) -> bool {
    let key = TlsKey::from_pem(&machine.data("tls.key"), "a machine").unwrap();
    move |node| node.spec.trusted_key.as_ref() == Some(&key.pin().0)
}

/// Asserts that certificate, key and settings of a machine belong together.
fn assert_complete(machine: &Machine) {
    let key = TlsKey::from_pem(&machine.data("tls.key"), "a machine").unwrap();
    assert_eq!(certificate_pin(&machine.data("certificate.pem")).as_ref(), Some(key.pin()));
    assert!(machine.has_joined());
}

fn counted(more: u64) -> impl Fn(&JointInferenceServiceStatus) -> bool {
    move |status| is_running(status) && totals(status).inference > more
}

#[tokio::test(flavor = "multi_thread")]
async fn joined_node_counts_until_it_is_revoked_and_its_successor_continues() {
    let models = models().await;
    let mut site = Site::start().await;
    let (edge, cloud) = (unique("edge"), unique("cloud"));
    let tokens = site.enroll(&[&edge, &cloud], &[]).await;
    let unused = &site.enroll(&[&edge], &[]).await[0];
    let (mut first, mut other) = (Machine::new(&site, &edge), Machine::new(&site, &cloud));
    // The join server works without the controller, which records the joins later.
    site.stop_controller();
    for (machine, token) in [(&first, &tokens[0]), (&other, &tokens[1])] {
        assert_joined(&machine.join(&site, token).await);
        assert_complete(machine);
    }
    first.start_agent();
    other.start_agent();
    site.start_controller();
    site.until_node(&edge, "the recorded key", trusts(&first)).await;

    for file in ["models", "service"] {
        let path = root().join(format!("examples/digits/{file}.yaml"));
        let text = std::fs::read_to_string(path).unwrap();
        let text = text.replace("${MODEL_SERVER}", &models.url());
        let endless = text.replace("value: \"1\"", "value: \"0\"");
        site.cluster.apply(&endless.replace("edge0", &edge).replace("cloud0", &cloud));
    }
    let status = site.until(NAME, "counters of a joined node", counted(0)).await;

    // The token was used, and the name has a key: another machine gets no certificate.
    let mut second = Machine::new(&site, &edge);
    assert_refused(&second.join(&site, &tokens[0]).await, "TokenUsed");
    assert_refused(&second.join(&site, unused).await, "NodeKeyKnown");
    let enrolled = site.cloud(&["enroll", &edge, "--url", &site.url()]).await;
    let text = String::from_utf8_lossy(&enrolled.stderr);
    assert!(!enrolled.status.success() && text.contains("--replace"), "{text}");
    assert!(!second.has_joined());
    // The same machine may repeat its line, also while its agent runs.
    assert_joined(&first.join(&site, &tokens[0]).await);

    let revoked = site.cloud(&["revoke", &edge]).await;
    assert!(revoked.status.success(), "{}", String::from_utf8_lossy(&revoked.stderr));
    site.until(NAME, "a service without its node", |status| !is_running(status)).await;
    assert_refused(&first.join(&site, &tokens[0]).await, "NodeRevoked");
    // Its session stays, in which it reaches nobody. The broker refuses the next one.
    let reload = async || site.broker.log().contains("Reloading config");
    eventually_async("the broker to read the list of revoked certificates", reload).await;
    let logged = first.log().len();
    first.stop_agent();
    first.start_agent();
    let is_refused = async || first.log()[logged..].contains("CertificateRevoked");
    eventually_async("the broker to refuse the certificate", is_refused).await;

    let token = &site.enroll(&[&edge], &["--replace"]).await[0];
    assert_joined(&second.join(&site, token).await);
    assert_complete(&second);
    site.until_node(&edge, "the key of its successor", trusts(&second)).await;
    first.stop_agent();
    second.start_agent();
    let before = totals(&status).inference;
    let status = site.until(NAME, "counters of the successor", counted(before)).await;
    assert_eq!(status.conditions.last().unwrap().type_, JisConditionType::Running);
    let node = site.until_node(&edge, "online", is_online).await;
    assert_eq!((node.spec.certificate_serials.len(), node.spec.revoked), (2, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn joins_during_kills_of_the_server_end_with_a_node_or_an_error_that_the_same_line_repairs() {
    const JOINS: usize = 20;
    /// In milliseconds: when the joins of a round begin, and how long the kills last about.
    const LASTS: u64 = 2000;
    const REPEATABLE: [&str; 4] = ["JoinUnreachable", "AnswerLost", "TooManyRequests", "NotReady"];
    let mut site = Site::start().await;
    let names: Vec<_> = (0..JOINS).map(|_| unique("edge")).collect();
    let nodes: Vec<_> = names.iter().map(String::as_str).collect();
    let tokens = site.enroll(&nodes, &[]).await;
    let machines: Vec<_> = nodes.iter().map(|node| Machine::new(&site, node)).collect();
    let mut failed = 0;
    // All machines run their line in each round. In the last one the server is not killed.
    for kills in [3, 3, 3, 0] {
        let joins = machines.iter().zip(&tokens).map(|(machine, token)| {
            let (line, begins) = (machine.join_command(&site, token), fastrand::u64(..LASTS));
            async move {
                tokio::time::sleep(Duration::from_millis(begins)).await;
                output(line).await
            }
        });
        let joins = tokio::spawn(futures::future::join_all(joins));
        let had_joined: Vec<_> = machines.iter().map(Machine::has_joined).collect();
        for _ in 0..kills {
            let starts = site.join_server_starts();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..LASTS / kills))).await;
            site.restart_join_server();
            site.until_join_server_answers(starts).await;
        }
        for ((machine, had_joined), ended) in
            machines.iter().zip(had_joined).zip(joins.await.unwrap())
        {
            if ended.status.success() {
                assert_complete(machine);
                continue;
            }
            let text = String::from_utf8_lossy(&ended.stderr);
            let is = |reason: &&str| text.contains(&format!("neptune-edge join: {reason}: "));
            assert!(kills > 0 && REPEATABLE.iter().any(is), "{text}");
            assert!(text.contains("\n  continue: "), "{text}");
            // The settings are as they were.
            assert_eq!(machine.has_joined(), had_joined, "{text}");
            failed += 1;
        }
    }
    println!("{JOINS} nodes joined; {failed} joins failed before, of {}", 3 * JOINS);
    assert!(failed > 0, "no join met a killed server");
    for (node, machine) in nodes.iter().zip(&machines) {
        let object = site.until_node(node, "the key of its machine", trusts(machine)).await;
        assert_eq!(object.spec.certificate_serials.len(), 1, "{object:?}");
    }
    let secrets = tokens.iter().filter_map(|token| token.split(':').nth(3));
    let log = site.join_server_log();
    assert!(secrets.into_iter().all(|secret| !log.contains(secret)));
}

/// Clocks before the fleet began, and after each certificate that was valid then: the joins of both
/// nodes, and their connections to the broker.
#[tokio::test(flavor = "multi_thread")]
async fn node_joins_and_connects_with_a_clock_of_1970_and_of_2040() {
    let site = Site::start().await;
    for (clock, direction) in
        [("1970-01-02 00:00:00", "behind"), ("2040-06-01 00:00:00", "ahead of")]
    {
        let node = unique("edge");
        let token = &site.enroll(&[&node], &[]).await[0];
        let mut machine = Machine::with_clock(&site, &node, clock);
        let joined = machine.join(&site, token).await;
        let text = String::from_utf8_lossy(&joined.stderr).into_owned();
        assert!(text.contains(&format!("days {direction} the clock of the fleet")), "{text}");
        assert_complete(&machine);
        site.until_node(&node, "the recorded key", trusts(&machine)).await;
        machine.start_agent();
        site.until_node(&node, "online", is_online).await;
        let year = &clock[..4];
        assert!(machine.log().contains(&format!("{year}-")), "{}", machine.log());
    }
}
