#![allow(clippy::unwrap_used, clippy::panic)]
use neptune_api::{LogObjectReference, LogWorker};

use super::*;
use crate::log_requests::target::LogAgent;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn request(uid: &str, object: &str) -> LogRequest {
    let spec = LogRequestSpec {
        object_ref: LogObjectReference {
            kind: LogObjectKind::JointInferenceService,
            name: object.to_owned(),
        },
        worker: LogWorker::Edge,
        node: None,
        tail_lines: None,
        since_seconds: Some(60),
        since_time: None,
    };
    let mut request = LogRequest::new(uid, spec);
    request.metadata.uid = Some(uid.to_owned());
    request.metadata.namespace = Some("default".to_owned());
    request
}

fn target(object: &str, node: &str, agent: LogAgent) -> LogTarget {
    LogTarget {
        key: format!("default/jointinferenceservices/{object}").parse().unwrap(),
        uid: "uid-of-object".to_owned(),
        nodes: [(node.parse().unwrap(), agent)].into(),
    }
}

fn answer(id: &str) -> NodeAnswer {
    NodeAnswer {
        id: id.parse().unwrap(),
        text: "a line\n".to_owned(),
        truncated: true,
        next: Some("2026-11-24T06:00:00Z".to_owned()),
        problem: None,
    }
}

/// The requests of a controller, and the time.
#[derive(Default)]
struct Controller(LogRequests);

impl Controller {
    fn decide(&mut self, uid: &str, object: &str, node: &str, seconds: i64) -> LogAction {
        let target = target(object, node, LogAgent::Ready);
        self.0.decide(&request(uid, object), Some(&target), (at(seconds), at(seconds)))
    }

    fn reason(&mut self, uid: &str, object: &str, node: &str) -> Option<LogRequestReason> {
        match self.decide(uid, object, node, 0) {
            LogAction::Ask(..) => None,
            LogAction::Write(status) => status.reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn node_is_asked_every_five_seconds_until_it_answers() {
    let mut controller = Controller::default();
    let LogAction::Ask(node, asked) = controller.decide("r", "s", "edge0", 0) else {
        panic!("it is asked")
    };
    assert_eq!((node.as_str(), asked.id.as_str(), asked.tail_lines), ("edge0", "r", 100));
    assert_eq!(asked.since, Some(at(-60).to_string()));
    assert_eq!(controller.0.next_at(), Some(at(5)));
    assert!(!controller.0.is_due("r", at(4)) && controller.0.is_due("r", at(5)));
    let again = controller.decide("r", "s", "edge0", 5);
    assert_eq!(again, LogAction::Ask(node.clone(), asked), "the same request");
    let asked: Vec<_> = controller.0.asked().collect();
    assert_eq!(asked, [(&"r".parse().unwrap(), &node)]);

    controller.0.on_answer(&"edge1".parse().unwrap(), answer("r"), at(6));
    assert_eq!(controller.0.asked().count(), 1, "the answer of another node");
    controller.0.on_answer(&node, answer("r"), at(6));
    let LogAction::Write(status) = controller.decide("r", "s", "edge0", 6) else {
        panic!("it is written")
    };
    assert_eq!((status.phase, status.text.as_str()), (LogRequestPhase::Succeeded, "a line\n"));
    assert!(status.truncated && status.next.is_some() && status.reason.is_none());
    let again = controller.decide("r", "s", "edge0", 7);
    assert_eq!(again, LogAction::Write(status), "until it is written");
    controller.0.written("r", at(7));
    assert_eq!(controller.decide("r", "s", "edge0", 66), LogAction::Wait);
    assert_eq!(controller.decide("r", "s", "edge0", 67), LogAction::Delete);
    controller.0.retain(|_| false);
    assert_eq!(controller.0.next_at(), None);
}

#[test]
fn request_without_an_answer_fails_after_thirty_seconds() {
    let mut controller = Controller::default();
    let mut asked = 0;
    for seconds in 0..30 {
        let is_due = controller.0.is_due("r", at(seconds));
        asked += usize::from(
            is_due && matches!(controller.decide("r", "s", "edge0", seconds), LogAction::Ask(..)),
        );
    }
    assert_eq!(asked, 6);
    let LogAction::Write(status) = controller.decide("r", "s", "edge0", 30) else {
        panic!("it failed")
    };
    assert_eq!(status.reason, Some(LogRequestReason::DeadlineExceeded));
    controller.0.on_answer(&"edge0".parse().unwrap(), answer("r"), at(31));
    let LogAction::Write(late) = controller.decide("r", "s", "edge0", 31) else {
        panic!("it failed")
    };
    assert_eq!(late, status, "a late answer changes nothing");
    assert_eq!(controller.decide("r", "s", "edge0", 600), LogAction::Delete, "never written");
}

#[test]
fn request_that_ended_before_a_restart_is_deleted_a_minute_later() {
    let mut controller = Controller::default();
    let mut ended = request("r", "s");
    ended.status = Some(refused((LogRequestReason::NodeOffline, String::new())));
    let mut decide = |seconds| controller.0.decide(&ended, None, (at(seconds), at(seconds)));
    assert_eq!(
        (decide(0), decide(59), decide(60)),
        (LogAction::Wait, LogAction::Wait, LogAction::Delete)
    );
}

#[test]
fn node_that_may_still_report_is_awaited() {
    let mut requests = LogRequests::default();
    let request = request("r", "s");
    let mut decide = |agent, seconds| {
        let target = target("s", "edge0", agent);
        requests.decide(&request, Some(&target), (at(seconds), at(seconds)))
    };
    assert_eq!(decide(LogAgent::Awaited, 0), LogAction::Wait);
    assert!(matches!(decide(LogAgent::Ready, 1), LogAction::Ask(..)));
    let mut requests = LogRequests::default();
    let mut decide = |seconds| {
        let target = target("s", "edge0", LogAgent::Awaited);
        requests.decide(&request, Some(&target), (at(seconds), at(seconds)))
    };
    assert_eq!((decide(0), decide(29)), (LogAction::Wait, LogAction::Wait));
    let LogAction::Write(status) = decide(30) else { panic!("it failed") };
    assert_eq!(status.reason, Some(LogRequestReason::NodeOffline));
}

#[test]
fn open_requests_are_limited_per_object_node_and_controller() {
    let too_many = Some(LogRequestReason::TooManyRequests);
    let mut of_object = Controller::default();
    let mut reason = |uid: &str, object: &str| of_object.reason(uid, object, uid);
    assert_eq!((reason("a", "s"), reason("b", "s"), reason("c", "t")), (None, None, None));
    assert_eq!(reason("d", "s"), too_many);
    of_object.0.on_answer(&"a".parse().unwrap(), answer("a"), at(0));
    assert_eq!(of_object.reason("e", "s", "e"), None, "one of them ended");

    let mut of_node = Controller::default();
    let mut reason = |uid: &str| of_node.reason(uid, uid, "edge0");
    assert_eq!(["a", "b", "c", "d"].map(&mut reason), [None; 4]);
    assert_eq!(reason("e"), too_many);

    let mut all = Controller::default();
    let names: Vec<String> = (0..MAX_OPEN).map(|n| format!("n{n}")).collect();
    assert!(names.iter().all(|name| all.reason(name, name, name).is_none()));
    assert_eq!(all.reason("last", "last", "last"), too_many);
}

#[test]
fn problem_of_an_agent_is_the_reason_of_the_request() {
    for (problem, expected) in [
        (AnswerReason::LogsNotAllowed, LogRequestReason::LogsNotAllowed),
        (AnswerReason::NoContainer, LogRequestReason::NoContainer),
        (AnswerReason::Unknown, LogRequestReason::LogUnavailable),
    ] {
        let answer = NodeAnswer::refused("r".parse().unwrap(), problem, "why".to_owned());
        let status = status(answer);
        assert_eq!((status.phase, status.reason), (LogRequestPhase::Failed, Some(expected)));
        assert_eq!(status.message, "why");
    }
}
