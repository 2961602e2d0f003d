//! Example values for the tests of the crates that use this one.

use std::{collections::BTreeMap, fmt::Display};

use crate::{
    AgentInstance, ContentHash, KeyPin, Revision, Sync,
    aggregator::{
        AggregationRule, OnTooFewWorkers, RunPhase, RunRequest, RunSettings, RunStatus, RunWorker,
    },
};

/// Returns a valid pin that consists of one hexadecimal digit.
pub fn pin(digit: impl Display) -> KeyPin {
    KeyPin(format!("sha256:{}", digit.to_string().repeat(64)))
}

/// Returns a sync of the first start of an agent that has this revision and no objects.
pub fn sync(revision: u64) -> Sync {
    Sync {
        instance: AgentInstance("i".to_owned()),
        epoch: 1,
        index_revision: Revision(revision),
        highest: Revision(revision),
        complete: true,
        request_index: false,
        objects: BTreeMap::new(),
        departed: BTreeMap::new(),
    }
}

/// Returns the status of a run in this phase, in which nothing has happened yet.
pub fn run_status(uid: &str, run: u32, phase: RunPhase) -> RunStatus {
    RunStatus { uid: uid.to_owned(), run, phase, ..RunStatus::without_run(1) }
}

/// Returns the request of a first run with two rounds of these workers, which waits for all of them.
pub fn run_request(workers: impl IntoIterator<Item = (String, RunWorker)>) -> RunRequest {
    let workers: BTreeMap<_, _> = workers.into_iter().collect();
    RunRequest {
        uid: "u".to_owned(),
        run: 1,
        settings: RunSettings {
            min_workers: u32::try_from(workers.len()).ok(),
            workers,
            workload: ContentHash::compute(&"workload"),
            rounds: 2,
            round_timeout_seconds: None,
            grace_seconds: None,
            max_deadlines: 3,
            on_too_few_workers: OnTooFewWorkers::Wait,
            fraction: 1.0,
            rule: AggregationRule {
                trim: None,
                equal_weights: false,
                max_weight: 0.5,
                clip: Some(2.0),
                refuse: Some(5.0),
                server_learning_rate: 1.0,
                server_momentum: 0.0,
            },
            seed: 1,
            max_update_bytes: 1 << 20,
            initial: None,
            evaluation: None,
            early_stop: None,
            session: None,
        },
        nodes: BTreeMap::new(),
        failed: Vec::new(),
        unavailable: BTreeMap::new(),
        suspended: false,
        keep: Vec::new(),
        session_host: None,
    }
}
