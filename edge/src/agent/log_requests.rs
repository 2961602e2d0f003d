//! Answers the cloud's requests for logs. Which log is read, and what of it leaves the node, is
//! decided by `neptune_agent_core::logs`.

use std::sync::Arc;

use neptune_agent_core::logs::{
    lines::LogText,
    requests::{LogRead, RequestAction},
    source::LogFacts,
};
use neptune_link::Message;
use neptune_wire::{NodeAnswer, NodeRequest, RequestId, decode};
use tracing::info;

use super::Agent;
use crate::event::AgentEvent;

impl Agent {
    /// Handles a request of the cloud.
    pub(super) fn on_request(&mut self, message: &Message) {
        // Nobody waits for the answer to a retained request.
        if message.retain {
            return;
        }
        match decode(&message.payload) {
            Ok(request) => self.decide_request(request),
            Err(error) => self.dropped.add_from_cloud(&message.topic, &error),
        }
    }

    fn decide_request(&mut self, request: NodeRequest) {
        let facts = LogFacts {
            node: &self.config.node,
            desired: &self.desired.desired,
            containers: self.containers.observer.latest().map(|(containers, _)| containers),
            allowed: &self.config.remote_logs,
        };
        match self.log_requests.on_request(request, &facts) {
            RequestAction::Answer(answer) => self.publish_answer(&answer),
            RequestAction::Read(read) => self.read_log(read),
            RequestAction::Wait => {}
        }
    }

    /// Starts to read a log. [`AgentEvent::LogRead`] has the result.
    fn read_log(&self, read: LogRead) {
        let docker = Arc::clone(&self.containers.executor.supervisor.docker);
        let events = self.containers.executor.events.clone();
        tokio::spawn(async move {
            let result = docker.read_log(&read).await;
            let LogRead { id, worker, .. } = read;
            // The receiver is dropped only when the process exits.
            let _ = events.send(AgentEvent::LogRead { id, worker, result }).await;
        });
    }

    /// Publishes the log that was read, and begins with the next request.
    pub(super) fn on_log_read(
        &mut self,
        id: RequestId,
        worker: &str,
        result: Result<LogText, String>,
    ) {
        let result = match result {
            Ok(log) => Ok(LogText { text: self.values.mask(worker, log.text), ..log }),
            Err(why) => Err(self.values.mask(worker, why)),
        };
        let answer = self.log_requests.on_read(id, result);
        let problem = answer.problem.as_ref().map(|problem| problem.message.as_str());
        info!(request = %answer.id, worker, bytes = answer.text.len(), problem, "log requested");
        self.publish_answer(&answer);
        while let Some(request) = self.log_requests.pop() {
            self.decide_request(request);
        }
    }

    fn publish_answer(&mut self, answer: &NodeAnswer) {
        self.cloud.publisher.publish_answer(answer);
    }
}
