//! The aggregators of this node: starts and stops their supervision, and has their reports.

use std::collections::{BTreeMap, BTreeSet};

use neptune_agent_core::domain::aggregator::{AggregatorEvent, WantedAggregator};
use neptune_wire::AggregatorReport;
use tokio::sync::watch;

use crate::{
    aggregator::{run::AggregatorRun, sweep::sweep},
    training::job::TrainingNode,
};

/// The aggregators of the node, by the UID of the `TrainingModel`.
pub struct Aggregators {
    node: TrainingNode,
    sweep: SweepProgress,
    wanted: BTreeMap<String, WantedAggregator>,
    /// Whether the desired state is complete: an object that is missing may only be late.
    is_complete: bool,
    supervised: BTreeMap<String, Supervised>,
}

/// Whether what earlier processes left behind is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SweepProgress {
    NotBegun,
    /// The removal runs, and keeps the aggregators with these UIDs.
    Running(BTreeSet<String>),
    Done,
}

struct Supervised {
    wanted: watch::Sender<Option<WantedAggregator>>,
    report: AggregatorReport,
}

impl Aggregators {
    pub fn new(node: TrainingNode) -> Self {
        Self {
            node,
            sweep: SweepProgress::NotBegun,
            wanted: BTreeMap::new(),
            is_complete: false,
            supervised: BTreeMap::new(),
        }
    }

    /// Sets the aggregators to run. Others are removed, once the desired state is complete.
    pub fn set_wanted(&mut self, wanted: &BTreeMap<String, WantedAggregator>, is_complete: bool) {
        self.wanted.clone_from(wanted);
        self.is_complete = is_complete;
        if is_complete && self.sweep == SweepProgress::NotBegun {
            self.begin_sweep();
        }
        self.update();
    }

    fn begin_sweep(&mut self) {
        let kept: BTreeSet<String> = self.wanted.keys().cloned().collect();
        sweep(self.node.clone(), kept.clone());
        self.sweep = SweepProgress::Running(kept);
    }

    /// Records that what earlier processes left behind was removed.
    pub fn on_swept(&mut self) {
        let is_unwanted = |uid: &String| !self.wanted.contains_key(uid);
        match &self.sweep {
            // One of those that it kept was deleted meanwhile, and nothing supervises it.
            SweepProgress::Running(kept) if kept.iter().any(is_unwanted) && self.is_complete => {
                self.begin_sweep();
            }
            _ => self.sweep = SweepProgress::Done,
        }
        self.update();
    }

    /// Records an event of a supervision.
    pub fn on_event(&mut self, uid: &str, event: AggregatorEvent) {
        match event {
            AggregatorEvent::Reported(report) => {
                if let Some(supervised) = self.supervised.get_mut(uid) {
                    supervised.report = *report;
                }
            }
            AggregatorEvent::Removed => {
                self.supervised.remove(uid);
                // It may be wanted again meanwhile.
                self.update();
            }
        }
    }

    /// The status of an aggregator.
    pub fn report(&self, uid: &str) -> AggregatorReport {
        self.supervised.get(uid).map(|it| it.report.clone()).unwrap_or_default()
    }

    /// The images of the aggregators.
    pub fn images(&self) -> impl Iterator<Item = &String> {
        self.wanted.values().map(|wanted| &wanted.content.image)
    }

    fn update(&mut self) {
        if self.sweep != SweepProgress::Done {
            return;
        }
        for (uid, supervised) in &self.supervised {
            let wanted = self.wanted.get(uid);
            if wanted.is_none() && !self.is_complete {
                continue;
            }
            supervised.wanted.send_if_modified(|held| {
                let is_new = held.as_ref() != wanted;
                if is_new {
                    *held = wanted.cloned();
                }
                is_new
            });
        }
        for (uid, wanted) in &self.wanted {
            if !self.supervised.contains_key(uid) {
                let (sender, receiver) = watch::channel(Some(wanted.clone()));
                AggregatorRun::begin(self.node.clone(), uid.clone(), receiver);
                let report = AggregatorReport::default();
                self.supervised.insert(uid.clone(), Supervised { wanted: sender, report });
            }
        }
    }
}
