//! Follows chains of services in the cache: which names which, and what the last service of a chain
//! sends up.

use std::{collections::HashSet, sync::Arc};

use kube::ResourceExt as _;
use neptune_api::JointInferenceService;
use neptune_cloud_kinds::{
    index_key::IndexKey,
    joint_inference_service::{
        chain::{
            tiers::{MAX_FOLLOWED, follow_chain, loop_text},
            total_upload::{Held, Tier, TotalUpload, next_total, set_counters, unreachable_total},
        },
        spec::{
            goal::{total_upload_goal, upload_goal},
            names::other_name,
        },
    },
};
use neptune_wire::Resource;

use crate::{
    cache::{Cached as _, Caches},
    controllers::runtime::Context,
};

/// The service that each service of the namespace names. This one may be newer than the cached one.
fn next_of<'a>(
    service: &'a JointInferenceService,
    caches: &'a Caches,
) -> impl Fn(&str) -> Option<String> + 'a {
    let namespace = service.namespace().unwrap_or_default();
    move |name| {
        if name == service.name_any() {
            return other_name(service).map(str::to_owned);
        }
        let service = caches.get::<JointInferenceService>(&namespace, name)?;
        other_name(&service).map(str::to_owned)
    }
}

/// The services that name this one.
pub fn callers(
    service: &JointInferenceService,
    caches: &Caches,
) -> Vec<Arc<JointInferenceService>> {
    let (namespace, name) = (service.namespace().unwrap_or_default(), service.name_any());
    let key = IndexKey::Uses(Resource::JointInferenceServices, namespace, name);
    JointInferenceService::cache(caches).with_key(&key)
}

/// The services that name this one, or one that names it, and so on. Each once.
pub fn all_callers(
    service: &JointInferenceService,
    caches: &Caches,
) -> Vec<Arc<JointInferenceService>> {
    let mut all = callers(service, caches);
    let mut known: HashSet<String> = all.iter().map(|caller| caller.name_any()).collect();
    let mut at = 0;
    while let Some(caller) = all.get(at).cloned() {
        all.extend(callers(&caller, caches).into_iter().filter(|it| known.insert(it.name_any())));
        at += 1;
    }
    all
}

/// The text of a loop that the service is part of.
pub fn returns_here(service: &JointInferenceService, caches: &Caches) -> Option<String> {
    let next = next_of(service, caches);
    let names = follow_chain(&service.name_any(), &next);
    loop_text(&names, names.last().and_then(|last| next(last)).as_deref())
}

/// The names of the tiers of the chain that begins with the service: services, and what answers the
/// hard samples of the last one. Empty for a service that names no other one.
pub fn tier_names(service: &JointInferenceService, caches: &Caches) -> Vec<String> {
    if other_name(service).is_none() {
        return Vec::new();
    }
    let mut names = follow_chain(&service.name_any(), next_of(service, caches));
    names.extend(names.last().map(|last| format!("{last}/cloud")));
    names
}

/// The last service of the chain that begins with this one.
pub fn last_of_chain(
    service: &JointInferenceService,
    caches: &Caches,
) -> Option<Arc<JointInferenceService>> {
    let names = follow_chain(&service.name_any(), next_of(service, caches));
    caches.get(&service.namespace().unwrap_or_default(), names.last()?)
}

/// Returns what enforces `goal.totalUploadRatio`. It reads all services below.
pub fn total_upload(service: &JointInferenceService, context: &Context) -> Option<TotalUpload> {
    let mut seen = HashSet::from([service.name_any()]);
    total_upload_goal(service)?;
    let tiers = tiers_below(service, context.caches(), &mut seen, MAX_FOLLOWED);
    with_tiers(service, Arc::new(tiers))
}

/// The same with these services below.
fn with_tiers(service: &JointInferenceService, tiers: Arc<Vec<Tier>>) -> Option<TotalUpload> {
    let total = total_upload_goal(service)?;
    let held = service.status.as_ref().and_then(|status| {
        let held = status.total_upload.as_deref()?;
        let (total, ratio) = (held.goal.parse().ok()?, held.upload_ratio.parse().ok()?);
        Some(Held { total, ratio, since: held.since.0 })
    });
    let held = next_total(total, &tiers, held, Context::wall_now());
    Some(TotalUpload { held, unreachable: unreachable_total(total, &tiers), tiers })
}

/// Returns what enforces `goal.totalUploadRatio` with the counters of now. `planned` has the
/// services below as they were when the plan was made. It reads only those that were marked since.
pub fn current_total(
    service: &JointInferenceService,
    planned: &TotalUpload,
    context: &Context,
) -> Option<TotalUpload> {
    let (tiers, changed) = context.object_state(service, |state| state.memory.take());
    let mut tiers = tiers.unwrap_or_else(|| Arc::clone(&planned.tiers));
    let (caches, namespace) = (context.caches(), service.namespace().unwrap_or_default());
    for name in changed {
        let Some(below) = caches.get::<JointInferenceService>(&namespace, &name) else { continue };
        let mut path = follow_chain(&name, next_of(&below, caches));
        if path.pop() == Some(service.name_any()) {
            path.reverse();
            let tiers = Arc::<Vec<Tier>>::make_mut(&mut tiers);
            set_counters(tiers, &path, counters(&below));
        }
    }
    context.object_state(service, |state| state.memory.put(Arc::clone(&tiers)));
    with_tiers(service, tiers)
}

/// The last service of a chain reads this one again, if it enforces `goal.totalUploadRatio`: only
/// its counters if nothing else differs.
pub fn enqueue_total(
    before: Option<&JointInferenceService>,
    now: &JointInferenceService,
    context: &Context,
) {
    let is_same_tier = |before: &&JointInferenceService| {
        let tier = |service| (other_name(service).map(str::to_owned), upload_goal(service));
        tier(before) == tier(now)
    };
    let caches = context.caches();
    let last = |service: &JointInferenceService| {
        other_name(service)?;
        last_of_chain(service, caches).filter(|last| total_upload_goal(last).is_some())
    };
    if let Some(before) = before.filter(is_same_tier) {
        if counters(before) != counters(now)
            && let Some(last) = last(now)
        {
            context.object_state(&*last, |state| state.memory.mark(&now.name_any()));
            context.enqueue_unchanged(&*last);
        }
        return;
    }
    for last in before.into_iter().chain([now]).filter_map(last) {
        context.enqueue(&*last);
    }
}

/// The samples of a service, and those of them that a tier above answered.
fn counters(service: &JointInferenceService) -> (u64, u64) {
    let Some(status) = &service.status else { return (0, 0) };
    let samples = status.metrics.iter().find(|metric| metric.key == "inferenceNumber");
    let samples = samples.and_then(|metric| metric.value.parse().ok()).unwrap_or(0);
    (samples, status.tiers.iter().skip(1).map(|tier| tier.answered).sum())
}

/// The services below, down to this many tiers, each once: a loop ends there. Sorted by name.
fn tiers_below(
    service: &JointInferenceService,
    caches: &Caches,
    seen: &mut HashSet<String>,
    depth: usize,
) -> Vec<Tier> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let mut tiers = Vec::new();
    for caller in callers(service, caches) {
        let name = caller.name_any();
        if !seen.insert(name.clone()) {
            continue;
        }
        let (samples, sent_up) = counters(&caller);
        let goal = upload_goal(&caller);
        let below = tiers_below(&caller, caches, seen, depth);
        tiers.push(Tier { name, goal, samples, sent_up, below });
    }
    tiers
}
