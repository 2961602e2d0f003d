//! The message in which a worker reports its status and counters on the local broker of its node.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Counters, DecodeError, GatewayReport, counters::MAX_COUNTER, gateway, lenient};

/// The info message of a worker, published on `neptune/workers/<worker-name>/info`.
///
/// The agent reads only `taskInfo`, `status` and the models. The topic identifies the worker. A
/// value of another type in a field that is not used counts as absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerInfo {
    /// Name of the worker.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// Namespace of the service.
    #[serde(default, deserialize_with = "lenient::text")]
    pub namespace: String,
    /// Name of the service.
    #[serde(default, deserialize_with = "lenient::text")]
    pub owner_name: String,
    /// Kind of the owner in lower case: `jointinferenceservice`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub owner_kind: String,
    /// Kind of the task: `inference`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub kind: String,
    /// Status of the worker: `running`, `completed` or `failed`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub status: String,
    /// Counters of the worker. Sedna's workers name it `ownerInfo`.
    #[serde(default, alias = "ownerInfo")]
    pub task_info: Option<WorkerTaskInfo>,
    /// `{"models": [...]}`; [`WorkerInfo::models`] parses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The models, under the name that Sedna's workers use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub results: Option<Value>,
    /// What a gateway knows of its decisions and of its two model servers. What is not valid in it
    /// counts as absent.
    #[serde(
        default,
        deserialize_with = "gateway::lenient",
        skip_serializing_if = "Option::is_none"
    )]
    pub gateway: Option<Box<GatewayReport>>,
}

/// Counters since the start of the worker. They do not decrease until the worker restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerTaskInfo {
    /// The counters as the worker reports them, possible or not. Those of gateways are zero for
    /// other workers. A number may also be a string, or have a fraction of zeros.
    #[serde(flatten, with = "crate::counter_members")]
    pub counters: Counters,
    /// Informative only; the agent computes the ratio from the totals.
    #[serde(default, deserialize_with = "lenient::ratio")]
    pub upload_cloud_ratio: f64,
    /// When this run of the worker started: a time, or any text that differs between runs. A number
    /// is read as text.
    #[serde(default, deserialize_with = "lenient::text")]
    pub start_time: String,
    /// When the worker made this report, as the worker states it.
    #[serde(default, deserialize_with = "lenient::text")]
    pub update_time: String,
    /// What earlier processes of a gateway counted, which is not in the numbers above. Absent for
    /// other workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier_runs: Option<EarlierRuns>,
}

/// The sum over the earlier processes of a gateway. It is complete, also if they were killed, so
/// that the last report of a process need not arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EarlierRuns {
    /// When the first of these processes started. It names the sum.
    pub start_time: String,
    /// The counters of those processes; zero in the first process.
    #[serde(flatten)]
    pub counters: Counters,
}

impl WorkerInfo {
    /// Decodes a message. `NaN` and `Infinity`, which the JSON writers of some languages emit, are
    /// read as `null`.
    ///
    /// # Errors
    /// [`DecodeError`] when the payload is not a message of a worker.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        match lenient::without_non_finite(payload) {
            Cow::Borrowed(payload) => crate::decode(payload),
            Cow::Owned(payload) => crate::decode(&payload),
        }
    }
}

impl WorkerTaskInfo {
    /// Returns the counters.
    ///
    /// # Errors
    /// [`DecodeError::OutOfRange`] when the number of samples is above 2^53, or when another number
    /// is above the one that includes it.
    pub fn checked(&self) -> Result<Counters, DecodeError> {
        let Counters { inference, hard, fallback, .. } = self.counters;
        let of_any_worker = Counters { inference, hard, fallback, ..Counters::default() };
        let problem = if inference > MAX_COUNTER {
            "taskInfo.inferenceNumber is above 2^53"
        } else if hard > inference {
            "taskInfo.hardExampleNumber is above taskInfo.inferenceNumber"
        } else if !of_any_worker.are_possible() {
            "taskInfo.hardExampleNumber and fallbackNumber are above taskInfo.inferenceNumber"
        } else if !self.counters.are_possible() {
            "taskInfo.hardNumber, unjudgedNumber or one of tierNumbers is above taskInfo.inferenceNumber, overBudgetNumber or deadlineNumber above hardNumber, or shadowNumber above 2^53"
        } else {
            return Ok(self.counters);
        };
        Err(DecodeError::OutOfRange(problem))
    }

    /// Returns the counters with those of the earlier processes.
    ///
    /// # Errors
    /// As for [`WorkerTaskInfo::checked`], also for the earlier ones and the sum.
    pub fn checked_with(&self, earlier: &EarlierRuns) -> Result<Counters, DecodeError> {
        let counters = self.checked()?.plus(earlier.counters);
        if earlier.counters.are_possible() && counters.are_possible() {
            Ok(counters)
        } else {
            Err(DecodeError::OutOfRange("taskInfo.earlierRuns has numbers that are not possible"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn documented_sample_is_decoded() {
        let info: WorkerInfo = crate::decode(
            br#"{ "name": "worker-name", "namespace": "default",
                  "ownerName": "jointinferenceservice-name", "ownerKind": "jointinferenceservice",
                  "kind": "inference", "status": "completed/failed/running",
                  "taskInfo": { "inferenceNumber": 1000, "hardExampleNumber": 100, "uploadCloudRatio": 0.1,
                    "startTime": "2020-11-03T08:39:22.517Z", "updateTime": "2020-11-03T08:50:22.517Z" } }"#,
        )
        .unwrap();
        let task = info.task_info.unwrap();
        assert_eq!(
            task.checked().unwrap(),
            Counters { inference: 1000, hard: 100, ..Counters::default() }
        );
        assert_eq!(task.start_time, "2020-11-03T08:39:22.517Z");
    }

    #[test]
    fn earlier_runs_are_added_and_checked() {
        let with = |earlier: &str| {
            let text = format!(
                r#"{{"inferenceNumber":5,"hardExampleNumber":2,"earlierRuns":{{"startTime":"t",{earlier}}}}}"#
            );
            let task = task(&text)?;
            task.checked_with(task.earlier_runs.as_ref().unwrap())
        };
        let sum = Counters { inference: 15, hard: 3, fallback: 4, ..Counters::default() };
        assert_eq!(with(r#""inference":10,"hard":1,"fallback":4"#).unwrap(), sum);
        for bad in [r#""inference":1,"hard":2"#, r#""inference":9007199254740992,"hard":0"#] {
            assert!(with(bad).is_err(), "{bad}");
        }
        let without = task(r#"{"inferenceNumber":5,"hardExampleNumber":2}"#).unwrap();
        assert_eq!(without.earlier_runs, None);
        assert!(!serde_json::to_string(&without).unwrap().contains("earlierRuns"));
    }

    fn task(task: &str) -> Result<WorkerTaskInfo, DecodeError> {
        let payload = format!(r#"{{"taskInfo":{task}}}"#);
        Ok(WorkerInfo::decode(payload.as_bytes())?.task_info.unwrap())
    }

    #[test]
    fn unambiguous_numbers_of_another_json_type_are_accepted() {
        for (good, inference, hard) in [
            (r#"{"inferenceNumber":40.0,"hardExampleNumber":4e1}"#, 40, 40),
            (r#"{"inferenceNumber":"30","hardExampleNumber":" 3 "}"#, 30, 3),
            (r#"{"inferenceNumber":"30.0","hardExampleNumber":0}"#, 30, 0),
            (r#"{"inferenceNumber":9007199254740992,"hardExampleNumber":0}"#, 1 << 53, 0),
        ] {
            let expected = Counters { inference, hard, ..Counters::default() };
            assert_eq!(task(good).unwrap().checked().unwrap(), expected);
        }
        let start = |start: &str| {
            let text = r#"{"inferenceNumber":1,"hardExampleNumber":0,"startTime":"#;
            task(&format!("{text}{start}}}")).unwrap().start_time
        };
        assert_eq!(start("1604392762.517"), "1604392762.517");
        assert_eq!((start("null"), start(r#""t""#)), (String::new(), "t".to_owned()));
    }

    #[test]
    fn numbers_of_a_gateway_are_read_and_checked() {
        let text = r#"{"inferenceNumber":20,"hardExampleNumber":3,"fallbackNumber":1,
            "hardNumber":"6","overBudgetNumber":2.0,"unjudgedNumber":4,"shadowNumber":5,
            "deadlineNumber":1,"tierNumbers":[2,1]}"#;
        let expected = Counters {
            inference: 20,
            hard: 3,
            fallback: 1,
            decided_hard: 6,
            over_budget: 2,
            unjudged: 4,
            shadow: 5,
            deadline: 1,
            tiers: [2, 1].into_iter().collect(),
        };
        assert_eq!(task(text).unwrap().checked().unwrap(), expected);
        for (field, value) in [
            ("hardNumber", 21),
            ("overBudgetNumber", 1),
            ("unjudgedNumber", 21),
            ("deadlineNumber", 1),
        ] {
            let text = r#"{"inferenceNumber":20,"hardExampleNumber":0,"#;
            let bad = task(&format!("{text}\"{field}\":{value}}}")).unwrap();
            assert!(bad.checked().is_err(), "{field}");
        }
        let task = task(r#"{"inferenceNumber":1,"hardExampleNumber":0}"#).unwrap();
        let text = serde_json::to_string(&task).unwrap();
        assert!(!text.contains("hardNumber") && !text.contains("shadow"), "as before: {text}");
    }

    #[test]
    fn invalid_gateway_member_does_not_refuse_the_counters() {
        for gateway in ["1", "[]", "null", r#""x""#, r#"{"signal":7}"#, r#"{"problems":{}}"#] {
            let text = format!(
                r#"{{"taskInfo":{{"inferenceNumber":1,"hardExampleNumber":0}},"gateway":{gateway}}}"#
            );
            let info = WorkerInfo::decode(text.as_bytes()).unwrap();
            assert_eq!(info.task_info.unwrap().counters.inference, 1, "{gateway}");
        }
    }

    #[test]
    fn ratio_is_a_finite_number_or_one_in_a_string_and_otherwise_0() {
        for (ratio, bits) in [
            ("0.25", 0.25_f64.to_bits()),
            (r#"" 0.25 ""#, 0.25_f64.to_bits()),
            (r#""inf""#, 0),
            (r#""high""#, 0),
            ("NaN", 0),
            ("[1]", 0),
        ] {
            let text = r#"{"inferenceNumber":3,"hardExampleNumber":1,"uploadCloudRatio":"#;
            let task = task(&format!("{text} {ratio}}}")).unwrap();
            assert_eq!(task.upload_cloud_ratio.to_bits(), bits, "{ratio}");
        }
    }

    #[test]
    fn unused_field_of_any_type_is_ignored() {
        for ratio in ["null", "NaN", "-Infinity", r#""0.5""#, r#""high""#, "{}", "[1]", "true"] {
            let text = r#"{"inferenceNumber":3,"hardExampleNumber":1,"uploadCloudRatio":"#;
            let task = task(&format!("{text} {ratio}, \"updateTime\": {ratio}}}"));
            assert_eq!(task.unwrap().counters.inference, 3, "{ratio}");
        }
        let text = br#"{"name":1,"namespace":null,"ownerName":{},"ownerKind":[],"kind":NaN,"status":null,"note":"a NaN \" NaN"}"#;
        assert_eq!(WorkerInfo::decode(text).unwrap().status, "");
    }

    #[test]
    fn invalid_counters_are_refused() {
        for bad in [
            r#"{"taskInfo":{"inferenceNumber":-1,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1.5,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":"1.5","hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":"","hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":"1e3","hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":NaN,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":null,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1e16,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"inferenceNumber":1e400,"hardExampleNumber":0}}"#,
            r#"{"taskInfo":{"hardExampleNumber":0}}"#,
            r#"{"taskInfo":"#,
        ] {
            assert!(WorkerInfo::decode(bad.as_bytes()).is_err(), "{bad} was accepted");
        }
        let with = |counters| WorkerTaskInfo {
            counters,
            upload_cloud_ratio: 2.0,
            start_time: String::new(),
            update_time: String::new(),
            earlier_runs: None,
        };
        for (inference, hard, fallback) in [(1, 2, 0), (2, 2, 1), (u64::MAX, 2, 0)] {
            let bad = Counters { inference, hard, fallback, ..Counters::default() };
            assert!(with(bad).checked().is_err(), "{bad:?} was accepted");
        }
    }
}
