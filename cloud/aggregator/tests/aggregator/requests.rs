//! Requests over real sockets: who may send what, repetitions, long polls, and slow clients.

use std::time::Duration;

use neptune_aggregator::run::Stage;
use neptune_aggregator_client::{AggregatorClient, RequestError};
use neptune_content::{Digest, client::Outcome};
use neptune_pinned_tls::TlsKey;
use neptune_wire::{
    AggregatorEndpoint, Metric, TaskId, TaskKind,
    aggregator::{RunEvaluation, RunPhase, UpdateAccepted, UpdateReport},
};
use reqwest::StatusCode;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    clients::{Peer, Server, keys, node_of, path, problem, refusal},
    fixtures::{npz, place, report, request, trained, values, with_initial},
};

#[tokio::test]
async fn client_of_the_controller_sends_runs_and_reads_states() {
    let directory = tempfile::tempdir().unwrap();
    let key = TlsKey::generate();
    let server = Server::start(directory.path(), &key);
    let client = |key: &TlsKey, pin: &TlsKey| {
        let url = format!("https://{}", server.address);
        AggregatorClient::new(key, AggregatorEndpoint { url, pin: pin.pin().clone() }).unwrap()
    };
    let (controller, run) = (client(&key, &key), request(1, 1));
    let sent = controller.put(&run).await.unwrap();
    let state = controller.state(None).await.unwrap().unwrap();
    assert_eq!((sent.run, state.run), (run.run, run.run));
    assert_eq!(controller.state(Some(0)).await.unwrap(), controller.state(None).await.unwrap());
    let refused = |result| match result {
        Err(RequestError::Refused(problem)) => problem.reason,
        other => panic!("{other:?}"),
    };
    let mut other = run.clone();
    other.uid = "of another TrainingModel".to_owned();
    assert_eq!(refused(controller.put(&other).await), "OtherTrainingModel");
    let foreign = TlsKey::generate();
    assert_eq!(refused(client(&foreign, &key).put(&run).await), "NodeNotTrusted");
    match client(&key, &foreign).put(&run).await {
        Err(RequestError::Unreachable(why)) => assert!(why.contains("not the pinned"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nodes_train_rounds_and_anybody_downloads_the_result() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let mut request = request(3, 2);
    let keys = keys(&mut request, 3);
    let nodes: Vec<_> = keys.iter().map(|it| server.node(it)).collect();
    let controller = server.controller();
    controller.put_run(&request).await;
    let status = controller.wait_for(|it| !it.tasks.is_empty()).await;
    assert_eq!(status.tasks[0].kind, TaskKind::Initialize);
    nodes[node_of(&status.tasks[0])].train(&status.tasks[0]).await;
    for round in 1..=2 {
        let status = controller.wait_for_round(round).await;
        assert_eq!(status.tasks.len(), 3);
        let base = status.base.unwrap().sha256;
        for task in &status.tasks {
            let node = &nodes[node_of(task)];
            // Each node reads the base over TLS, and nobody without.
            let content = node.get(&format!("/v1/content/{base}")).await;
            assert_eq!(Digest::of_bytes(&content.bytes().await.unwrap()).to_string(), base);
            let public = reqwest::get(server.plain(&format!("/v1/content/{base}"))).await.unwrap();
            assert_eq!(public.status(), StatusCode::NOT_FOUND);
            node.train(task).await;
        }
    }
    let status = controller.wait_for_phase(RunPhase::Succeeded).await;
    assert_eq!(status.format.as_deref(), Some("npz"));
    let best = status.best.unwrap().weights;
    let url = server.plain(&format!("/v1/content/{}/weights.npz", best.sha256));
    let content = reqwest::get(url).await.unwrap().bytes().await.unwrap();
    assert_eq!(Digest::of_bytes(&content).to_string(), best.sha256);
    assert_eq!(content.len() as u64, best.bytes);
    let metrics = reqwest::get(server.plain("/metrics")).await.unwrap().text().await.unwrap();
    for line in [
        "neptune_aggregator_rounds_total{result=\"closed\"} 2",
        "neptune_aggregator_updates_total{result=\"accepted\"} 7",
        "neptune_aggregator_round 2",
        "neptune_aggregator_samples 1032",
        "neptune_aggregator_worker_seconds{node=\"edge0\"} 4.0",
        "neptune_aggregator_round_seconds_count 2",
        "neptune_aggregator_aggregate_seconds_count 2",
        "neptune_aggregator_resent_bytes_total 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

/// A server with a run whose first weights are there, in round 1.
async fn open_round(directory: &std::path::Path, workers: usize) -> (Server, Vec<TlsKey>, Peer) {
    let server = Server::start(directory, &TlsKey::generate());
    let mut request = request(workers, 2);
    let keys = keys(&mut request, workers);
    let controller = server.controller();
    controller.put_run(&request).await;
    let task = controller.state().await.tasks[0].clone();
    server.node(&keys[0]).train(&task).await;
    controller.wait_for_round(1).await;
    (server, keys, controller)
}

#[tokio::test]
async fn own_key_commands_nothing_if_the_controller_has_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let (own, controller) = (TlsKey::generate(), TlsKey::generate());
    let server = Server::commanded_by(controller.pin(), directory.path(), &own);
    let refused = server.controller().put("/v1/run", &request(2, 2)).await;
    assert_eq!(refusal(refused).await, (StatusCode::FORBIDDEN, "NodeNotTrusted".to_owned()));
    assert_eq!(server.node(&controller).put_run(&request(2, 2)).await.run, 1);
}

#[tokio::test]
async fn node_may_send_only_results_of_its_own_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 2).await;
    let status = controller.state().await;
    let task = &status.tasks[0];
    let base = format!("/v1/content/{}", status.base.unwrap().sha256);
    let bytes = trained(task);
    let unknown = server.node(&TlsKey::generate());
    let other = server.node(&keys[1 - node_of(task)]);
    let expected = (StatusCode::FORBIDDEN, "NodeNotTrusted".to_owned());
    for peer in [&unknown, &other, &controller] {
        let report = peer.report(&task.id, &bytes, &report()).await;
        assert_eq!(refusal(report).await, expected);
        let patch = peer.patch(&task.id, &bytes, 0, bytes.len()).await;
        assert_eq!(refusal(patch).await, expected);
        assert_eq!(peer.head(&path(&task.id, &bytes)).await.status(), StatusCode::FORBIDDEN);
        let evaluation =
            peer.put(&format!("/v1/evaluations/{}", task.id.0), &UpdateReport::default()).await;
        assert_eq!(refusal(evaluation).await, expected);
    }
    for peer in [&unknown, &other] {
        assert_eq!(refusal(peer.put("/v1/run", &request(2, 2)).await).await, expected);
        assert_eq!(refusal(peer.get("/v1/state").await).await, expected);
    }
    assert_eq!(refusal(unknown.get(&base).await).await, expected);
    // Updates of others are private, also between nodes.
    let own = server.node(&keys[node_of(task)]);
    own.train(task).await;
    let update = format!("/v1/content/{}", Digest::of_bytes(&bytes));
    assert_eq!(other.get(&update).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(controller.get(&update).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn key_that_the_controller_replaces_is_refused_from_then_on() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let new = TlsKey::generate();
    let mut request = request(1, 2);
    request.nodes.insert("edge0".parse().unwrap(), new.pin().clone());
    controller.put_run(&request).await;
    let outcome = server.node(&keys[0]).send(&task.id, &trained(&task), &report()).await;
    assert!(matches!(outcome, Outcome::Refused(StatusCode::FORBIDDEN, _)), "{outcome:?}");
    server.node(&new).train(&task).await;
}

#[tokio::test]
async fn last_block_without_a_report_is_refused_with_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let node = server.node(&keys[0]);
    let Outcome::Refused(status, text) = node.upload(&task.id, &trained(&task)).await else {
        panic!("accepted without a report")
    };
    assert_eq!((status, &*problem(&text).0), (StatusCode::CONFLICT, "ReportMissing"));
    assert!(problem(&text).1.contains("PUT .../report before the last block"));
    node.train(&task).await;
}

#[tokio::test]
async fn lost_responses_are_repeated_also_after_the_round_closed() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let (node, bytes) = (server.node(&keys[0]), trained(&task));
    node.report(&task.id, &bytes, &report()).await;
    let first: UpdateAccepted =
        node.patch(&task.id, &bytes, 0, bytes.len()).await.json().await.unwrap();
    controller.wait_for_round(2).await;
    let again = node.patch(&task.id, &bytes, 0, bytes.len()).await;
    assert_eq!(again.status(), StatusCode::CREATED);
    assert_eq!(again.json::<UpdateAccepted>().await.unwrap(), first);
    let head = node.head(&path(&task.id, &bytes)).await;
    assert_eq!(
        (head.status(), &head.headers()["upload-complete"]),
        (StatusCode::NO_CONTENT, &"?1".parse().unwrap())
    );
    let other = refusal(node.patch(&task.id, b"other", 0, 5).await).await;
    assert_eq!(other, (StatusCode::CONFLICT, "OtherUpdateAccepted".to_owned()));
    let unknown = TaskId(Digest::of_bytes(b"unknown").to_string());
    let closed = refusal(node.patch(&unknown, b"other", 0, 5).await).await;
    assert_eq!(closed, (StatusCode::GONE, "RoundClosed".to_owned()));
}

#[tokio::test]
async fn complete_update_without_a_verdict_is_judged_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let bytes = trained(&task);
    server.node(&keys[0]).report(&task.id, &bytes, &report()).await;
    // As if the program was killed between the last block and the verdict.
    place(&server.aggregator, &bytes);
    let node = server.node(&keys[0]);
    let head = node.head(&path(&task.id, &bytes)).await;
    assert_eq!(&head.headers()["upload-complete"], "?0");
    assert!(matches!(node.upload(&task.id, &bytes).await, Outcome::Accepted(_)));
    controller.wait_for_round(2).await;
}

#[tokio::test]
async fn evaluation_counts_once_and_needs_its_metric() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let mut request = request(1, 1);
    let keys = keys(&mut request, 1);
    request.settings.evaluation = Some(RunEvaluation {
        node: "edge0".parse().unwrap(),
        dataset: "digits-test".parse().unwrap(),
        metric: "accuracy".to_owned(),
        minimize: false,
        every: 1,
        present: None,
    });
    let (controller, node) = (server.controller(), server.node(&keys[0]));
    controller.put_run(&request).await;
    for _ in 0..2 {
        let status = controller.wait_for(|it| !it.tasks.is_empty()).await;
        node.train(&status.tasks[0]).await;
    }
    let task = controller.wait_for_phase(RunPhase::Evaluating).await.tasks[0].clone();
    let url = |id: &TaskId| format!("/v1/evaluations/{}", id.0);
    let (status, reason) = refusal(node.put(&url(&task.id), &report()).await).await;
    assert_eq!((status, &*reason), (StatusCode::CONFLICT, "EvaluationFailed"));
    let next = controller.state().await.tasks[0].clone();
    assert_ne!(next.id, task.id);
    let metrics = vec![Metric { key: "accuracy".to_owned(), value: "0.943".to_owned() }];
    let measured = UpdateReport { metrics: metrics.clone(), ..report() };
    let (status, reason) = refusal(node.put(&url(&task.id), &measured).await).await;
    assert_eq!((status, &*reason), (StatusCode::GONE, "RoundClosed"));
    for _ in 0..2 {
        assert_eq!(node.put(&url(&next.id), &measured).await.status(), StatusCode::CREATED);
    }
    let status = controller.wait_for_phase(RunPhase::Succeeded).await;
    assert_eq!(status.best.unwrap().metrics, metrics);
}

#[tokio::test]
async fn poll_returns_at_a_change_or_after_its_wait() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let controller = server.controller();
    let revision = controller.put_run(&request(1, 1)).await.revision;
    let unchanged = controller.get(&format!("/v1/state?after={revision}&wait=1")).await;
    assert_eq!(unchanged.status(), StatusCode::NOT_MODIFIED);
    // A controller that knows a higher revision has seen files that are lost.
    let lost = controller.get(&format!("/v1/state?after={}&wait=20", revision + 9)).await;
    assert_eq!(lost.status(), StatusCode::OK);
    let poll = tokio::spawn({
        let controller = server.controller();
        async move { controller.wait_for(|it| it.phase == RunPhase::Suspended).await.revision }
    });
    let mut suspended = request(1, 1);
    suspended.run = 2;
    suspended.suspended = true;
    let status = controller.put_run(&suspended).await;
    assert_eq!(poll.await.unwrap(), status.revision);
    let ended = refusal(controller.put("/v1/run", &request(1, 1)).await).await;
    assert_eq!(ended, (StatusCode::CONFLICT, "RunEnded".to_owned()));
}

#[tokio::test]
async fn connection_without_tls_has_only_public_routes() {
    let directory = tempfile::tempdir().unwrap();
    let (server, ..) = open_round(directory.path(), 1).await;
    let get = async |path: &str| reqwest::get(server.plain(path)).await.unwrap();
    assert_eq!(get("/healthz").await.text().await.unwrap(), "ok\n");
    assert!(get("/metrics").await.text().await.unwrap().contains("neptune_aggregator_round 1"));
    for path in ["/v1/state", "/v1/run", "/v1/updates/a/b", "/v1/evaluations/a"] {
        assert_eq!(get(path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(get("/v1/content/not-a-digest").await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn slow_and_large_clients_do_not_affect_others() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let mut slow = Vec::new();
    for start in [&b""[..], b"GET / HT", b"\x16\x03\x01"].into_iter().cycle().take(150) {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(start).await.unwrap();
        slow.push(stream);
    }
    let node = server.node(&keys[0]);
    let large = "x".repeat(70 * 1024);
    let report_path = format!("{}/report", path(&task.id, b"x"));
    assert_eq!(node.put(&report_path, &large).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    node.train(&task).await;
    // Silent connections are closed in the end.
    let mut byte = [0];
    let closed = tokio::time::timeout(Duration::from_secs(30), slow[0].read(&mut byte)).await;
    assert_eq!(closed.unwrap().unwrap_or(0), 0);
}

#[tokio::test]
async fn first_weights_of_the_aggregator_need_no_download() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let mut first = request(1, 1);
    let keys = keys(&mut first, 1);
    let (controller, node) = (server.controller(), server.node(&keys[0]));
    controller.put_run(&first).await;
    for _ in 0..2 {
        let status = controller.wait_for(|it| !it.tasks.is_empty()).await;
        node.train(&status.tasks[0]).await;
    }
    let best = controller.wait_for_phase(RunPhase::Succeeded).await.best.unwrap().weights;
    let mut next = with_initial(first, best.sha256.clone());
    next.run = 2;
    controller.put_run(&next).await;
    let status = controller.wait_for_round(1).await;
    assert_eq!(status.base, Some(best));
    let mut unknown = with_initial(next, Digest::of_bytes(b"unknown").to_string());
    unknown.run = 3;
    controller.put_run(&unknown).await;
    let status = controller.wait_for_phase(RunPhase::Failed).await;
    assert_eq!(status.reason.as_deref(), Some("DownloadFailed"));
    assert!(status.message.contains("the aggregator does not have the weights"));
    assert_eq!(server.aggregator.run().unwrap().stage, Stage::Failed);
}

#[tokio::test]
async fn updates_that_arrive_together_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let (server, keys, controller) = open_round(directory.path(), 1).await;
    let task = controller.state().await.tasks[0].clone();
    let (node, first) = (server.node(&keys[0]), trained(&task));
    let mut values = values(&task);
    values[3][0] /= 2.0;
    let second = npz(&values);
    let send = async |bytes: &[u8]| {
        let report = node.report(&task.id, bytes, &report()).await;
        let patch = node.patch(&task.id, bytes, 0, bytes.len()).await;
        (report.status(), patch.status())
    };
    // The report of one may replace that of another one, which is then sent again.
    let mut accepted = 0;
    while accepted == 0 {
        let statuses = tokio::join!(send(&first), send(&second), send(&first), send(&second));
        let all = [statuses.0, statuses.1, statuses.2, statuses.3].map(|it| it.1);
        accepted += all.iter().filter(|it| **it == StatusCode::CREATED).count();
        let known = [StatusCode::CREATED, StatusCode::CONFLICT, StatusCode::GONE];
        assert!(all.iter().all(|it| known.contains(it)), "{all:?}");
    }
    let status = controller.wait_for_round(2).await;
    assert_eq!((status.history.len(), status.history[0].participants), (1, 1));
    let again = [send(&first).await.1, send(&second).await.1];
    let mut again = again.map(|it| it.as_u16());
    again.sort_unstable();
    assert_eq!(again, [201, 409]);
}

#[tokio::test]
async fn round_closes_at_its_deadline_without_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let mut request = request(2, 1);
    let keys = keys(&mut request, 2);
    request.settings.min_workers = Some(1);
    request.settings.round_timeout_seconds = Some(1);
    let controller = server.controller();
    controller.put_run(&request).await;
    let task = controller.state().await.tasks[0].clone();
    server.node(&keys[0]).train(&task).await;
    // Nobody has answered at the first deadline.
    let status = controller.wait_for(|it| it.reason.is_some()).await;
    let text = "round 1: 0 of at least 1 workers answered within 1s; \
        waiting (onTooFewWorkers: Wait); repair the workers, or start another run: \
        kubectl neptune training restart";
    assert_eq!((status.reason.as_deref(), &*status.message), (Some("TooFewWorkers"), text));
    let task = status.tasks[1].clone();
    server.node(&keys[1]).train(&task).await;
    let status = controller.wait_for_phase(RunPhase::Succeeded).await;
    assert_eq!(status.history[0].participants, 1);
}
