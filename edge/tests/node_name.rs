//! Renamed nodes, and two agents of one name, with real Docker and real brokers.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use harness::{
    Agent, Broker, BusyboxImage, Cloud, IDLE, MODEL, SERVICE, docker, eventually, local_model,
    run_service, runs, service, unique,
};
use neptune_wire::{NodeProblemReason, NodeReport, StatusReport};

/// The problem that another agent uses the node's name, if the node reports it.
fn problem(report: &NodeReport) -> Option<&str> {
    let mut problems = report.problems.iter();
    let name_in_use = problems.find(|it| it.reason == NodeProblemReason::NodeNameInUse);
    name_in_use.map(|problem| problem.message.as_str())
}

fn logged(agent: &Agent, text: &str) -> usize {
    agent.log().matches(text).count()
}

#[tokio::test]
async fn renamed_node_removes_only_containers_of_its_earlier_name() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut agents = [Agent::started(&broker.url()), Agent::started(&broker.url())];
    for agent in &agents {
        let cloud = Cloud::connect(agent);
        run_service(&cloud, agent, &image).await;
    }
    let theirs = agents[1].containers();
    agents[0].terminate().await;
    let (earlier, before) = (agents[0].node.clone(), agents[0].containers());
    agents[0].node = unique("renamed").parse().unwrap();
    agents[0].start();
    eventually("the earlier containers to be removed", || {
        docker::node_containers(earlier.as_str()).is_empty()
    })
    .await;
    let log = agents[0].log();
    assert!(log.contains("earlier node name") && log.contains(&before[0]), "{log}");
    // The stored service runs under the new name, and the other agent's is untouched.
    eventually("the new container", || agents[0].containers().len() == 1).await;
    assert_eq!(agents[1].containers(), theirs);
}

#[tokio::test]
async fn two_agents_of_one_node_name_are_detected_and_yield() {
    let (broker, image) = (Broker::start().await, BusyboxImage::import());
    let mut first = Agent::started(&broker.url());
    let cloud = Cloud::connect(&first);
    run_service(&cloud, &first, &image).await;
    let mut second = Agent::new(&broker.url());
    second.node = first.node.clone();
    second.start();
    let report = cloud.node("the name in use", |report| problem(report).is_some()).await;
    assert!(problem(&report).unwrap().contains("stop the other agent"), "{report:?}");
    eventually("both to see the other client", || {
        [&first, &second].iter().all(|it| logged(it, "another client with this client ID") == 1)
    })
    .await;
    // Both pause for longer and longer.
    let ups = logged(&first, "link up") + logged(&second, "link up");
    assert!(ups < 30, "{ups} connections");
    let starts = logged(&first, "worker started") + logged(&second, "worker started");
    assert!(starts < 12, "{starts} containers");
    // The doctor names the cause while the agent runs.
    let doctor = String::from_utf8(first.doctor(&[]).stdout).unwrap();
    let expected = format!("another agent uses the node name {}", first.node);
    assert!(
        doctor.contains(&expected) && doctor.contains("copy of the data directory"),
        "{doctor}"
    );
    // Without the other one, the service runs and the problem ends.
    second.kill();
    first.terminate().await;
    first.start();
    let well = |report: &NodeReport| report.online && report.problems.is_empty();
    cloud.node("well again", |report| report.epoch == 2 && well(report)).await;
    cloud.status(SERVICE, "running", |report| report.epoch == 2 && runs(report)).await;
}

#[tokio::test]
async fn agents_of_one_name_at_other_brokers_are_detected_by_their_containers() {
    let (brokers, image) = ([Broker::start().await, Broker::start().await], BusyboxImage::import());
    let first = Agent::started(&brokers[0].url());
    let first_cloud = Cloud::connect(&first);
    let worker = run_service(&first_cloud, &first, &image).await;
    let mut second = Agent::new(&brokers[1].url());
    second.node = first.node.clone();
    second.start();
    let second_cloud = Cloud::connect(&second);
    // Another specification of the same worker: both replace the container of the other one.
    second_cloud.insert(MODEL, &local_model(&second));
    second_cloud.insert(SERVICE, &service(&worker, &image.0, &format!("{IDLE} # another")));
    for (cloud, broker) in [(&first_cloud, &brokers[0]), (&second_cloud, &brokers[1])] {
        let report = cloud.node("the name in use", |report| problem(report).is_some()).await;
        let message = problem(&report).unwrap();
        assert!(message.contains("another program replaces the containers"), "{message}");
        assert!(!message.contains(&broker.port().to_string()), "no takeover: {message}");
        let names_it = |report: &StatusReport| report.workers[0].message.contains("NodeNameInUse");
        cloud.status(SERVICE, "the name in use", names_it).await;
    }
    for agent in [&first, &second] {
        assert_eq!(logged(agent, "another client with this client ID"), 0);
    }
    // Both pause for longer and longer.
    let starts = logged(&first, "worker started") + logged(&second, "worker started");
    assert!(starts < 12, "{starts} containers");
}
