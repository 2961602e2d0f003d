//! Remembers the images that this agent pulled, and decides when to look for unused ones. Which one
//! is removed is decided and done in `neptune-edge-engine`.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use neptune_agent_core::domain::{
    problem::Problem,
    pulled_image::{CollectedImages, ImageGcLimits, PulledImage, PulledImages},
};
use neptune_edge_engine::image_collector::{ImageCollection, begin};
use tracing::debug;

use super::{Agent, executor::Executor};
use crate::storage::Store;

/// Maximum time between two passes.
const MAX_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Minimum time between two passes.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

impl Agent {
    /// Removes pulled images that nothing uses. Not without the cloud: what was removed may then not
    /// be available. Returns when to do so again.
    pub(super) fn collect_images(&mut self, now: Instant) -> Option<Instant> {
        let Self { cloud, desired, containers, servers, images, aggregators, .. } = self;
        let is_known = cloud.is_up
            && desired.is_complete()
            && containers.observer.latest().is_ok()
            && !containers.contest.is_detected(now);
        let wanted = || {
            let workers = desired.desired.workers.values().map(|wanted| &wanted.worker);
            let clashes = desired.desired.clashes.iter().map(|(_, worker, _)| worker);
            let images = workers.chain(clashes).map(|worker| &worker.program.image);
            images
                .chain(containers.pulling())
                .chain(servers.images(&desired.desired))
                .chain(desired.desired.training.images())
                .chain(aggregators.images())
                .cloned()
                .collect()
        };
        images.collect(is_known.then_some(wanted), &containers.executor, now)
    }
}

/// The images that this agent pulled.
pub struct ImageCollector {
    limits: ImageGcLimits,
    pulled: PulledImages,
    /// Images that were pulled during a pass; `None` while none runs.
    pulled_meanwhile: Option<PulledImages>,
    /// Up to when the time without use is counted; `None` while it stands still.
    counted_until: Option<Instant>,
    /// Whether the last pass removed an image, so that the next one follows at once.
    has_removed: bool,
}

impl ImageCollector {
    pub fn new(limits: ImageGcLimits, pulled: PulledImages) -> Self {
        Self { limits, pulled, pulled_meanwhile: None, counted_until: None, has_removed: false }
    }

    /// Records that this agent pulled an image.
    pub fn on_pulled(&mut self, reference: String, id: String, store: &mut Store) {
        let image = PulledImage { id, unused: Duration::ZERO };
        if let Some(meanwhile) = &mut self.pulled_meanwhile {
            meanwhile.insert(reference.clone(), image.clone());
        }
        self.pulled.insert(reference, image);
        self.save(store);
    }

    /// Starts a pass if one is due. `wanted`: the images that workers and model servers need;
    /// `None` if that is not known for sure now. Returns when the next pass is due.
    pub fn collect(
        &mut self,
        wanted: Option<impl FnOnce() -> BTreeSet<String>>,
        executor: &Executor,
        now: Instant,
    ) -> Option<Instant> {
        let Some(wanted) = wanted.filter(|_| !self.limits.is_off() && !self.pulled.is_empty())
        else {
            self.counted_until = None;
            return None;
        };
        if self.pulled_meanwhile.is_some() {
            return None;
        }
        let counted_until = *self.counted_until.get_or_insert(now);
        let due_at = if self.has_removed { now } else { counted_until + interval(&self.limits) };
        if due_at > now {
            return Some(due_at);
        }
        self.counted_until = Some(now);
        self.pulled_meanwhile = Some(PulledImages::new());
        let request = ImageCollection {
            pulled: self.pulled.clone(),
            wanted: wanted(),
            elapsed: now - counted_until,
            limits: self.limits,
        };
        begin(Arc::clone(&executor.supervisor.docker), request, executor.events.clone());
        None
    }

    /// Records the result of a pass.
    pub fn on_collected(&mut self, result: Result<CollectedImages, Problem>, store: &mut Store) {
        let meanwhile = self.pulled_meanwhile.take().unwrap_or_default();
        self.has_removed = false;
        match result {
            Ok(CollectedImages { mut pulled, has_removed }) => {
                self.has_removed = has_removed;
                pulled.extend(meanwhile);
                if pulled != self.pulled {
                    self.pulled = pulled;
                    self.save(store);
                }
            }
            // The containers are observed with the same engine, which logs its problem.
            Err(problem) => debug!(problem = problem.message, "cannot look for unused images"),
        }
    }

    /// Stores the records. Those that cannot be stored stay in memory until the next change; the
    /// store logs the problem.
    fn save(&self, store: &mut Store) {
        if let Err(error) = store.save_pulled_images(&self.pulled) {
            debug!(%error, "failed to store the pulled images");
        }
    }
}

/// Short enough for the ages of the limits.
fn interval(limits: &ImageGcLimits) -> Duration {
    let ages = [Some(limits.min_age), limits.max_age].into_iter().flatten();
    let shortest = ages.min().unwrap_or(MAX_INTERVAL);
    shortest.clamp(MIN_INTERVAL, MAX_INTERVAL)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]
    use std::path::Path;

    use neptune_agent_core::fixtures::node_context;
    use neptune_edge_engine::{docker::Docker, event::EngineEvent, supervisor::Supervisor};
    use tokio::sync::mpsc;

    use super::*;
    use crate::event::AgentEvent;
    use crate::values::runtime_files::RuntimeFiles;

    const HOUR: Duration = Duration::from_secs(3600);
    const LIMITS: ImageGcLimits =
        ImageGcLimits { max_bytes: Some(0), min_age: HOUR, max_age: Some(HOUR) };

    /// A collector with one image, and the executor of an engine that does not answer.
    fn collector() -> (ImageCollector, Executor, mpsc::Receiver<AgentEvent>) {
        let (events, received) = mpsc::channel(1);
        let docker = Arc::new(Docker::new(Path::new("/nonexistent/docker.sock")));
        let context = Arc::new(node_context());
        let supervisor = Supervisor::new(docker);
        let files = Arc::new(RuntimeFiles::new(&context));
        let executor = Executor { supervisor, context, events, credentials: None, files };
        let pulled = [("r/a:1".to_owned(), image("a"))].into();
        (ImageCollector::new(LIMITS, pulled), executor, received)
    }

    fn image(id: &str) -> PulledImage {
        PulledImage { id: id.to_owned(), unused: HOUR }
    }

    /// The images in use are known, and there are none.
    const KNOWN: Option<fn() -> BTreeSet<String>> = Some(BTreeSet::new);
    const UNKNOWN: Option<fn() -> BTreeSet<String>> = None;

    #[tokio::test]
    async fn time_without_the_cloud_or_the_engine_does_not_age_images() {
        let (mut collector, executor, _events) = collector();
        let now = Instant::now();
        let next = Some(now + MAX_INTERVAL);
        assert_eq!(collector.collect(KNOWN, &executor, now), next);
        assert_eq!(collector.collect(UNKNOWN, &executor, now + HOUR), None);
        let later = now + HOUR * 2;
        let next = Some(later + MAX_INTERVAL);
        assert_eq!(collector.collect(KNOWN, &executor, later), next, "counts from here on");
    }

    #[tokio::test]
    async fn engine_that_does_not_answer_keeps_all_records() {
        let (mut collector, executor, mut events) = collector();
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let now = Instant::now();
        let due_at = collector.collect(KNOWN, &executor, now).unwrap();
        assert_eq!(collector.collect(KNOWN, &executor, due_at), None, "a pass runs");
        let Some(AgentEvent::Engine(EngineEvent::ImagesCollected(result))) = events.recv().await
        else {
            panic!("another event")
        };
        assert!(result.is_err());
        collector.on_collected(result, &mut store);
        assert_eq!(collector.pulled, [("r/a:1".to_owned(), image("a"))].into());
        let next = Some(due_at + MAX_INTERVAL);
        assert_eq!(collector.collect(KNOWN, &executor, due_at), next);
    }

    #[tokio::test]
    async fn image_that_is_pulled_during_a_pass_keeps_its_record() {
        let (mut collector, executor, _events) = collector();
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let now = Instant::now();
        let due_at = collector.collect(KNOWN, &executor, now).unwrap();
        collector.collect(KNOWN, &executor, due_at);
        collector.on_pulled("r/a:1".into(), "newer".into(), &mut store);
        let pass = CollectedImages { pulled: PulledImages::new(), has_removed: true };
        collector.on_collected(Ok(pass), &mut store);
        let newer = PulledImage { unused: Duration::ZERO, ..image("newer") };
        assert_eq!(store.pulled_images().unwrap(), [("r/a:1".to_owned(), newer)].into());
        assert_eq!(collector.collect(KNOWN, &executor, due_at), None, "the next pass follows");
        assert!(collector.pulled_meanwhile.is_some());
    }
}
