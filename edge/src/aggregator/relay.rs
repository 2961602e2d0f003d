//! Relays between an aggregator and the controller: sends the run of the message, and reports the
//! state, until the container is not wanted any more. Every step can be repeated.

use std::time::Duration;

use neptune_agent_core::domain::aggregator::WantedAggregator;
use neptune_aggregator_client::{AggregatorClient, RequestError};
use neptune_backoff::{Backoff, Retries};
use neptune_program::random::random;
use neptune_wire::aggregator::{AggregatorProblem, RunRequest, RunStatus};
use tokio::sync::watch;

use super::status::AggregatorStatus;

/// The pause after a failed request.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(15));
/// Failed requests in a row that are not reported: a container that has just started does not listen
/// yet.
const QUIET_FAILURES: u32 = 4;
/// The reason of a problem without an answer.
const UNREACHABLE: &str = "AggregatorUnreachable";

/// What was exchanged with the aggregator since it started.
#[derive(Debug, Default)]
struct Exchange {
    /// The newest state that the aggregator answered.
    state: Option<RunStatus>,
    /// The last request that the aggregator accepted.
    accepted: Option<RunRequest>,
    failures: u32,
}

impl Exchange {
    /// What to send now. An aggregator that lost its files must not begin a run that it had.
    fn request<'a>(&self, wanted: &'a WantedAggregator) -> Option<&'a RunRequest> {
        let request = wanted.content.request.as_ref()?;
        let state = self.state.as_ref()?;
        let may_send = state.run >= request.run || wanted.content.may_start;
        (may_send && self.accepted.as_ref() != Some(request)).then_some(request)
    }

    /// Records an answer. Returns the problem to report.
    fn on_answer(
        &mut self,
        sent: Option<&RunRequest>,
        answer: Result<Option<RunStatus>, AggregatorProblem>,
    ) -> Option<AggregatorProblem> {
        match answer {
            Ok(state) => {
                self.failures = 0;
                if sent.is_some() {
                    self.accepted = sent.cloned();
                }
                self.state = state.or(self.state.take());
                None
            }
            Err(problem) => {
                self.failures += 1;
                // What it answered counts at once.
                let is_answer = problem.reason != UNREACHABLE;
                (is_answer || self.failures > QUIET_FAILURES).then_some(problem)
            }
        }
    }
}

/// Relays until another container, or none, is wanted.
pub async fn relay(
    current: &WantedAggregator,
    wanted: &mut watch::Receiver<Option<WantedAggregator>>,
    client: &AggregatorClient,
    status: &mut AggregatorStatus,
) {
    let mut exchange = Exchange::default();
    let mut retries = Retries::new(RETRY);
    loop {
        let now = wanted.borrow_and_update().clone();
        let Some(now) = now.filter(|now| now.has_container_of(current)) else { return };
        let request = exchange.request(&now).cloned();
        let revision = exchange.state.as_ref().map(|state| state.revision);
        let step = async {
            match &request {
                Some(request) => client.put(request).await.map(Some),
                None => client.state(revision).await,
            }
        };
        let answer = tokio::select! {
            answer = step => answer.map_err(|error| problem(&client.endpoint().url, error)),
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                wanted.mark_changed();
                continue;
            }
        };
        let is_failed = answer.is_err();
        let is_quiet = matches!(answer, Ok(None));
        let problem = exchange.on_answer(request.as_ref(), answer);
        if !is_failed {
            retries.reset();
            if is_quiet {
                continue;
            }
        }
        if problem.is_some() || !is_failed {
            status.set(exchange.state.clone(), problem).await;
        }
        if is_failed {
            tokio::select! {
                () = tokio::time::sleep(retries.failed(random())) => {}
                _ = wanted.changed() => wanted.mark_changed(),
            }
        }
    }
}

/// The problem of a request to the aggregator at `url`.
pub fn problem(url: &str, error: RequestError) -> AggregatorProblem {
    match error {
        RequestError::Refused(problem) => problem,
        RequestError::Unreachable(why) => AggregatorProblem {
            reason: UNREACHABLE.to_owned(),
            detail: format!(
                "{url} does not answer: {why}; check that no other program uses the port, or set another one in spec.aggregation.service.address; retrying"
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::fixtures::wanted_aggregator;
    use serde_json::json;

    use super::*;

    fn state(run: u32) -> RunStatus {
        serde_json::from_value(json!({
            "revision": run, "uid": "uid-1", "run": run, "phase": "Open", "round": 1,
            "base": null, "tasks": [], "workers": {}, "history": [], "best": null,
        }))
        .unwrap()
    }

    fn with_request(run: u32, may_start: bool) -> WantedAggregator {
        let mut wanted = wanted_aggregator();
        wanted.content.may_start = may_start;
        wanted.content.request = Some(
            serde_json::from_value(json!({
                "uid": "uid-1", "run": run, "nodes": {}, "settings": {
                    "workers": {}, "workload": "", "rounds": 1, "minWorkers": 1,
                    "onTooFewWorkers": "Wait", "fraction": 1.0, "seed": 1, "maxUpdateBytes": 1,
                    "rule": {"maxWeight": 0.5, "clip": 2.0, "refuse": 5.0,
                        "serverLearningRate": 1.0, "serverMomentum": 0.0},
                },
            }))
            .unwrap(),
        );
        wanted
    }

    #[test]
    fn run_is_sent_once_and_not_to_an_aggregator_that_lost_it() {
        let mut exchange = Exchange::default();
        let first = with_request(1, true);
        assert_eq!(exchange.request(&first), None, "its state is unknown");
        assert_eq!(exchange.on_answer(None, Ok(Some(state(0)))), None);
        let request = exchange.request(&first).cloned();
        assert!(request.is_some());
        exchange.on_answer(request.as_ref(), Ok(Some(state(1))));
        assert_eq!(exchange.request(&first), None, "it has it");
        assert_eq!(exchange.request(&with_request(1, false)), None);
        assert!(exchange.request(&with_request(2, true)).is_some());

        let mut restarted = Exchange::default();
        restarted.on_answer(None, Ok(Some(state(0))));
        assert_eq!(restarted.request(&with_request(1, false)), None, "it lost its files");
        restarted.on_answer(None, Ok(Some(state(1))));
        assert!(restarted.request(&with_request(1, false)).is_some(), "it restarted");
    }

    #[test]
    fn start_of_a_container_is_no_problem() {
        let mut exchange = Exchange::default();
        let problem = |reason: &str| AggregatorProblem {
            reason: reason.to_owned(),
            detail: "why".to_owned(),
        };
        for _ in 0..QUIET_FAILURES {
            assert_eq!(exchange.on_answer(None, Err(problem("AggregatorUnreachable"))), None);
        }
        let reported = exchange.on_answer(None, Err(problem("AggregatorUnreachable")));
        assert_eq!(reported.unwrap().detail, "why");
        assert_eq!(exchange.on_answer(None, Ok(Some(state(1)))), None);
        assert_eq!(exchange.failures, 0);
        let refused = exchange.on_answer(None, Err(problem("RunChanged")));
        assert_eq!(refused.unwrap().reason, "RunChanged");
    }
}
