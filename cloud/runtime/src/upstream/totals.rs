//! Decides which totals of reports and syncs count, and which notices answer a sync.

use std::{collections::BTreeSet, sync::Arc};

use neptune_api::JointInferenceService;
use neptune_cloud_kinds::index_key::IndexKey;
use neptune_wire::{AgentStart, Counters, NodeName, ObjectKey, Resource, Sync};

use super::{FleetChange, Upstream, rejection::Rejected};
use crate::cache::Cached as _;

/// Totals of departed objects that are processed per sync. Agents keep fewer.
const MAX_DEPARTED: usize = 1024;

/// What follows from the totals of departed objects in a sync.
#[derive(Debug, Default)]
pub(super) struct DepartedOutcome {
    /// UIDs that no object has any more.
    pub(super) gone_uids: BTreeSet<String>,
    /// Why the last refused totals were refused.
    pub(super) rejected: Option<Rejected>,
}

impl Upstream {
    /// Counts the totals of objects that left the node.
    pub(super) fn on_departed(&self, node: &NodeName, sync: &Sync) -> DepartedOutcome {
        let mut outcome = DepartedOutcome::default();
        for (uid, totals) in sync.departed.iter().take(MAX_DEPARTED) {
            let key = &totals.object;
            if !self.caches.contains(key, uid) {
                // While the CRD is missing, the object may exist. The node keeps its totals.
                if self.caches.is_complete(key.resource) {
                    outcome.gone_uids.insert(uid.clone());
                }
                continue;
            }
            if let Err(rejected) = self.check_counters(node, key, totals.counters) {
                outcome.rejected = Some(rejected);
                continue;
            }
            let message = (&sync.instance, (sync.epoch, 0));
            let now = self.fleet.now();
            if self.fleet.lock().on_counters(node, uid, message, totals.counters, now) {
                self.report(FleetChange::Object(key.clone(), node.clone()));
            }
        }
        outcome
    }

    /// Whether counters are possible, and of a node that may count for the object.
    pub(super) fn check_counters(
        &self,
        node: &NodeName,
        key: &ObjectKey,
        counters: Counters,
    ) -> Result<(), Rejected> {
        if !counters.are_possible() {
            let Counters { inference, hard, .. } = counters;
            return Err(Rejected::Impossible { inference, hard });
        }
        let (namespace, name) = (key.namespace.as_str(), key.name.as_str());
        let service = self.caches.get::<JointInferenceService>(namespace, name);
        let is_service = key.resource == Resource::JointInferenceServices;
        let may_count = |service: Arc<JointInferenceService>| {
            self.fleet.lock().rows(uid(&service)).may_count(&service, node)
        };
        if is_service && service.is_some_and(may_count) {
            Ok(())
        } else {
            Err(Rejected::NeverHad { node: node.clone(), key: key.clone() })
        }
    }

    /// The newest start of the agent, if it is not the one that sent the sync. Statuses keep it when
    /// this controller restarts.
    pub(super) fn newer_start(&self, node: &NodeName, sync: &Sync) -> Option<AgentStart> {
        let instance = &sync.instance;
        let services = JointInferenceService::cache(&self.caches);
        let name = || node.to_string();
        let keys = [IndexKey::Node(name()), IndexKey::ReportsOf(name()), IndexKey::OnManyNodes];
        let services: Vec<_> = keys.iter().flat_map(|key| services.with_key(key)).collect();
        let mut fleet = self.fleet.lock();
        let listed = services
            .iter()
            .filter_map(|service| fleet.rows(uid(service)).newest_epoch(service, node, instance));
        let listed = listed.max();
        let newest = fleet.newest_epoch(node, instance).max(listed)?;
        (newest > sync.epoch).then(|| AgentStart { instance: instance.clone(), epoch: newest })
    }
}

fn uid(service: &JointInferenceService) -> &str {
    service.metadata.uid.as_deref().unwrap_or_default()
}
