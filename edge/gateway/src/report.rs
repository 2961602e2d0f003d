//! Reports the counters on the node's broker, as every worker does.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use neptune_cascade::{agreement::Estimate, breaker::BreakerSettings, policy::Goal};
use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::{
    CaptureReport, ClientReport, Counters, EarlierRuns, Figure, GatewayReport, GatewaySignal,
    WorkerInfo, WorkerTaskInfo,
};
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{interval, timeout},
};
use tracing::{info, warn};

use crate::{
    capture::CaptureState,
    cli::ReportArgs,
    clients::{ClientCounts, ClientEntry},
    clock,
    config::{Protocol, Rule},
    counter_file::Earlier,
    decision::{CloudState, Decisions, Totals},
    error::Error,
    gateway::{Gateway, Service},
    problems::{Drift, Facts, UNJUDGED_IN_A_ROW, problems},
    protocol::completion::Probed,
};

const PERIOD: Duration = Duration::from_secs(1);
/// Timeout of a connection to the edge's model server.
const CONNECT: Duration = Duration::from_millis(500);
/// Timeout of the report at the end of the process.
const LAST_REPORT: Duration = Duration::from_secs(2);

/// Reports once per second, and at the end.
#[derive(Debug)]
pub struct Reporter {
    publisher: Publisher,
    periodic: JoinHandle<()>,
}

#[derive(Debug, Clone)]
struct Publisher {
    link: Link,
    gateway: Arc<Gateway>,
    identity: Identity,
    started: Timestamp,
}

#[derive(Debug, Clone)]
struct Identity {
    worker: String,
    namespace: String,
    service: String,
    topic: String,
}

impl Reporter {
    /// Starts, if there is a broker.
    ///
    /// # Errors
    /// The URL or the topic is not valid, or the worker has no name. A broker that cannot be
    /// reached is no error.
    pub fn start(args: &ReportArgs, gateway: &Arc<Gateway>) -> Result<Option<Self>, Error> {
        let Some(url) = args.mqtt_url.as_deref().filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        let error = |error: neptune_link::LinkError| Error::Report(error.to_string());
        let worker = args.worker_name.clone().filter(|name| !name.is_empty());
        let worker = worker.ok_or_else(|| Error::Report("set WORKER_NAME".to_owned()))?;
        let topic = args.worker_info_topic.clone().filter(|topic| !topic.is_empty());
        let identity = Identity {
            topic: topic.unwrap_or_else(|| format!("neptune/workers/{worker}/info")),
            namespace: args.namespace.clone(),
            service: args.service_name.clone().unwrap_or_default(),
            worker,
        };
        let started = clock::timestamp();
        // With the start time: two runs must not disconnect each other before the last report of
        // the earlier one.
        let client_id = format!("{}-{}", identity.worker, started.as_millisecond());
        let options = LinkOptions::new(url.parse().map_err(error)?, client_id);
        let (link, events) = Link::start(options).map_err(error)?;
        tokio::spawn(listen(events));
        let publisher = Publisher { link, gateway: Arc::clone(gateway), identity, started };
        publisher.publish().map_err(error)?;
        let periodic = tokio::spawn(publisher.clone().repeat());
        Ok(Some(Self { publisher, periodic }))
    }

    /// Sends the last report if the broker can be reached, and disconnects.
    pub async fn finish(self) {
        self.periodic.abort();
        if let Err(error) = self.publisher.publish() {
            warn!(%error, "the last report is not sent");
        }
        // After a timeout the agent keeps the last counters that it received.
        let _ = timeout(LAST_REPORT, self.publisher.link.flushed()).await;
        self.publisher.link.close(Duration::ZERO).await;
    }
}

impl Publisher {
    fn publish(&self) -> Result<(), neptune_link::LinkError> {
        let service = self.gateway.service();
        let message = {
            let decisions = self.gateway.decisions();
            let cloud = decisions.cloud_state(clock::now());
            let problem = self.gateway.configuration_problem();
            let capture = self.gateway.capture().map(|capture| capture.state());
            let clients = self.gateway.clients.entries(&service.config.clients);
            let beside = Beside {
                configuration: problem.as_deref(),
                capture: capture.as_ref(),
                clients: &clients,
            };
            let report = gateway_report(&service, &decisions, cloud, beside);
            let times = (self.started, clock::timestamp());
            message(&self.identity, times, (decisions.totals(), self.gateway.earlier()), report)
        };
        let payload = serde_json::to_vec(&message).expect("texts and finite numbers");
        self.link.publish(Message {
            topic: self.identity.topic.clone(),
            payload: payload.into(),
            retain: false,
        })
    }

    /// Notices that the edge's model server is back, also without a request.
    async fn notice_edge(&self) {
        let address = self.gateway.decisions().edge_down().map(str::to_owned);
        let Some(address) = address else { return };
        let connected = timeout(CONNECT, TcpStream::connect(&address)).await;
        if matches!(connected, Ok(Ok(_))) {
            self.gateway.decisions().edge_is_back();
        }
    }

    async fn repeat(self) {
        let mut period = interval(PERIOD);
        period.tick().await;
        loop {
            period.tick().await;
            self.notice_edge().await;
            if let Err(error) = self.publish() {
                warn!(%error, "a report is not sent");
            }
        }
    }
}

async fn listen(mut events: LinkEvents) {
    while let Some(event) = events.next().await {
        match event {
            LinkEvent::Up => info!("connected to the node's broker"),
            LinkEvent::Down { reason } => {
                info!("not connected to the node's broker, counting continues: {reason}");
            }
            LinkEvent::Message(_) => {}
        }
    }
}

/// What a report has beside the decisions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Why the configuration or the certificate is not used.
    pub configuration: Option<&'a str>,
    /// The state of the capture, if there is one.
    pub capture: Option<&'a CaptureState>,
    /// The counts of the clients by name, in the order of the configuration.
    pub clients: &'a [(String, ClientEntry)],
}

/// The states and figures beside the counters.
pub fn gateway_report(
    service: &Service,
    decisions: &Decisions,
    cloud: CloudState,
    Beside { configuration, capture, clients }: Beside<'_>,
) -> GatewayReport {
    let policy = decisions.policy();
    let estimate = policy.agreement();
    let drift = policy.confidence_drift();
    let configured = service.config.cloud.as_ref();
    let facts = Facts {
        cloud,
        failures: decisions.cloud_failures(),
        cloud_failure: decisions.cloud_failure(),
        cloud_url: configured.map(|cloud| cloud.url.as_str()),
        token_file: configured.and_then(|cloud| cloud.token_file.as_deref()),
        token_refusal: decisions.token_refusal(),
        cloud_refusal: decisions.cloud_refusal(),
        signal: signal(service),
        unjudged: decisions.unjudged(UNJUDGED_IN_A_ROW),
        goal: service.settings.goal,
        drift: drift.psi().filter(|_| drift.is_drifting()).map(|psi| Drift {
            psi,
            below: match service.settings.goal {
                Goal::UploadRatio(ratio) | Goal::TrackedRatio { ratio, .. } => {
                    drift.below_quantile(ratio.get())
                }
                Goal::Threshold => drift.below(policy.threshold()),
                // Its threshold of before is not known.
                Goal::Agreement(_) => None,
            },
        }),
        is_disagreeing: policy.disagreement_drift().is_drifting(),
        agreement: estimate.as_ref().map(|estimate| estimate.agreement),
        over_budget: decisions.over_budget(),
        max_ratio: service.settings.max_ratio.get(),
        difference: service.difference(),
        edge_down: decisions.edge_down(),
        edge_refusal: decisions.edge_refusal(),
        undecided: decisions.undecided(),
        invalid_answers: decisions.invalid_answers(BreakerSettings::DEFAULT.opens_at),
        refusal: decisions.refusal(clock::now()),
        is_upper_away: decisions.is_upper_away(),
        capture: capture.and_then(|capture| capture.problem.as_deref()),
        configuration,
    };
    let estimated =
        |field: fn(&Estimate) -> f64| estimate.as_ref().map(field).and_then(Figure::new);
    GatewayReport {
        signal: facts.signal,
        cloud: facts.cloud(),
        threshold: Figure::new(policy.threshold()),
        agreement: estimated(|estimate| estimate.agreement),
        agreement_low: estimated(|estimate| estimate.interval.low),
        agreement_high: estimated(|estimate| estimate.interval.high),
        upload_ratio: Figure::new(decisions.recent_ratio()),
        psi: drift.psi().and_then(Figure::new),
        capture: capture.map(|state| CaptureReport {
            captured: state.captured,
            dropped: state.dropped,
            bytes: state.bytes,
        }),
        clients: clients.iter().map(client_report).collect(),
        problems: problems(&facts),
    }
    .bounded()
}

fn client_report((name, entry): &(String, ClientEntry)) -> ClientReport {
    let ClientCounts { requests, refused, samples } = entry.counts;
    ClientReport {
        name: name.clone(),
        since: format!("{:.0}", entry.since),
        requests,
        refused,
        samples: samples.inference,
        cloud: samples.cloud,
        fallback: samples.fallback,
        over_budget: samples.over_budget,
        unjudged: samples.unjudged,
    }
}

/// Returns the outputs from which the confidence is computed.
fn signal(service: &Service) -> GatewaySignal {
    match (service.protocol(), &service.rule) {
        // They need no output of the edge's model.
        (_, Rule::Random | Rule::Constant) => GatewaySignal::Unknown,
        (Protocol::Openai, _) => match service.probed() {
            Probed::Unknown => GatewaySignal::Unknown,
            Probed::None => GatewaySignal::None,
            Probed::Chosen => GatewaySignal::Chosen,
            Probed::Top2 => GatewaySignal::Top2,
        },
        _ => GatewaySignal::Scores,
    }
}

fn message(
    identity: &Identity,
    (started, now): (Timestamp, Timestamp),
    (totals, earlier): (&Totals, Option<Earlier>),
    report: GatewayReport,
) -> WorkerInfo {
    let counters = counters_of(totals);
    WorkerInfo {
        name: identity.worker.clone(),
        namespace: identity.namespace.clone(),
        owner_name: identity.service.clone(),
        owner_kind: "jointinferenceservice".to_owned(),
        kind: "inference".to_owned(),
        status: "running".to_owned(),
        task_info: Some(WorkerTaskInfo {
            upload_cloud_ratio: counters.upload_cloud_ratio(),
            counters,
            start_time: format!("{started:.3}"),
            update_time: format!("{now:.3}"),
            earlier_runs: earlier.map(|earlier| EarlierRuns {
                start_time: format!("{:.9}", earlier.since),
                counters: counters_of(&earlier.totals),
            }),
        }),
        output: None,
        results: None,
        gateway: Some(Box::new(report)),
    }
}

const fn counters_of(totals: &Totals) -> Counters {
    Counters {
        inference: totals.inference,
        hard: totals.cloud,
        fallback: totals.fallback,
        decided_hard: totals.hard,
        over_budget: totals.over_budget,
        unjudged: totals.unjudged,
        shadow: totals.shadow,
        deadline: totals.deadline,
        tiers: totals.tiers,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_cascade::{
        breaker::Failure,
        policy::{Decision, Settings},
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::{config::Config, decision::Outcome};

    #[test]
    fn report_is_one_of_a_worker_with_more_numbers() {
        let mut decisions = Decisions::new(Settings::new(Goal::Threshold, 0.5), true, clock::now());
        for outcome in [
            Outcome::Edge(Decision::Easy),
            Outcome::Cloud(Decision::Hard),
            Outcome::Fallback,
            Outcome::Edge(Decision::OverBudget),
        ] {
            decisions.count(outcome);
        }
        let identity = Identity {
            worker: "w".to_owned(),
            namespace: "default".to_owned(),
            service: "s".to_owned(),
            topic: "t".to_owned(),
        };
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let config = json!({
            "service": "s", "protocol": "openai", "edge": {"address": "127.0.0.1:9001"},
            "cloud": {"url": "https://llm.example/v1", "tokenFile": "/run/token"},
        });
        let service = Service::new(Config::parse(config.to_string().as_bytes()).unwrap()).unwrap();
        let permit = decisions.permit(clock::now()).unwrap();
        decisions.failed(permit, Failure::TokenRefused, clock::now(), 0.5);
        let cloud = decisions.cloud_state(clock::now());
        let report = gateway_report(&service, &decisions, cloud, Beside::default());
        let earlier = Earlier { since: start, totals: *decisions.totals() };
        let totals = (decisions.totals(), Some(earlier));
        let report = serde_json::to_value(message(&identity, (start, start), totals, report));
        let report = report.unwrap();
        let read = WorkerInfo::decode(report.to_string().as_bytes()).unwrap();
        let task = read.task_info.unwrap();
        let counters = task.checked().unwrap();
        let expected = Counters {
            inference: 4,
            hard: 1,
            fallback: 1,
            decided_hard: 3,
            over_budget: 1,
            ..Counters::default()
        };
        assert_eq!(counters, expected);
        let earlier = EarlierRuns {
            start_time: "2026-01-01T00:00:00.000000000Z".to_owned(),
            counters: expected,
        };
        assert_eq!(task.earlier_runs, Some(earlier));
        assert_eq!(report["taskInfo"]["startTime"], "2026-01-01T00:00:00.000Z");
        let gateway = &report["gateway"];
        assert_eq!(gateway["threshold"], "0.500");
        assert_eq!(gateway["uploadRatio"], "0.250");
        assert_eq!(
            (&gateway["signal"], &gateway["cloud"]),
            (&json!("Unknown"), &json!("TokenRefused"))
        );
        assert_eq!(gateway["problems"][0]["reason"], "CloudRefusesToken");
        assert_eq!(gateway["agreement"], Value::Null, "no shadow was compared");
        assert!(read.gateway.unwrap().problems[0].message.contains("/run/token"));
    }

    #[test]
    fn each_total_has_its_own_counter_in_both_runs() {
        let tiers = |tiers: [u64; 2]| tiers.into_iter().collect();
        let totals = Totals {
            inference: 53,
            hard: 29,
            cloud: 2,
            fallback: 3,
            over_budget: 5,
            unjudged: 7,
            shadow: 11,
            agreed: 1,
            deadline: 13,
            tiers: tiers([17, 19]),
        };
        let identity = Identity {
            worker: String::new(),
            namespace: String::new(),
            service: String::new(),
            topic: String::new(),
        };
        let now = Timestamp::UNIX_EPOCH;
        let earlier = Earlier { since: now, totals: totals.plus(&totals) };
        let report = GatewayReport::default();
        let message = message(&identity, (now, now), (&totals, Some(earlier)), report);
        let task = serde_json::to_value(message.task_info.unwrap()).unwrap();
        let expected = json!({
            "inferenceNumber": 53, "hardExampleNumber": 2, "fallbackNumber": 3, "hardNumber": 29,
            "overBudgetNumber": 5, "unjudgedNumber": 7, "shadowNumber": 11, "deadlineNumber": 13,
            "tierNumbers": [17, 19], "uploadCloudRatio": 2.0 / 53.0,
            "startTime": "1970-01-01T00:00:00.000Z", "updateTime": "1970-01-01T00:00:00.000Z",
            "earlierRuns": {
                "startTime": "1970-01-01T00:00:00.000000000Z", "inference": 106, "hard": 4,
                "fallback": 6, "decidedHard": 58, "overBudget": 10, "unjudged": 14, "shadow": 22,
                "deadline": 26, "tiers": [34, 38],
            },
        });
        assert_eq!(task, expected);
    }
}
