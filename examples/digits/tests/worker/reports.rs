//! What the workers on a broker report.

use neptune_harness::{Broker, MqttClient};
use neptune_wire::WorkerInfo;

/// The reports that workers publish from now on.
pub struct Reports(MqttClient);

impl Reports {
    pub async fn observe(broker: &Broker) -> Self {
        Self(MqttClient::connect(broker.port(), &["neptune/workers/+/info"]).await)
    }

    pub async fn next(&mut self) -> WorkerInfo {
        let message = self.0.next().await;
        assert_eq!(message.topic, "neptune/workers/demo-edge/info");
        serde_json::from_slice(&message.payload).unwrap()
    }

    /// The next report that matches.
    pub async fn until(&mut self, matches: impl Fn(&WorkerInfo) -> bool) -> WorkerInfo {
        loop {
            let report = self.next().await;
            if matches(&report) {
                return report;
            }
        }
    }
}

/// The counters of a report: inferred samples and hard examples.
pub fn counted(report: &WorkerInfo) -> (u64, u64) {
    let task = report.task_info.as_ref().unwrap();
    (task.counters.inference, task.counters.hard)
}
