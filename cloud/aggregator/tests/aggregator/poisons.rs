//! Nine workers, one of which sends what it should not: refused or capped with its reason, and the
//! others' result is that of a run without it.

use neptune_content::{Digest, client::Outcome};
use neptune_pinned_tls::TlsKey;
use neptune_wire::{
    TaskId,
    aggregator::{
        FailedTask, ResultState, RunPhase, RunStatus, RunTask, UpdateReport, WorkerResult,
    },
};
use reqwest::StatusCode;

use crate::{
    clients::{Peer, Server, keys, node_of, problem},
    fixtures::{COUNTED, SHAPES, npy, npz, report, request, trained, values, zip},
};

const WORKERS: usize = 9;
/// Makes a file for a task.
type Make<'a> = &'a dyn Fn(&RunTask) -> Vec<u8>;
/// The worker that misbehaves in the second round.
const BAD: &str = "w4";

/// What the bad worker sees.
struct Attack<'a> {
    node: &'a Peer,
    task: &'a RunTask,
    /// The task of the bad worker in the round before, and what it sent then.
    last: &'a RunTask,
    /// The task of another worker in the same round.
    other: &'a RunTask,
}

impl Attack<'_> {
    async fn send(&self, bytes: &[u8]) -> Outcome {
        self.node.send(&self.task.id, bytes, &report()).await
    }
}

/// The numbers of an honest update with a change.
fn changed(task: &RunTask, change: impl Fn(&mut Vec<Vec<f32>>)) -> Vec<u8> {
    let mut values = values(task);
    change(&mut values);
    npz(&values)
}

/// Runs two rounds. In the second one the bad worker attacks, and fails if it has no result then.
async fn run(attack: impl AsyncFn(Attack<'_>)) -> RunStatus {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &TlsKey::generate());
    let mut request = request(WORKERS, 2);
    request.settings.min_workers = Some(8);
    let keys = keys(&mut request, WORKERS);
    let nodes: Vec<_> = keys.iter().map(|it| server.node(it)).collect();
    let controller = server.controller();
    controller.put_run(&request).await;
    let first = controller.wait_for(|it| !it.tasks.is_empty()).await.tasks[0].clone();
    nodes[0].train(&first).await;
    let first = controller.wait_for_round(1).await.tasks;
    for task in &first {
        nodes[node_of(task)].train(task).await;
    }
    let second = controller.wait_for_round(2).await.tasks;
    let task_of = |tasks: &[RunTask], worker: &str| {
        tasks.iter().find(|it| it.worker == worker).unwrap().clone()
    };
    let task = task_of(&second, BAD);
    let (last, other) = (task_of(&first, BAD), task_of(&second, "w7"));
    attack(Attack { node: &nodes[4], task: &task, last: &last, other: &other }).await;
    for task in second.iter().filter(|it| it.worker != BAD) {
        nodes[node_of(task)].train(task).await;
    }
    if controller.state().await.workers[BAD].state == ResultState::Pending {
        let (reason, message) = ("ScriptFailed".to_owned(), String::new());
        request.failed =
            vec![FailedTask { id: task.id.clone(), reason, message, is_refused: false }];
        controller.put_run(&request).await;
    }
    controller.wait_for_phase(RunPhase::Succeeded).await
}

/// The result of a run in which the bad worker sends nothing in the second round.
async fn expected_without() -> String {
    let status = run(async |_| {}).await;
    assert_eq!(status.history[1].participants, 8);
    weights(&status)
}

fn weights(status: &RunStatus) -> String {
    status.history[1].weights.clone().unwrap().sha256
}

fn refusal(outcome: &Outcome) -> (StatusCode, String, String) {
    let Outcome::Refused(status, text) = outcome else { panic!("{outcome:?}") };
    let (reason, detail) = problem(text);
    (*status, reason, detail)
}

#[tokio::test]
async fn files_that_are_not_an_update_are_refused_with_their_reason() {
    let expected = expected_without().await;
    let wide = |task: &RunTask| {
        let mut members = members(&values(task));
        members[0].1 = npy("<f4", &[64, 16], &vec![0; 64 * 16 * 4]);
        zip(&members)
    };
    let renamed = |task: &RunTask| {
        let mut members = members(&values(task));
        members[3].0 = "bias".to_owned();
        zip(&members)
    };
    let doubles = |task: &RunTask| {
        let mut members = members(&values(task));
        let data: Vec<u8> = (0..32).flat_map(|_| 0.5_f64.to_le_bytes()).collect();
        members[1].1 = npy("<f8", &[32], &data);
        zip(&members)
    };
    let cases: [(Make<'_>, &str, &str); 6] = [
        (
            &|it| changed(it, |all| all[2][118] = f32::NAN),
            "NotFinite",
            "sent NaN in \"w2\" (first at 118)",
        ),
        (
            &|it| changed(it, |all| all[0][0] = f32::NEG_INFINITY),
            "NotFinite",
            "sent -inf in \"w1\" (first at 0)",
        ),
        (&wide, "ShapeMismatch", "sent tensor \"w1\" with shape [64,16], the base has [64,32]"),
        (&renamed, "ShapeMismatch", "sent no tensor \"b2\""),
        (&doubles, "ShapeMismatch", "sent tensor \"b1\" with type F64, the base has F32"),
        (
            &|_| b"PK, but no archive".to_vec(),
            "OutputMissing",
            "sent a file that is not usable: malformed .npz file",
        ),
    ];
    for (make, reason, detail) in cases {
        let status = run(async |it| {
            let bytes = make(it.task);
            // A repeated request has the same answer, and another update changes nothing.
            for bytes in [&bytes, &bytes, &trained(it.task)] {
                let (status, actual, text) = refusal(&it.send(bytes).await);
                assert_eq!((status, &*actual), (StatusCode::UNPROCESSABLE_ENTITY, reason));
                assert!(text.starts_with(detail), "{text}");
            }
        })
        .await;
        let worker = &status.workers[BAD];
        assert_eq!((worker.state, worker.reason.as_deref()), (ResultState::Refused, Some(reason)));
        assert!(worker.message.starts_with(detail), "{}", worker.message);
        assert_eq!(weights(&status), expected, "{detail}");
    }
}

fn members(values: &[Vec<f32>]) -> Vec<(String, Vec<u8>)> {
    let all = SHAPES.iter().zip(values);
    let member = |((name, shape), values): (&(&str, &[usize]), &Vec<f32>)| {
        let data: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        ((*name).to_owned(), npy("<f4", shape, &data))
    };
    all.map(member).collect()
}

#[tokio::test]
async fn ten_gibibytes_are_refused_at_their_first_byte() {
    let expected = expected_without().await;
    let status = run(async |it| {
        for _ in 0..2 {
            let response = it.node.announce(&it.task.id, 10 << 30).await;
            assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY);
            let (reason, detail) = problem(&response.text().await.unwrap());
            assert_eq!(reason, "UpdateTooLarge");
            assert_eq!(detail, "sent an update of 10737418240 bytes, at most 1048576 are accepted");
        }
    })
    .await;
    assert_eq!(status.workers[BAD].reason.as_deref(), Some("UpdateTooLarge"));
    assert_eq!(weights(&status), expected);
}

#[tokio::test]
async fn update_times_minus_ten_is_refused_at_the_close() {
    let expected = expected_without().await;
    let status = run(async |it| {
        let bytes = changed(it.task, |all| all.iter_mut().flatten().for_each(|it| *it *= -10.0));
        assert!(matches!(it.send(&bytes).await, Outcome::Accepted(_)));
    })
    .await;
    let WorkerResult { state, reason, message, norm, .. } = &status.workers[BAD];
    assert_eq!((*state, reason.as_deref()), (ResultState::Refused, Some("NormTooLarge")));
    let norm = norm.unwrap();
    assert!(message.starts_with(&format!("norm {norm:.3} is ")), "{message}");
    assert!(message.ends_with(" of this round (limit 5)"), "{message}");
    assert_eq!(status.history[1].participants, 8);
    assert_eq!(weights(&status), expected);
}

#[tokio::test]
async fn thousandfold_samples_count_as_the_counted_ones() {
    let honest = run(async |it| it.node.train(it.task).await).await;
    let status = run(async |it| {
        let greedy = UpdateReport { samples: 1000 * COUNTED, ..report() };
        let outcome = it.node.send(&it.task.id, &trained(it.task), &greedy).await;
        let Outcome::Accepted(text) = outcome else { panic!("{outcome:?}") };
        assert!(text.contains("\"samples\":344"), "{text}");
    })
    .await;
    let worker = &status.workers[BAD];
    assert_eq!(
        (worker.state, worker.reason.as_deref()),
        (ResultState::Accepted, Some("SamplesNotCredible"))
    );
    let text = "reported 344000 samples, its dataset digits-4 has 344: 344 is used";
    assert_eq!(worker.message, text);
    assert_eq!(status.history[1].participants, 9);
    assert_eq!(weights(&status), weights(&honest));
    // Without a count on the node, one worker has at most half of the weight.
    let capped = run(async |it| {
        let samples = 1000 * COUNTED;
        let greedy = UpdateReport { samples, counted_samples: None, ..report() };
        let outcome = it.node.send(&it.task.id, &trained(it.task), &greedy).await;
        assert!(matches!(outcome, Outcome::Accepted(_)));
    })
    .await;
    assert_eq!(capped.workers[BAD].weight, Some(0.5));
}

#[tokio::test]
async fn results_of_other_rounds_and_workers_are_refused() {
    let expected = expected_without().await;
    let status = run(async |it| {
        let new = trained(it.task);
        let (status, reason, _) = refusal(&it.node.send(&it.last.id, &new, &report()).await);
        assert_eq!((status, &*reason), (StatusCode::CONFLICT, "OtherUpdateAccepted"));
        // The repetition of the old one has the old answer, and counts for nothing.
        let old = it.node.upload(&it.last.id, &trained(it.last)).await;
        assert!(matches!(old, Outcome::Accepted(_)), "{old:?}");
        let invented = TaskId(Digest::of_bytes(b"round 99").to_string());
        let (status, reason, _) = refusal(&it.node.send(&invented, &new, &report()).await);
        assert_eq!((status, &*reason), (StatusCode::GONE, "RoundClosed"));
        let (status, reason, _) = refusal(&it.node.send(&it.other.id, &new, &report()).await);
        assert_eq!((status, &*reason), (StatusCode::FORBIDDEN, "NodeNotTrusted"));
    })
    .await;
    assert_eq!(status.workers[BAD].state, ResultState::Failed);
    assert_eq!(status.workers["w7"].state, ResultState::Accepted);
    assert_eq!(weights(&status), expected);
}
