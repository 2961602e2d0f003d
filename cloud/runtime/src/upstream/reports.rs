//! What each message of a node changes in the fleet, and which objects that affects.

use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use neptune_cloud_fleet::nodes_by_state;
use neptune_cloud_kinds::fleet::Affected;
use neptune_cloud_metrics::MessageKind;
use neptune_seal::verify;
use neptune_wire::{
    AgentInstance, AgentStart, Batch, ModelOutput, NodeAnswer, NodeName, NodeReport, ObjectKey,
    Resource, StatusReport, Sync, Topic, decode, decode_counted,
};

use super::{FleetChange, Freshness, Upstream, rejection::Rejected};

/// Larger reports are rejected before they are parsed: agents send at most some tens of KiB.
const MAX_REPORT_BYTES: usize = 256 * 1024;

/// Checks that a message names a data directory.
pub fn check_instance(instance: &AgentInstance) -> Result<(), Rejected> {
    if instance.is_valid() { Ok(()) } else { Err(Rejected::Instance(instance.0.clone())) }
}

impl Upstream {
    pub(super) fn on_message(
        &self,
        topic: &Topic,
        payload: &[u8],
        freshness: Freshness,
    ) -> Result<(), Rejected> {
        if payload.len() > MAX_REPORT_BYTES {
            return Err(Rejected::TooLarge { bytes: payload.len() });
        }
        match topic {
            Topic::Node(node) => {
                // Only an operator who cleans up a broker clears a node report.
                if payload.is_empty() {
                    return Ok(());
                }
                let report: NodeReport = decode(payload)?;
                check_instance(&report.instance)?;
                if !freshness.is_late {
                    self.on_node_report(node, report, freshness.is_live);
                }
            }
            // Where messages come late it is repeated, so a late one is ignored.
            Topic::Status(..) if payload.is_empty() && freshness.is_late => {}
            Topic::Status(node, key) if payload.is_empty() => {
                let affected = self.fleet.lock().on_status_cleared(node, key);
                self.report_affected(affected, node, Some(key));
            }
            Topic::Status(node, key) => {
                let (report, skipped) = decode_counted(payload)?;
                self.metrics.skipped(skipped);
                self.on_status_report(node, key, report, freshness.is_live)?;
            }
            Topic::Answer(node) => {
                let answer: NodeAnswer = decode(payload)?;
                answer.check()?;
                self.metrics.received(MessageKind::Answer);
                self.answers.on_answer(node, answer);
            }
            Topic::Insert(..)
            | Topic::Delete(..)
            | Topic::Index(..)
            | Topic::Sync(..)
            | Topic::Request(..)
            | Topic::WorkerReload(..)
            | Topic::WorkerInfo(..) => {
                return Err(Rejected::Direction);
            }
        }
        Ok(())
    }

    /// Returns the newest start of the agent, if it is not the one that sent the sync.
    pub(super) fn on_sync(
        &self,
        node: &NodeName,
        sync: &Sync,
        is_live: bool,
    ) -> Option<AgentStart> {
        self.metrics.received(MessageKind::Sync);
        let newer_start = self.newer_start(node, sync);
        if is_live {
            let (instance, now) = (&sync.instance, self.fleet.now());
            let affected = {
                let mut fleet = self.fleet.lock();
                fleet.on_inventory(node, sync);
                fleet.on_sign_of_life(node, instance, sync.epoch, now)
            };
            self.report_affected(affected, node, None);
        }
        self.publisher.transport().on_sync(node, sync);
        newer_start
    }

    pub(super) fn on_batch_arrived(&self, node: &NodeName, batch: &Batch, arrived: Instant) {
        let (affected, delay) = {
            let mut fleet = self.fleet.lock();
            let affected = fleet.on_batch_arrived(node, batch, self.fleet.at(arrived));
            (affected, fleet.delay(node))
        };
        match delay.filter(|_| affected != Affected::None) {
            Some(seconds) => tracing::warn!(
                %node, seconds,
                "messages of the node arrive late; another program may publish too many on +/user/# of its broker"
            ),
            None if affected != Affected::None => {
                tracing::info!(%node, "messages of the node arrive in time again");
            }
            None => {}
        }
        self.report_affected(affected, node, None);
    }

    fn on_node_report(&self, node: &NodeName, mut report: NodeReport, is_live: bool) {
        self.metrics.received(MessageKind::Node);
        self.check_seal_key(node, &mut report);
        let online = report.online;
        let now = self.fleet.now();
        let affected = self.fleet.lock().on_node_report(node, report, is_live, now);
        if affected != Affected::None {
            tracing::info!(%node, online, "node presence changed");
        }
        self.report_affected(affected, node, None);
        if online {
            self.publisher.on_node_online(node);
        }
    }

    /// Drops a seal key that the reported key of the node did not sign. The one that is known is not
    /// verified again.
    fn check_seal_key(&self, node: &NodeName, report: &mut NodeReport) {
        let Some(seal_key) = report.seal_key.as_deref() else { return };
        let is_known = self.fleet.lock().knows_seal_key(node, report.key_pin.as_ref(), seal_key);
        let trusted = report.key_pin.as_ref();
        if is_known || trusted.is_some_and(|pin| verify(node, pin, seal_key).is_ok()) {
            return;
        }
        tracing::warn!(%node, "the key for Secrets is not signed by the key of the node; ignored");
        report.seal_key = None;
    }

    fn on_status_report(
        &self,
        node: &NodeName,
        key: &ObjectKey,
        mut report: StatusReport,
        is_live: bool,
    ) -> Result<(), Rejected> {
        check_instance(&report.instance)?;
        ModelOutput::check(&report.output.models)?;
        if !self.caches.contains(key, &report.uid) {
            return Err(Rejected::UnknownObject { key: key.clone(), uid: report.uid });
        }
        self.metrics.received(MessageKind::Status);
        self.on_model_outputs(node, key, &report.output.models);
        // Refused counters do not hide the states.
        let info = report.output.task_info.as_ref();
        let checked = info.map_or(Ok(()), |info| self.check_counters(node, key, info.counters));
        if let Err(rejected) = &checked {
            report.output.task_info = None;
            if matches!(rejected, Rejected::Impossible { .. }) {
                self.fleet.lock().on_refused_counters(node, key, rejected.to_string());
            }
        }
        let now = self.fleet.now();
        let affected = self.fleet.lock().on_status_report(node, key, report, is_live, now);
        let affected = if checked.is_err() { affected.or_object() } else { affected };
        self.report_affected(affected, node, Some(key));
        checked
    }

    /// Outputs of a model that does not exist, or has another uid, are ignored.
    #[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
    fn on_model_outputs(&self, node: &NodeName, object: &ObjectKey, outputs: &[ModelOutput]) {
        for output in outputs {
            let model = ObjectKey {
                namespace: object.namespace.clone(),
                resource: Resource::Models,
                name: output.model.clone(),
            };
            let is_newest = self.caches.contains(&model, &output.uid)
                && self.fleet.lock().on_model_output(node, object, output, Timestamp::now());
            if is_newest {
                self.report(FleetChange::Object(model, node.clone()));
            }
        }
    }

    pub(super) fn report_affected(
        &self,
        affected: Affected,
        node: &NodeName,
        key: Option<&ObjectKey>,
    ) {
        match affected {
            Affected::Node => self.report(FleetChange::Node(node.clone())),
            Affected::Presence => self.report(FleetChange::Presence(node.clone())),
            Affected::None | Affected::Object => {}
        }
        if let Some(key) = key.filter(|_| affected != Affected::None) {
            self.report(FleetChange::Object(key.clone(), node.clone()));
        }
    }

    pub(super) fn report(&self, change: FleetChange) {
        // The receiver is dropped only when the program ends.
        let _ = self.changes.unbounded_send(change);
    }

    pub(super) fn count_nodes(&self) {
        let counts = nodes_by_state(&self.fleet.lock());
        self.metrics.set_nodes(counts);
    }
}
