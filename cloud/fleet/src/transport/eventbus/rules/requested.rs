//! Requests whose effect the watch has not shown yet, so that no object is created or deleted twice.
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::plan::{DesiredRule, ExistingRule, RuleKey};

/// The time after which the watch has shown the effect, or the object was changed by another
/// client.
const VISIBLE: Duration = Duration::from_secs(10);

/// The requests whose effect the watch may not show yet.
#[derive(Debug, Default)]
pub struct Requested {
    created: BTreeMap<RuleKey, (DesiredRule, Instant)>,
    /// The uid of each deleted object.
    deleted: BTreeMap<RuleKey, (String, Instant)>,
}

impl Requested {
    /// An object was created, or existed already.
    pub fn on_created(&mut self, key: RuleKey, desired: DesiredRule, now: Instant) {
        self.created.insert(key, (desired, now));
    }

    /// Records that an object was deleted.
    pub fn on_deleted(&mut self, key: RuleKey, uid: String, now: Instant) {
        self.created.remove(&key);
        self.deleted.insert(key, (uid, now));
    }

    /// The existing objects with the effect of the requests. `cached` is what the watch has.
    pub fn applied_to(
        &mut self,
        mut cached: BTreeMap<RuleKey, ExistingRule>,
        now: Instant,
    ) -> BTreeMap<RuleKey, ExistingRule> {
        self.deleted.retain(|key, (uid, at)| {
            now < *at + VISIBLE && cached.get(key).is_some_and(|held| held.uid == *uid)
        });
        for key in self.deleted.keys() {
            cached.remove(key);
        }
        self.created.retain(|key, (_, at)| now < *at + VISIBLE && !cached.contains_key(key));
        for (key, (desired, _)) in &self.created {
            let spec = Value::Object(desired.spec.clone());
            let existing = ExistingRule { spec, is_managed: true, uid: String::new() };
            cached.insert(key.clone(), existing);
        }
        cached
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::super::plan::{RuleKind, plan};
    use super::*;

    fn key(n: usize) -> RuleKey {
        (RuleKind::Rule, format!("rule-{n}"))
    }

    #[test]
    fn object_is_created_once_before_the_watch_shows_it() {
        let desired = || DesiredRule { spec: serde_json::Map::new(), node: None };
        let all: BTreeMap<_, _> = (0..200).map(|n| (key(n), desired())).collect();
        let (mut requested, now) = (Requested::default(), Instant::now());
        let mut creates = 0;
        // The watch shows ten more objects in each round.
        for round in 0..20 {
            let shown = (0..10 * round).map(|n| {
                (key(n), ExistingRule { spec: Value::Null, is_managed: true, uid: n.to_string() })
            });
            let existing = requested.applied_to(shown.collect(), now);
            for step in plan(&all, &existing).steps {
                creates += 1;
                assert!(matches!(step, super::super::plan::RulesStep::Create { .. }), "{step:?}");
            }
            for n in 0..200 {
                if !existing.contains_key(&key(n)) {
                    requested.on_created(key(n), desired(), now);
                }
            }
        }
        assert_eq!(creates, 200);
        let existing = requested.applied_to(BTreeMap::new(), now + VISIBLE);
        assert!(existing.is_empty(), "another client deleted it");
    }

    #[test]
    fn deleted_object_is_not_deleted_again() {
        let held =
            |uid: &str| ExistingRule { spec: Value::Null, is_managed: true, uid: uid.to_owned() };
        let (mut requested, now) = (Requested::default(), Instant::now());
        requested.on_deleted(key(1), "a".to_owned(), now);
        assert!(requested.applied_to([(key(1), held("a"))].into(), now).is_empty());
        let recreated = requested.applied_to([(key(1), held("b"))].into(), now);
        assert_eq!(recreated.len(), 1, "another object of that name");
    }
}
