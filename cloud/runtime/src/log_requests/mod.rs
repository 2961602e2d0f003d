//! Follows the `LogRequests` while this replica leads: asks nodes, writes statuses and deletes. What
//! to do is decided by `neptune_cloud_kinds::log_requests`.

mod target;

use std::{
    collections::BTreeMap,
    fmt::Display,
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Config, Event, watcher},
    },
};
use neptune_api::{LogRequest, LogRequestStatus};
use neptune_cloud_kinds::log_requests::open::{LogAction, LogRequests};
use serde_json::json;

use self::target::target;
use crate::{
    cache::scoped, controllers::runtime::Context, error::Error, kubernetes::FIELD_MANAGER,
    upstream::NodeAnswers,
};

/// The pause after a failed watch.
const RETRY: Duration = Duration::from_secs(5);
/// The longest pause between two looks at the requests.
const IDLE: Duration = Duration::from_secs(60);

/// Answers `LogRequests`, indefinitely: those in the namespace `only`, or all.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn answer_log_requests(context: &Context, answers: &NodeAnswers, only: Option<&str>) {
    // Before, it is not known which nodes run a worker.
    context.publisher().synced().await;
    let events = watch(context, only);
    pin_mut!(events);
    let mut controller = Controller {
        context,
        answers,
        objects: BTreeMap::new(),
        listed: BTreeMap::new(),
        requests: LogRequests::default(),
        is_failing: false,
    };
    let mut watch_at = Instant::now();
    loop {
        let until_watch = watch_at.saturating_duration_since(Instant::now());
        let pause = controller.until_due();
        tokio::select! {
            event = events.next(), if until_watch.is_zero() => match event {
                Some(Ok(event)) => controller.apply(event),
                // It lists again, which finds what changed meanwhile.
                Some(Err(error)) => {
                    controller.failed("follow", &error);
                    watch_at = Instant::now() + RETRY;
                }
                None => return,
            },
            () = answers.arrived() => {}
            () = tokio::time::sleep(if until_watch.is_zero() { pause } else { pause.min(until_watch) }) => {}
        }
        controller.act().await;
    }
}

/// The changes of the requests, without the logs in their statuses.
fn watch(
    context: &Context,
    only: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<LogRequest>>> {
    let events = watcher(scoped::<LogRequest>(context.client(), only), Config::default());
    events.modify(|request| {
        request.managed_fields_mut().clear();
        if let Some(status) = &mut request.status {
            status.text = String::new();
        }
    })
}

struct Controller<'a> {
    context: &'a Context,
    answers: &'a NodeAnswers,
    /// The requests that exist, by their uid.
    objects: BTreeMap<String, LogRequest>,
    /// Those of a list that is not complete yet.
    listed: BTreeMap<String, LogRequest>,
    requests: LogRequests,
    /// Whether a failure was logged, and nothing succeeded since.
    is_failing: bool,
}

impl Controller<'_> {
    fn apply(&mut self, event: Event<LogRequest>) {
        let uid = |request: &LogRequest| request.uid().unwrap_or_default();
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(request) => drop(self.listed.insert(uid(&request), request)),
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.is_failing = false;
            }
            Event::Apply(request) => drop(self.objects.insert(uid(&request), request)),
            Event::Delete(request) => drop(self.objects.remove(&uid(&request))),
        }
        let objects = &self.objects;
        self.requests.retain(|uid| objects.contains_key(uid));
    }

    fn failed(&mut self, action: &str, error: &impl Display) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%error, "cannot {action} LogRequests; retrying");
        }
    }

    fn until_due(&self) -> Duration {
        let now = self.context.fleet_now();
        let until = |at: Timestamp| at.duration_since(now).try_into().unwrap_or_default();
        self.requests.next_at().map_or(IDLE, until).min(IDLE)
    }

    async fn act(&mut self) {
        let now = self.context.fleet_now();
        for (node, answer) in self.answers.take() {
            self.requests.on_answer(&node, answer, now);
        }
        let due: Vec<_> =
            self.objects.keys().filter(|uid| self.requests.is_due(uid, now)).cloned().collect();
        for uid in due {
            self.act_on(&uid).await;
        }
        let open: Vec<_> = self.requests.asked().map(|(id, _)| id.clone()).collect();
        self.answers.expect_only(|id| open.contains(id));
    }

    async fn act_on(&mut self, uid: &str) {
        let Some(request) = self.objects.get(uid) else { return };
        let target = target(request, self.context);
        let times = (self.context.fleet_now(), Context::wall_now());
        match self.requests.decide(request, target.as_ref(), times) {
            LogAction::Wait => {}
            LogAction::Ask(node, asked) => {
                self.answers.expect(&asked.id, &node);
                self.context.publisher().request(&node, &asked);
            }
            LogAction::Write(status) => {
                if !self.context.take_spare_write(bytes(&status)) {
                    return;
                }
                match write(self.context, request, &status).await {
                    Ok(()) => {
                        self.is_failing = false;
                        self.requests.written(uid, self.context.fleet_now());
                    }
                    Err(error) => self.failed("write", &error),
                }
            }
            LogAction::Delete => {
                if let Err(error) = delete(self.context, request).await {
                    self.failed("delete", &error);
                }
            }
        }
    }
}

/// The size that a write is charged for.
fn bytes(status: &LogRequestStatus) -> usize {
    /// The request without its log.
    const OBJECT: usize = 1000;
    OBJECT + status.text.len() + status.message.len()
}

fn api(context: &Context, request: &LogRequest) -> (Api<LogRequest>, String) {
    let namespace = request.namespace().unwrap_or_default();
    (Api::namespaced(context.client().clone(), &namespace), request.name_any())
}

async fn write(
    context: &Context,
    request: &LogRequest,
    status: &LogRequestStatus,
) -> Result<(), Error> {
    let (api, name) = api(context, request);
    let patch = json!({"metadata": {"uid": request.uid()}, "status": status});
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let written = api.patch_status(&name, &params, &Patch::Merge(&patch)).await;
    ignore_missing(written.map(drop), format!("write the status of LogRequest {name}"))
}

async fn delete(context: &Context, request: &LogRequest) -> Result<(), Error> {
    let (api, name) = api(context, request);
    let only_this = Preconditions { uid: request.uid(), resource_version: None };
    let deleted = api.delete(&name, &DeleteParams::default().preconditions(only_this)).await;
    ignore_missing(deleted.map(drop), format!("delete LogRequest {name}"))
}

/// A request that is gone, or whose name another one has, needs nothing. The watch reports that.
fn ignore_missing(result: kube::Result<()>, step: String) -> Result<(), Error> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map_err(Error::api(step)),
    }
}
